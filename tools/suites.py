#!/usr/bin/env python3
"""Runs a suite of tests: `tools/suites.py cargo|pytest|node-e2e|node-client|node-app [ARGS]`.

In CI (CI=true) tests that failed by an assertion are run once more, beside the other tests of their
binary or file; one that passes then is flaky: it is written to target/flaky.jsonl and named at the
end. A crash, a signal or a test that ran out of time is never run again. Also in CI, the tests that
ran and those that were skipped are held against tests/expected.toml; UPDATE_EXPECTED=1 writes it.
"""

import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10: nothing is counted
    tomllib = None

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
EXPECTED = ROOT / "tests/expected.toml"
FLAKY = TARGET / "flaky.jsonl"
KNOWN_FLAKY = ROOT / "docs/flaky.md"
IS_CI = os.environ.get("CI") == "true"
# `make test-all`: also the tests that are slow and rarely find what the others do not.
IS_ALL = os.environ.get("LOQUENT_TESTS") == "all"
# More failures than this are no accident.
MOST_RETRIED = 5
PROCESSORS = os.cpu_count() or 2


@dataclass
class Outcome:
    """What became of one test."""

    name: str
    group: str  # what it is run with: a binary or a file
    result: str  # "passed", "failed" or "skipped"
    why: str = ""
    # Failed in a way that is never tried again: a crash, a signal, no end.
    final: bool = False
    lacks: set[str] = field(default_factory=set)  # what its machine lacks, though it passed


@dataclass
class Run:
    """One run of a suite, or of some of its groups."""

    outcomes: list[Outcome]
    code: int
    summary: str = ""  # the line that the runner ends with
    ignored: int = 0

    def failed(self):
        return [one for one in self.outcomes if one.result == "failed"]


def execute(command, is_summary=None, **kwargs):
    """Runs a command and shows what it says; returns its exit status and its last summary line."""
    summary = ""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        if is_summary and is_summary.search(line):
            summary = line.rstrip("\n")
    return process.wait(), summary


def fresh(path):
    """A file that only the coming run writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def seed_of_tree():
    """Returns a seed that only a commit's Rust code decides, so that a run of the same code repeats it."""
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD:crates"]
    tree = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return int(tree[:8], 16) if tree else random.getrandbits(32)


class Examples:
    """The examples in the documentation, beside the tests; what they say is shown once they have ended."""

    GROUP = "documentation"
    COMMAND = ["cargo", "test", "--workspace", "--locked", "--doc", "--quiet"]

    def __init__(self, env):
        # A file, not a pipe: a full pipe would block Cargo, which may hold the lock that the tests' build waits for.
        self.said = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.COMMAND, stdout=self.said, stderr=subprocess.STDOUT, env=env)

    def failed(self):
        """Waits for their end; returns those that failed, as one outcome."""
        code = self.process.wait()
        with self.said:
            self.said.seek(0)
            print(self.said.read().decode(errors="replace"), end="", flush=True)
        if code == 0:
            return []
        return [Outcome(f"{self.GROUP} examples", self.GROUP, "failed", f"exit status {code}", final=True)]


class Cargo:
    """The Rust tests, by cargo-nextest, and the examples in the documentation."""

    name = "cargo"
    LACKS = re.compile(r"^skipped: needs ([a-z0-9-]+):", re.MULTILINE)
    SUMMARY = re.compile(r"^\s*Summary \[")
    # What a failed assertion, and any other panic, ends a test's process with.
    PANICKED = "test failure with exit code 101"

    def __init__(self, args):
        self.args = args
        self.env = {**os.environ, "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"}
        # In CI, other cases for each change; elsewhere those of .cargo/config.toml.
        if IS_CI:
            for name in ("PROPTEST_RNG_SEED", "LOQUENT_WORLD_SEED"):
                self.env.setdefault(name, str(seed_of_tree()))
            self.env.setdefault("LOQUENT_REQUIRE", ",".join(required()))
            print(f"LOQUENT_REQUIRE={self.env['LOQUENT_REQUIRE']}", flush=True)
        self.seed = self.env.get("PROPTEST_RNG_SEED")
        if self.seed:
            print(f"property tests: PROPTEST_RNG_SEED={self.seed}", flush=True)

    def run(self, groups=None):
        if not shutil.which("cargo-nextest", path=self.env["PATH"]):
            sys.exit("Missing on this machine: cargo-nextest (run tools/setup test)")
        profile = "ci" if IS_CI else "default"
        # Where .config/nextest.toml puts it, whatever CARGO_TARGET_DIR is.
        report = fresh(ROOT / "target/nextest" / profile / "junit.xml")
        command = ["cargo", "nextest", "run", "--profile", profile, "--workspace", "--locked"]
        # The examples are built by `make lint`.
        command += ["--lib", "--bins", "--tests", *self.args]
        # Many wait for a time-out or for another process: more than one to a processor.
        command += ["--test-threads", str(PROCESSORS * 2)]
        if groups is not None:
            command += ["-E", " | ".join(f"binary_id(={group})" for group in groups)]
        examples = Examples(self.env) if groups is None and not self.args else None
        code, summary = execute(command, self.SUMMARY, env=self.env)
        outcomes = self.read(report) if report.exists() else []
        if examples:
            outcomes += examples.failed()
        ignored = re.search(r"(\d+) skipped", summary)
        return Run(outcomes, code, summary, int(ignored[1]) if ignored else 0)

    def read(self, report):
        suites = ElementTree.parse(report).getroot().iter("testsuite")
        return [self.outcome(suite.get("name"), case) for suite in suites for case in suite.iter("testcase")]

    def outcome(self, group, case):
        name = f"{group} {case.get('name')}"
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        if failure is None:
            said = "".join(case.findtext(stream) or "" for stream in ("system-out", "system-err"))
            return Outcome(name, group, "passed", lacks=set(self.LACKS.findall(said)))
        kind = failure.get("type") or "?"
        why = failure.get("message") or kind
        return Outcome(name, group, "failed", why, final=kind != self.PANICKED)

    def replay(self, outcome):
        if outcome.group == Examples.GROUP:
            return " ".join(["tools/with-cpu-env", *Examples.COMMAND])
        _, name = outcome.name.split(" ", 1)
        seed = f"PROPTEST_RNG_SEED={self.seed} " if self.seed else ""
        binary = f"binary_id(={outcome.group}) & test(={name})"
        return f"{seed}tools/with-cpu-env tools/test-rust -E '{binary}'"


class Pytest:
    """The end-to-end tests in Python, three files at a time for each processor: most wait for a network."""

    name = "pytest-all" if IS_ALL else "pytest"
    SUITES = ["tests/e2e", "tests/interop", "tests/dist", "tests/bench", "tests/probe", "tests/chaos"]
    PYTHON = str(ROOT / ".venv/bin/python")
    SUMMARY = re.compile(r"^(=+ )?\d+ (passed|failed|skipped).* in [\d.:]+")
    FINAL = re.compile(r"Timeout \(?>|crashed while running|Crashed|INTERNALERROR")

    def __init__(self, args):
        self.args = args

    def run(self, groups=None):
        report = fresh(TARGET / "tests/pytest.xml")
        command = [self.PYTHON, "-m", "pytest", "-q", f"--junitxml={report}"]
        command += ["-n", str(PROCESSORS * 3), "--dist", "loadfile", *(groups or self.SUITES), *self.args]
        if not IS_ALL:
            command += ["-m", "not thorough"]
        code, summary = execute(command, self.SUMMARY, cwd=ROOT)
        cases = ElementTree.parse(report).getroot().iter("testcase") if report.exists() else []
        return Run([self.outcome(case) for case in cases], code, summary)

    @staticmethod
    def file_of(classname):
        """`e2e.test_http.TestX` is in tests/e2e/test_http.py."""
        parts = classname.split(".")
        for length in range(len(parts), 0, -1):
            path = "/".join(["tests", *parts[:length]]) + ".py"
            if (ROOT / path).exists():
                return path
        return classname

    def outcome(self, case):
        group = self.file_of(case.get("classname") or "")
        name = f"{group}::{case.get('name')}"
        for kind in ("failure", "error"):
            if (failure := case.find(kind)) is not None:
                why = failure.get("message") or kind
                return Outcome(name, group, "failed", why, final=bool(self.FINAL.search(why)))
        if (skipped := case.find("skipped")) is not None:
            return Outcome(name, group, "skipped", skipped.get("message") or "")
        return Outcome(name, group, "passed")

    def replay(self, outcome):
        return f"tools/e2e -k '{outcome.name.split('::')[-1]}'"


class Node:
    """Tests of node's own runner, two files at a time for each processor."""

    SUMMARY = re.compile(r"^# (tests|pass|fail|skipped) \d+")

    def __init__(self, name, folder, pattern, prepare=None):
        self.name, self.folder, self.pattern, self.prepare = name, ROOT / folder, pattern, prepare

    def run(self, groups=None):
        if not shutil.which("node"):
            return Run([Outcome(self.name, self.name, "skipped", "node is not installed")], 0)
        if self.prepare and groups is None:
            code, _ = execute(self.prepare, cwd=self.folder)
            if code:
                return Run([], code)
        report = fresh(TARGET / f"tests/{self.name}.jsonl")
        files = groups or sorted(str(file.relative_to(self.folder)) for file in self.folder.glob(self.pattern))
        # The limit is one for each file, too: the chat page's tests take half of it on a slow machine.
        command = ["node", "--test", "--test-timeout=600000", f"--test-concurrency={PROCESSORS * 2}"]
        command += ["--test-reporter=tap", "--test-reporter-destination=stdout"]
        command += [f"--test-reporter={ROOT}/tests/e2e/outcomes.mjs", f"--test-reporter-destination={report}"]
        code, _ = execute([*command, *files], cwd=self.folder)
        lines = report.read_text().splitlines() if report.exists() else []
        outcomes = [self.outcome(json.loads(line)) for line in lines]
        count = {result: sum(one.result == result for one in outcomes) for result in ("passed", "failed", "skipped")}
        summary = f"# {self.name}: tests {len(outcomes)}, pass {count['passed']}, "
        return Run(outcomes, code, summary + f"fail {count['failed']}, skipped {count['skipped']}")

    def outcome(self, told):
        group = os.path.relpath(told["file"], self.folder)
        name = f"{group} {told['name']}"
        return Outcome(name, group, told["result"], told["why"], told["final"])

    def replay(self, outcome):
        return f"node --test {self.folder.relative_to(ROOT)}/{outcome.group}"


SUITES = {
    "cargo": Cargo,
    "pytest": Pytest,
    "node-e2e": lambda args: Node("node-e2e", "tests/e2e", "*.test.mjs"),
    "node-client": lambda args: Node("node-client", "web/client", "test/*.test.mjs", ["node_modules/.bin/tsc"]),
    "node-app": lambda args: Node("node-app", "web/app", "test/*.test.mjs", ["node_modules/.bin/tsc"]),
}


def suite_of(name, args):
    if name not in SUITES:
        sys.exit(__doc__)
    return SUITES[name](args)


def checkable():
    """What tests may need that can be looked for from here; each with whether it is there, or has to be."""
    is_linux = platform.system() == "Linux"
    flags = set(re.findall(r"\S+", Path("/proc/cpuinfo").read_text())) if is_linux else set()
    has_avx2 = {"avx2", "fma", "f16c"} <= flags
    return {
        # What tools/setup installs.
        "model": True,
        "redis": True,
        "loopback": is_linux,
        "dev-full": is_linux,
        "avx2": has_avx2,
        "avx-vnni": has_avx2 and "avx_vnni" in flags,
        "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "f16c"} <= flags,
        "namespaces": is_linux and makes_namespaces(),
    }


def makes_namespaces():
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists() or not shutil.which("unshare"):
        return False
    pair = ["unshare", "--net", "ip", "link", "add", "name", "v1", "type", "veth", "peer", "name", "v2"]
    return subprocess.run(pair, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def required():
    """What tests may not lack in CI: what tools/setup installs, and what this machine has."""
    return [need for need, has in checkable().items() if has]


def retry(suite, first):
    """Runs once more what failed by an assertion, beside the tests of the same groups.

    Returns what has failed all the same, and what is flaky: what passed in one run and failed in the other.
    """
    failed = first.failed()
    groups = sorted({one.group for one in failed})
    print(f"once more, with the tests beside them: {', '.join(one.name for one in failed)}", flush=True)
    second = {one.name: one for one in suite.run(groups).outcomes}
    names = {one.name for one in failed}
    still = [one for one in failed if one.name not in second or second[one.name].result != "passed"]
    crashed = [one for one in second.values() if one.final and one.name not in names]
    newly = [one for one in second.values() if one.result == "failed" and not one.final and one.name not in names]
    return still + crashed, [one for one in failed if one not in still] + newly


def note_flaky(suite, flaky):
    """Writes tests that passed once and failed once to the list of them; returns the line that names them."""
    known = KNOWN_FLAKY.read_text() if KNOWN_FLAKY.exists() else ""
    FLAKY.parent.mkdir(parents=True, exist_ok=True)
    with FLAKY.open("a") as lines:
        for one in flaky:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            told = {"suite": suite.name, "test": one.name, "why": one.why[:2000], "at": now}
            lines.write(json.dumps({**told, "known": one.name in known}) + "\n")
    names = ", ".join(one.name + ("" if one.name in known else " (not in docs/flaky.md)") for one in flaky)
    return f"flaky: {len(flaky)} passed in one of two runs (target/flaky.jsonl): {names}"


def counted(run):
    """What tests/expected.toml says of a run."""
    ran = [one for one in run.outcomes if one.result != "skipped"]
    lacks = {}
    for one in ran:
        for need in one.lacks:
            lacks[need] = lacks.get(need, 0) + 1
    skipped = sorted(one.name for one in run.outcomes if one.result == "skipped")
    return {"run": len(ran), "ignored": run.ignored, "skipped": skipped, "without": lacks}


def miscounts(name, found, expected, absent=()):
    """How a run differs from what is expected of it, to the worse; `absent`: what this machine is known to lack."""
    if expected is None:
        return [f"tests/expected.toml has no [{name}]"]
    wrong = []
    may_skip = set(expected.get("may-skip", []))
    # A test that may be skipped is counted among those that run, or is skipped.
    excused = sum(one in may_skip for one in found["skipped"])
    if found["run"] + excused < expected["run"]:
        wrong.append(f"{found['run']} tests ran, {excused} were rightly skipped; {expected['run']} are expected")
    if found["ignored"] > expected.get("ignored", 0):
        wrong.append(f"{found['ignored']} tests are ignored, {expected.get('ignored', 0)} may be")
    wrong += [f"skipped: {one}" for one in found["skipped"] if one not in may_skip]
    for need, count in found["without"].items():
        most = expected.get("without", {}).get(need, 0)
        # On a machine that has it, LOQUENT_REQUIRE makes these tests fail.
        if count > most and need not in absent:
            wrong.append(f"{count} tests were skipped for want of {need}, {most} may be")
    return wrong


def update(name, found, expected):
    """Writes what was found of a suite into tests/expected.toml, and keeps what else may be skipped elsewhere."""
    whole = tomllib.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    may_skip = sorted({*(expected or {}).get("may-skip", []), *found["skipped"]})
    without, known = {**(expected or {}).get("without", {})}, checkable()
    for need, count in found["without"].items():
        if need not in known:
            without[need] = max(count, without.get(need, 0))
    run = found["run"] + len(found["skipped"])
    whole[name] = {"run": run, "ignored": found["ignored"], "may-skip": may_skip, "without": without}
    lines = EXPECTED.read_text().splitlines(True) if EXPECTED.exists() else []
    head = "".join(line for line in lines if line.startswith("#"))
    EXPECTED.write_text(head + "".join(section(suite, told) for suite, told in sorted(whole.items())))


def section(suite, told):
    """What tests/expected.toml says of one suite."""
    text = f"\n[{suite}]\nrun = {told['run']}\n"
    if told.get("ignored"):
        text += f"ignored = {told['ignored']}\n"
    if told.get("may-skip"):
        text += "may-skip = [\n" + "".join(f"    {json.dumps(one)},\n" for one in told["may-skip"]) + "]\n"
    if told.get("without"):
        pairs = ", ".join(f"{need} = {count}" for need, count in sorted(told["without"].items()))
        text += f"without = {{ {pairs} }}\n"
    return text


def count(suite, run):
    """Holds a whole run against what is expected; returns what is wrong."""
    if tomllib is None:
        return []
    expected = tomllib.loads(EXPECTED.read_text()).get(suite.name) if EXPECTED.exists() else None
    found = counted(run)
    if os.environ.get("UPDATE_EXPECTED"):
        update(suite.name, found, expected)
        return []
    lacks = ", ".join(f"{need} ({count})" for need, count in sorted(found["without"].items()))
    if lacks:
        print(f"tests that this machine lacks something for: {lacks}")
    if not IS_CI or platform.system() != "Linux" or platform.machine() != "x86_64":
        return []
    absent = {need for need, has in checkable().items() if not has}
    return miscounts(suite.name, found, expected, absent)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    suite = suite_of(sys.argv[1], sys.argv[2:])
    is_whole = not sys.argv[2:]
    run = suite.run()
    failed, flaky = run.failed(), []
    if run.code and not failed:
        # It was not built, not found, or ended in a way that names no test.
        sys.exit(run.code)
    can_retry = IS_CI and 0 < len(failed) <= MOST_RETRIED and not any(one.final for one in failed)
    if can_retry:
        failed, flaky = retry(suite, run)
    wrong = count(suite, run) if is_whole else []
    for one in failed:
        print(f"failed: {one.name}: {one.why.splitlines()[0] if one.why else '?'}\n    {suite.replay(one)}")
    for one in wrong:
        print(f"{suite.name}: {one}")
    if wrong:
        verb = "test-all" if IS_ALL else "test"
        print(f"If that is meant: UPDATE_EXPECTED=1 make {verb} writes tests/expected.toml; say why in the commit.")
    if flaky:
        print(note_flaky(suite, flaky))
    if flaky and not failed:
        run.summary = with_flaky(run.summary, len(run.failed()), len(flaky))
    print(run.summary, flush=True)
    sys.exit(1 if failed or wrong else 0)


def with_flaky(summary, recovered, flaky):
    """The runner's last line once all that failed has passed the second time, in the runner's own words."""
    for failed in (r"\b\d+ failed, ", r", \d+ failed\b"):  # nextest's and pytest's
        summary = re.sub(failed, "", summary, count=1)
    summary = re.sub(r"fail \d+", "fail 0", summary)  # node's
    passed = re.compile(r"(\d+) passed|pass (\d+)")

    def more(found):
        number = found[1] or found[2]
        return found[0].replace(number, str(int(number) + recovered)) + f" ({flaky} flaky)"

    return passed.sub(more, summary, count=1)


if __name__ == "__main__":
    main()
