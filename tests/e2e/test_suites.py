"""tools/suites.py: what may be tried again, what is flaky, and what a run is held against."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

try:
    import tomllib
except ImportError:  # Python 3.10: nothing is counted
    tomllib = None

ROOT = Path(__file__).resolve().parents[2]


def load(monkeypatch):
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("suites", ROOT / "tools/suites.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "suites", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def suites(monkeypatch, tmp_path):
    """The script as a module, in CI, with files of its own."""
    module = load(monkeypatch)
    monkeypatch.setattr(module, "IS_CI", True)
    monkeypatch.setattr(module, "TARGET", tmp_path)
    monkeypatch.setattr(module, "FLAKY", tmp_path / "flaky.jsonl")
    monkeypatch.setattr(module, "EXPECTED", tmp_path / "expected.toml")
    monkeypatch.setattr(module, "KNOWN_FLAKY", tmp_path / "flaky.md")
    return module


class Scripted:
    """A suite whose runs are given: each a list of (name, result, is final)."""

    name = "scripted"

    def __init__(self, module, *runs):
        self.module, self.runs, self.asked = module, list(runs), []

    def run(self, groups=None):
        self.asked.append(groups)
        told = self.runs.pop(0)
        outcomes = [self.module.Outcome(name, "group", result, "why", final) for name, result, final in told]
        code = int(any(one.result == "failed" for one in outcomes))
        return self.module.Run(outcomes, code, "2 tests run")

    def replay(self, outcome):
        return f"replay {outcome.name}"


def main(suites, monkeypatch, suite):
    """Runs a suite as the command does; returns its exit status."""
    monkeypatch.setattr(suites, "suite_of", lambda name, args: suite)
    monkeypatch.setattr(suites, "count", lambda suite, run: [])
    monkeypatch.setattr(sys, "argv", ["suites.py", suite.name])
    with pytest.raises(SystemExit) as exit:
        suites.main()
    return exit.value.code


def test_what_passes_the_second_time_is_flaky_and_named(suites, monkeypatch, capsys):
    first = [("a", "passed", False), ("b", "failed", False)]
    suite = Scripted(suites, first, [("a", "passed", False), ("b", "passed", False)])
    assert main(suites, monkeypatch, suite) == 0
    assert suite.asked == [None, ["group"]], "with what is beside it"
    [line] = suites.FLAKY.read_text().splitlines()
    assert json.loads(line)["test"] == "b"
    *_, flaky, last = capsys.readouterr().out.splitlines()
    assert flaky.startswith("flaky: 1 ") and "b (not in docs/flaky.md)" in flaky
    assert last.startswith("2 tests run")


def test_the_last_line_counts_what_passed_in_the_end(suites):
    for before, after in [
        (
            "Summary [1s] 3 tests run: 2 passed, 1 failed, 1 skipped",
            "Summary [1s] 3 tests run: 3 passed (1 flaky), 1 skipped",
        ),
        ("1 failed, 561 passed, 2 skipped in 9.1s", "562 passed (1 flaky), 2 skipped in 9.1s"),
        ("# node-app: tests 3, pass 2, fail 1, skipped 0", "# node-app: tests 3, pass 3 (1 flaky), fail 0, skipped 0"),
    ]:
        assert suites.with_flaky(before, 1, 1) == after


def test_what_fails_only_the_second_time_is_flaky_too(suites, monkeypatch):
    first = [("a", "passed", False), ("b", "failed", False)]
    suite = Scripted(suites, first, [("a", "failed", False), ("b", "passed", False)])
    assert main(suites, monkeypatch, suite) == 0
    assert {json.loads(line)["test"] for line in suites.FLAKY.read_text().splitlines()} == {"a", "b"}


def test_what_fails_twice_fails(suites, monkeypatch):
    failing = [("a", "passed", False), ("b", "failed", False)]
    assert main(suites, monkeypatch, Scripted(suites, failing, failing)) == 1
    assert not suites.FLAKY.exists()


def test_a_crash_is_never_tried_again(suites, monkeypatch):
    suite = Scripted(suites, [("a", "failed", False), ("b", "failed", True)])
    assert main(suites, monkeypatch, suite) == 1
    assert suite.asked == [None]
    # Neither is one that shows the second time only.
    again = [("a", "passed", False), ("b", "failed", True)]
    suite = Scripted(suites, [("a", "failed", False), ("b", "passed", False)], again)
    assert main(suites, monkeypatch, suite) == 1


def test_an_example_that_fails_fails_the_suite_though_every_test_passes_again(suites, monkeypatch, capfd):
    monkeypatch.setattr(suites.Examples, "COMMAND", [sys.executable, "-c", "print('x' * 200_000); exit(3)"])
    [failed] = suites.Examples({}).failed()
    assert failed.result == "failed" and failed.final and "3" in failed.why
    assert capfd.readouterr().out.count("x") == 200_000, "all that it said, more than a pipe holds"
    assert sys.executable in suites.Cargo([]).replay(failed)
    monkeypatch.setattr(suites.Examples, "COMMAND", [sys.executable, "-c", ""])
    assert suites.Examples({}).failed() == []


def test_many_failures_are_no_accident(suites, monkeypatch):
    suite = Scripted(suites, [(f"t{i}", "failed", False) for i in range(suites.MOST_RETRIED + 1)])
    assert main(suites, monkeypatch, suite) == 1
    assert suite.asked == [None]


def test_fewer_tests_and_other_skips_are_noticed(suites):
    expected = {"run": 3, "ignored": 1, "may-skip": ["c"], "without": {"amx": 2}}
    good = {"run": 2, "ignored": 1, "skipped": ["c"], "without": {"amx": 2}}
    assert suites.miscounts("s", good, expected) == []
    assert suites.miscounts("s", {**good, "run": 5, "skipped": []}, expected) == []
    for change in [
        {"run": 1},
        {"skipped": []},
        {"skipped": ["c", "d"]},
        {"ignored": 2},
        {"without": {"amx": 3}},
        {"without": {"redis": 1}},
    ]:
        assert suites.miscounts("s", {**good, **change}, expected), change
    assert suites.miscounts("s", good, None) == ["tests/expected.toml has no [s]"]


def test_what_the_machine_is_known_to_lack_is_no_miscount(suites, monkeypatch):
    monkeypatch.setattr(suites, "makes_namespaces", lambda: False)
    monkeypatch.setattr(suites.platform, "system", lambda: "Linux")
    monkeypatch.setattr(suites.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("UPDATE_EXPECTED", raising=False)
    suites.EXPECTED.write_text("[scripted]\nrun = 1\n")
    count = lambda need: suites.count(
        Scripted(suites), suites.Run([suites.Outcome("a", "g", "passed", lacks={need})], 0)
    )
    assert "namespaces" not in suites.required() and count("namespaces") == []
    for need in ("users", "ipv6", "cubic", "model"):
        assert count(need) == [f"1 tests were skipped for want of {need}, 0 may be"]
    # A test that is skipped although the machine has it is counted.
    monkeypatch.setattr(suites, "makes_namespaces", lambda: True)
    assert "namespaces" in suites.required() and count("namespaces")
    monkeypatch.setenv("UPDATE_EXPECTED", "1")
    count("namespaces")
    assert "namespaces" not in suites.EXPECTED.read_text(), "it differs from machine to machine"


def test_what_was_counted_is_written_and_expected_then(suites, monkeypatch):
    outcomes = [suites.Outcome("a", "g", "passed", lacks={"amx"}), suites.Outcome("b", "g", "skipped", "no nginx")]
    run = suites.Run(outcomes, 0, ignored=2)
    suite = Scripted(suites)
    suites.EXPECTED.write_text("# A head.\n")
    monkeypatch.setenv("UPDATE_EXPECTED", "1")
    assert suites.count(suite, run) == []
    assert suites.EXPECTED.read_text().startswith("# A head.\n\n[scripted]\nrun = 2\nignored = 2\n")
    monkeypatch.delenv("UPDATE_EXPECTED")
    monkeypatch.setattr(suites.platform, "system", lambda: "Linux")
    monkeypatch.setattr(suites.platform, "machine", lambda: "x86_64")
    assert suites.count(suite, run) == []
    assert suites.count(suite, suites.Run(outcomes[1:], 0))


@pytest.mark.skipif(not tomllib, reason="Python has no tomllib")
def test_what_is_expected_is_written_down_of_every_suite(monkeypatch):
    names = set()
    for tests in ("", "all"):
        monkeypatch.setenv("LOQUENT_TESTS", tests)
        module = load(monkeypatch)
        names |= {module.suite_of(name, []).name for name in module.SUITES}
    expected = tomllib.loads((ROOT / "tests/expected.toml").read_text())
    assert names == expected.keys()
    usual, whole = expected["pytest"], expected["pytest-all"]
    assert usual["run"] < whole["run"] and set(usual["may-skip"]) <= set(whole["may-skip"])


NEXTEST = """<testsuites><testsuite name="toy">
  <testcase name="exits"><failure type="test failure with exit code 3"/></testcase>
  <testcase name="aborts"><failure message="process aborted with signal 6" type="test abort">x</failure></testcase>
  <testcase name="asserts"><failure message="panicked" type="test failure with exit code 101">x</failure></testcase>
  <testcase name="hangs"><failure type="test timeout"/></testcase>
  <testcase name="skips"><system-err>running 1 test
skipped: needs amx: this processor lacks AMX
</system-err></testcase>
</testsuite></testsuites>"""


def test_only_a_panic_of_a_rust_test_may_be_tried_again(suites, tmp_path):
    report = tmp_path / "junit.xml"
    report.write_text(NEXTEST)
    found = {one.name: one for one in suites.Cargo([]).read(report)}
    assert {name for name, one in found.items() if one.final} == {"toy exits", "toy aborts", "toy hangs"}
    assert found["toy asserts"].result == "failed" and found["toy skips"].result == "passed"
    assert found["toy skips"].lacks == {"amx"}


def test_a_python_test_that_hangs_may_not_be_tried_again(suites, tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    source = "import time\ndef test_asserts(): assert 1 == 2\ndef test_hangs(): time.sleep(60)\n"
    (tmp_path / "tests/test_toy.py").write_text(source)
    (tmp_path / "tests/pytest.ini").write_text("[pytest]\ntimeout = 1\n")
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    monkeypatch.setattr(suites.Pytest, "SUITES", ["tests"])
    monkeypatch.setattr(suites.Pytest, "PYTHON", sys.executable)
    found = {one.name: one for one in suites.Pytest([]).run().outcomes}
    asserts, hangs = found["tests/test_toy.py::test_asserts"], found["tests/test_toy.py::test_hangs"]
    assert (asserts.result, asserts.final) == ("failed", False)
    assert (hangs.result, hangs.final) == ("failed", True)


@pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")
def test_a_file_of_node_that_crashes_may_not_be_tried_again(suites, tmp_path):
    head = 'import test from "node:test";\n'
    (tmp_path / "asserts.test.mjs").write_text(head + 'test("one", () => { throw new Error("no"); });\n')
    (tmp_path / "crashes.test.mjs").write_text(head + 'test("two", () => process.kill(process.pid, "SIGSEGV"));\n')
    (tmp_path / "skips.test.mjs").write_text(head + 'test("three", { skip: "no browser" }, () => {});\n')
    found = {one.group: one for one in suites.Node("node-toy", tmp_path, "*.test.mjs").run().outcomes}
    told = {group: (one.result, one.final) for group, one in found.items()}
    assert told == {
        "asserts.test.mjs": ("failed", False),
        "crashes.test.mjs": ("failed", True),
        "skips.test.mjs": ("skipped", False),
    }
