"""bench/results.py: one chain from README's figures over the records to the commit that was measured."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("results", ROOT / "bench/results.py")
results = importlib.util.module_from_spec(spec)
path_before = list(sys.path)
spec.loader.exec_module(results)
sys.path[:] = path_before
plot = results.plot
history, machine, measured, page, tables = (results.history, results.machine, results.measured, results.page,
                                            results.tables)
peer_runs = results.peer_runs


def test_what_is_generated_is_that_of_the_records():
    problems = [problem for problem in results.check() if problem not in results.check_history()]
    assert not problems, problems


def test_the_history_has_the_commit_or_the_tree_of_every_record():
    if history.is_shallow(ROOT) and os.environ.get("CI") != "true":
        pytest.skip("the history is not all here")
    assert not results.check_history()


def commits_that_are_not_here(folder):
    """The commits that documentation and plans in `folder` name and that HEAD does not descend from."""
    pages = [folder / "README.md", *folder.glob("docs/**/*.md"), *folder.glob("plans/**/*.toml")]
    named = {commit for page in pages for commit in re.findall(r"commit `?([0-9a-f]{7,40})\b", page.read_text())}
    is_here = lambda commit: subprocess.run(["git", "merge-base", "--is-ancestor", commit, "HEAD"], cwd=folder,
                                            capture_output=True).returncode == 0
    return sorted(commit for commit in named if not is_here(commit))


def test_the_history_has_every_commit_that_a_page_or_a_plan_names():
    if history.is_shallow(ROOT) and os.environ.get("CI") != "true":
        pytest.skip("the history is not all here")
    assert commits_that_are_not_here(ROOT) == []


def git(repo, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=repo, check=True, capture_output=True, text=True).stdout.strip()


#: Two benches in place of all: what they print is in a file each.
FAKE_BENCHES = """
BENCHES = {
    "stage15": Bench("fake", 1, QWEN, "{loquent} stage15 {models}"),
    "upstreams": Bench("fake", 1, SIMULATED, "{loquent} upstreams", fails_on_miss=True),
}
"""
#: A binary of its own version that prints a bench's file, and ends with the status in another.
FAKE_LOQUENT = """#!/bin/sh
[ "$1" != --version ] || { echo "loquent 1.2.3"; exit; }
here=$(dirname "$0")
cat "$here/$1.out"
echo "model $2 is broken" >&2
exit "$(cat "$here/$1.status" 2>/dev/null || echo 0)"
"""
COMPARED = """| measure | llama-server | Loquent | ratio [least, most] | target |
| --- | --- | --- | --- | --- |
| completion tokens/s | 100.0 | {ours} | {ratio} [{ratio}, {ratio}] | >= 1.07 |
runs: {{"completion tokens/s": {{"llama-server": [100.0], "loquent": [{ours}]}}}}
"""
UPSTREAMS = """3 runs of `loquent bench load`
| 48 streams over three servers | tokens/s | ratio | target |
| --- | --- | --- | --- |
| one of 48 through Loquent | 1408 | 1.007 | >= 0.97 |
"""


class Copy:
    """A repository of its own with the scripts and pages of this one, two fake benches, and no records."""

    def __init__(self, folder):
        self.root, self.out = folder / "copy", folder / "bin"
        shutil.copytree(ROOT / "bench", self.root / "bench", ignore=shutil.ignore_patterns("out", "__pycache__", "*.json"))
        (self.root / "docs/img").mkdir(parents=True)
        (self.root / ".gitignore").write_text("__pycache__\n")
        shutil.copy(ROOT / "README.md", self.root)
        with (self.root / "bench/records/benches.py").open("a") as file:
            file.write(FAKE_BENCHES)
        self.out.mkdir()
        self.binary, self.source = self.out / "loquent", folder / "main.rs"
        self.source.write_text("fn main() {}\n")
        self.binary.write_text(FAKE_LOQUENT)
        self.binary.chmod(0o755)
        (self.out / "loquent.d").write_text(f"{self.binary}: {self.source}\n")
        os.utime(self.source, (1, 1))
        self.prints("stage15", COMPARED.format(ours=300.0, ratio=3.0))
        self.prints("upstreams", UPSTREAMS)
        git(self.root, "init", "-q")
        assert self.results("--render").returncode == 0
        self.commit("first")

    def commit(self, message):
        git(self.root, "add", "-A")
        git(self.root, "commit", "-q", "--allow-empty", "-m", message)
        return git(self.root, "rev-parse", "HEAD")

    def prints(self, bench, text, status=0):
        (self.out / f"{bench}.out").write_text(text)
        (self.out / f"{bench}.status").write_text(str(status))

    def results(self, *words):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        return subprocess.run([sys.executable, self.root / "bench/results.py", *words], capture_output=True, text=True,
                              cwd=self.root, env=environment)

    def measure(self, *words):
        return self.results("--busy", "--loquent", str(self.binary), "--models", str(self.out), *words)

    def check(self):
        done = self.results("--check")
        assert done.returncode in (0, 1), done.stderr
        assert (done.returncode == 0) == ("All that is generated" in done.stdout)
        return done.stdout if done.returncode else ""

    def record(self, bench="stage15"):
        return json.loads((self.root / f"bench/results/{bench}.json").read_text())

    def rewrite(self, bench="stage15", **changes):
        path = self.root / f"bench/results/{bench}.json"
        path.write_text(json.dumps({**self.record(bench), **changes}))

    def text(self, path):
        return (self.root / path).read_text()


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path)


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_record_holds_what_was_measured_on_what_and_the_pages_follow(copy):
    done = copy.measure()
    assert done.returncode == 0, done.stderr
    kept = copy.record()
    assert set(kept) == results.FIELDS and kept["outcome"] == "reached" and kept["cause"] is None
    assert kept["commit"] == git(copy.root, "rev-parse", "HEAD") and kept["tree"] == git(copy.root, "rev-parse", "HEAD^{tree}")
    assert kept["runs"] == [{"completion tokens/s": {"llama-server": [100.0], "loquent": [300.0]}}]
    assert kept["command"] == "loquent stage15 MODELS" and kept["binary"]["version"] == "loquent 1.2.3"
    assert kept["machine"]["kernel"] and "rust" in kept["machine"]["compilers"] and "family" in kept["machine"]
    assert kept["load"]["allowed"] and {"busy", "others_percent", "steal_percent"} <= set(kept["load"])
    assert "| completion tokens/s | 100.0 | 300.0 | 3.0 [3.0, 3.0] | >= 1.07 |" in copy.text("bench/RESULTS.md")
    assert "3 runs of `loquent bench load`\n\n| 48 streams" in copy.text("bench/RESULTS.md")
    assert "3.0 [3.0, 3.0] times llama-server's" in copy.text("README.md")
    # What was simulated says so in its row.
    assert "| simulated engine | upstreams |" in copy.text("README.md")
    assert "[1 of 2] stage15" in done.stderr and "[2 of 2] upstreams" in done.stderr
    assert copy.check() == ""


def test_readme_says_of_how_many_commits_its_rows_are(copy):
    copy.measure()
    assert "the rows are of the build of one commit." in " ".join(copy.text("README.md").split())
    copy.rewrite(commit="0" * 40)
    copy.results("--render")
    assert "the rows are of builds of 2 commits." in " ".join(copy.text("README.md").split())


def test_what_was_measured_on_a_busy_machine_says_so_in_its_row(copy):
    copy.measure()
    for busy in (True, False):
        for bench in ("stage15", "upstreams"):
            copy.rewrite(bench, load={**copy.record(bench)["load"], "busy": busy})
        copy.results("--render")
        assert ("| 1.007 (on a busy machine) | simulated engine |" in copy.text("README.md")) == busy
        assert ("**The machine was busy**" in copy.text("bench/RESULTS.md")) == busy
        assert ("| reached, on a busy machine |" in copy.text("bench/RESULTS.md")) == busy


def test_no_path_of_this_machine_is_recorded(copy, tmp_path):
    copy.prints("stage15", f"read {tmp_path}/bin/loquent and {copy.root}/bench\n" + COMPARED.format(ours=1.0, ratio=1.0), 3)
    copy.measure()
    text = copy.text("bench/results/stage15.json")
    assert str(tmp_path) not in text and str(pathlib.Path.home()) + "/" not in text
    assert copy.record()["captions"] == ["read loquent and bench"]


def test_a_planted_figure_is_found_wherever_it_stands(copy):
    copy.measure()
    for path, old, new in [("README.md", "3.0 [3.0, 3.0] times", "4.0 [3.0, 4.0] times"),
                           ("README.md", "kernels and has their speed.", "kernels, at 1.1 times their speed."),
                           ("README.md", "3.0 times as fast](#how-fast)", "3.5 times as fast](#how-fast)") if
                           "3.0 times as fast" in copy.text("README.md") else ("README.md", "<!-- times -->", "<!-- times -->2.0"),
                           ("bench/RESULTS.md", "| 300.0 |", "| 310.0 |"),
                           ("bench/RESULTS.md", "## Targets", "By hand: 12 times.\n\n## Targets"),
                           ("docs/img/llama-server-ratios.svg", "3.00 (more", "3.10 (more")]:
        before = copy.text(path)
        replace(copy.root / path, old, new)
        assert f"{path} is not what the records say" in copy.check(), new
        (copy.root / path).write_text(before)
    assert copy.check() == ""


def test_a_record_of_a_commit_that_no_history_has_is_found(copy):
    copy.measure()
    copy.rewrite(commit="d7406f7aa" + "0" * 31, tree="1" * 40)
    copy.results("--render")
    assert "stage15: its commit d7406f7aa is no ancestor of HEAD" in copy.check()
    # The tree alone is enough: it stays what it is where commits are landed as others.
    copy.rewrite(commit="d7406f7aa" + "0" * 31, tree=git(copy.root, "rev-parse", "HEAD^{tree}"))
    copy.results("--render")
    assert copy.check() == ""


def test_a_commit_that_a_page_names_is_looked_for(copy):
    here = git(copy.root, "rev-parse", "--short=9", "HEAD")
    (copy.root / "docs/page.md").write_text(f"Measured at commit {here}, and at commit `6ec9759c4`.\n")
    assert commits_that_are_not_here(copy.root) == ["6ec9759c4"]


def test_a_record_of_another_script_has_its_commit_looked_for_too(copy):
    simulated = copy.root / "bench/sim.json"
    simulated.write_text(json.dumps({"commit": git(copy.root, "rev-parse", "HEAD"), "tree": None}))
    assert copy.check() == ""
    simulated.write_text(json.dumps({"commit": "0" * 40, "tree": "0" * 40}))
    assert "sim: its commit 000000000 is no ancestor" in copy.check()
    folder = copy.root / "bench/results"
    folder.mkdir(exist_ok=True)
    (folder / "other.json").write_text("{}")
    assert "bench/results/other.json is the record of no bench" in copy.check()


def test_a_shallow_history_is_no_proof(copy, tmp_path):
    copy.measure()
    copy.commit("records")
    copy.commit("more")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{copy.root}", str(shallow))
    assert history.is_shallow(shallow) and not history.is_shallow(copy.root)
    assert history.is_shallow(tmp_path), "no repository at all"


def test_a_failing_bench_replaces_the_success_before_it(copy):
    copy.measure()
    copy.prints("stage15", COMPARED.format(ours=900.0, ratio=9.0), status=3)
    done = copy.measure("--only", "stage15", "--force")
    kept = copy.record()
    assert done.returncode == 1 and "missed: stage15 failed" in done.stderr
    assert kept["outcome"] == "failed" and "exit status 3" in kept["cause"] and "model MODELS is broken" in kept["cause"]
    assert "**Failed**" in copy.text("bench/RESULTS.md") and "| **failed** |" in copy.text("bench/RESULTS.md")
    assert "times llama-server's" not in copy.text("README.md") and copy.check() == ""
    # It has no figures, so that it runs again without being told.
    assert "has a record" not in copy.measure("--only", "stage15").stderr


def test_a_bench_without_a_table_has_failed(copy):
    copy.prints("stage15", "nothing of use\n")
    assert copy.measure("--only", "stage15").returncode == 1
    assert copy.record()["outcome"] == "failed" and "no table" in copy.record()["cause"]


def test_a_missed_target_is_recorded_shown_and_listed_at_the_end(copy):
    copy.measure()
    copy.prints("upstreams", UPSTREAMS.replace("1.007", "0.950"), status=1)
    copy.prints("stage15", COMPARED.format(ours=100.0, ratio=1.0))
    done = copy.measure("--force")
    assert copy.record("upstreams")["outcome"] == copy.record()["outcome"] == "missed"
    assert "missed: upstreams: one of 48 through Loquent: 0.950, wanted >= 0.97" in done.stderr
    assert copy.record("upstreams")["cause"] is None and "exit status" not in copy.text("bench/RESULTS.md")
    assert "missed: stage15: completion tokens/s: 1.0 [1.0, 1.0], wanted >= 1.07" in done.stderr
    assert copy.text("bench/RESULTS.md").count("**missed**") == 2
    # Status 1 with all targets reached is a failure, and so is any other status.
    copy.prints("upstreams", UPSTREAMS, status=1)
    assert copy.measure("--force", "--only", "upstreams").returncode == 1
    assert copy.record("upstreams")["outcome"] == "failed"


def delivered(full, delay_ms):
    """A record of bench/delivery.py in which Loquent has such stalls and delays on each weak channel."""
    def seeds(full, delay_ms, kb_per_s):
        return {"1": {"full": full, "full_205": full, "model_205": full, "delay_ms": delay_ms, "kb_per_s": kb_per_s}}
    schemes = {"cubic": seeds(0.5, 300, 2), "bbr": seeds(0.4, 900, 2), "quic-stream": seeds(0.3, 200, 2),
               "loquent": seeds(full, delay_ms, 4), "eloquent": seeds(0.2, 100, 1)}
    channels = [measured.DEFAULT, *measured.WEAK]
    head = ["RTT", "", "stall ratio", "against the better TCP", "against the plain QUIC stream", "target"]
    of = ["100 ms", "Loquent, QUIC", "0.300"]
    return {"outcome": "missed", "runs": [{name: {"100": schemes, "50": schemes} for name in channels}],
            "captions": [f"Real packets over {name}; 1 seed" for name in channels],
            "tables": [[head, [*of, f"−1 % on {name}", "−2 %", "−75 %: missed"]] for name in channels]}


def test_real_packets_stand_beside_the_model_and_say_where_they_are_worse():
    page_of = "a <!-- measured: bytes -->old<!-- end of measured --> b <!-- measured: weak --><!-- end of measured --> "
    page_of += "<!-- measured: missed --><!-- end of measured -->"
    bad = measured.written(page_of, {("", "delivery"): delivered(full=0.3, delay_ms=2937.4)})
    assert "-->4.0 to 4.0 times as many<!--" in bad and "old" not in bad
    assert "| −1 % on 16 kbit/s | −2 % | 900, 200, 2,937 | 2.00, 2.00, 4.00 |" in bad
    assert "16 kbit/s (the gain against TCP is −25 % in place of" in " ".join(bad.split())
    assert "the mean delay is 2,937 ms in place of" in " ".join(bad.split())
    assert ("- Loquent, QUIC at 100 ms: −1 % on the default channel, wanted −75 %; from gaps of 205 ms on −25 %, stall ratio "
            "0.300, in the model 0.300") in " ".join(bad.split())
    good = measured.written(page_of, {("", "delivery"): delivered(full=0.04, delay_ms=60.0)})
    assert "worse than in the model" not in good and "None" not in good
    failed = measured.written(page_of, {("", "delivery"): {**delivered(0.3, 1.0), "outcome": "failed"}})
    assert "several times as many" in failed and "No real packets" in failed


def test_a_page_that_is_written_in_part_is_dirty_only_in_the_rest(copy):
    chapter = copy.root / "docs/eloquent.md"
    chapter.write_text("It takes <!-- measured: bytes -->9 times as many<!-- end of measured -->.\n")
    copy.commit("a chapter")
    copy.results("--render")
    assert "several times" in chapter.read_text() and history.dirty(copy.root) == []
    chapter.write_text(chapter.read_text() + "By hand.\n")
    assert history.dirty(copy.root) == ["docs/eloquent.md"]


@pytest.mark.parametrize("path", ["bench/upstreams.py", "crates/engine/src/new.rs", "README.md"])
def test_a_dirty_tree_is_refused(copy, path):
    file = copy.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((file.read_text() if file.exists() else "") + "\n// changed\n")
    done = copy.measure()
    assert done.returncode != 0 and path in done.stderr and "in no commit" in done.stderr
    assert not list((copy.root / "bench/results").glob("*.json"))


def test_what_is_generated_makes_no_tree_dirty(copy):
    copy.measure("--only", "upstreams")
    assert history.dirty(copy.root) == [] and git(copy.root, "status", "--porcelain")
    assert copy.measure("--only", "stage15").returncode == 0


def test_a_binary_older_than_its_sources_is_refused(copy):
    os.utime(copy.source)
    os.utime(copy.binary, (2, 2))
    done = copy.measure()
    assert done.returncode != 0 and "is older than" in done.stderr
    # The pages of the book are in the binary, and change with each record.
    (copy.out / "loquent.d").write_text(f"{copy.binary}: {copy.root}/bench/RESULTS.md {copy.root}/docs\n")
    assert copy.measure().returncode == 0
    (copy.out / "loquent.d").unlink()
    assert "what it was built from" in copy.measure("--force").stderr


def test_it_goes_on_where_it_was_stopped(copy):
    copy.measure("--only", "stage15")
    copy.commit("a record")
    done = copy.measure()
    assert "stage15 has a record of this tree" in done.stderr and "[1 of 1] upstreams" in done.stderr
    # Records and prose change no figure; sources do.
    (copy.root / "docs/page.md").write_text("prose\n")
    copy.commit("prose")
    assert "[1 of" not in copy.measure().stderr
    (copy.root / "Cargo.lock").write_text("changed\n")
    copy.commit("a source")
    assert "[1 of 2] stage15" in copy.measure().stderr


def test_as_many_run_as_fit_into_the_minutes(copy):
    assert "[1 of 1] stage15" in copy.measure("--minutes", "1.5").stderr


def test_records_of_a_further_machine_are_kept_and_shown_apart(copy):
    copy.measure()
    copy.prints("stage15", COMPARED.format(ours=200.0, ratio=2.0))
    assert copy.measure("--machine", "other", "--only", "stage15").returncode == 0
    assert copy.record("other/stage15")["outcome"] == "reached" and copy.record()["outcome"] == "reached"
    results_md = copy.text("bench/RESULTS.md")
    assert "| 100.0 | 300.0 |" in results_md and "| 100.0 | 200.0 |" in results_md and "stage15 (other)" in results_md
    assert "2.0 [2.0" not in copy.text("README.md"), "README's rows are of the first machine"
    assert copy.check() == ""


def kept(ratio, flags="avx2 avx512_vnni", outcome="reached", peer="llama-server"):
    head = ["measure", peer, "Loquent", "ratio [least, most]", "target"]
    return {"outcome": outcome, "machine": {"flags": flags},
            "tables": [[head, ["completion tokens/s", "1.0", "2.0", f"{ratio} [1.0, 9.0]", ""]]]}


def test_times_as_fast_is_a_range_over_peers_and_processors():
    records = {("", "stage15"): kept(3.46), ("zen4", "stage15"): kept(2.55, peer="llama-server-clang"),
               ("", "stage15-smollm2"): kept(1.74, peer="vllm"), ("arm", "stage15"): kept(1.0, flags="asimddp"),
               ("", "one"): kept(1.1), ("spr", "stage15"): kept(0.5, outcome="failed"),
               # README's table has no column for it.
               ("", "stage15-gemma3"): kept(6.2, peer="ik_llama.cpp")}
    assert page.times(records) == ", [1.7 to 3.5 times as fast](#how-fast) as llama-server and vLLM at 16 requests"
    assert page.times({("", "stage15"): kept(3.04)}) == ", [3.0 times as fast](#how-fast) as llama-server at 16 requests"
    assert page.times({}) == ""


def test_settings_of_a_peer_that_were_left_out_are_counted_beside_its_ratio():
    told = "peer: `-t 2`, the best of 2 settings, searched in 3.5 min, 3 runs for the choice"
    for more, expected in [("; no time for -fa on -t 2, -t 1", " (2 of 4 settings tried)"), ("", ""),
                           ("; 1 of them failed; no time for -t 1", " (2 of 3 settings tried)")]:
        record = {**kept(2.0), "captions": [f"{told}{more}; loquent: `--context 512`; temperature 0."]}
        assert page.peers(record, "completion tokens/s") == f"2.0 [1.0, 9.0] times llama-server's{expected}"
    record = peer_runs.read({**beside([40.0, 30.0, 25.0, 20.0], [50.0] * 4),
                             "captions": [f"{told}; no time for -t 1; loquent: `x`"]})
    assert page.peers(record, "completion tokens/s").endswith("to 20.0: by its best; 2 of 3 settings tried)")


def test_what_the_search_says_is_what_the_pages_count():
    for (_, name), record in results.read_all().items():
        for caption in record["captions"]:
            assert bool(page.tried(caption)) == ("no time for" in caption), name


def test_the_weights_of_vllm_are_named():
    record = {**kept(1.2, peer="vllm"), "engine": "SmolLM2, Q4_1"}
    assert page.engine(record) == "SmolLM2, Q4_1; in vLLM the same weights as bfloat16"
    assert page.engine({**kept(1.2), "engine": "SmolLM2, Q4_1"}) == "SmolLM2, Q4_1"


def test_the_least_favourable_peer_comes_first():
    record = kept(3.46)
    record["tables"] += kept(2.55, peer="ik_llama")["tables"]
    assert page.peers(record, "completion tokens/s") == "2.55 [1.0, 9.0] times ik_llama's; 3.46 [1.0, 9.0] times llama-server's"


def beside(theirs, ours, times=(20.0, 20.0, 20.0, 20.0), memory=(300.0, 300.0, 300.0, 300.0)):
    """A record of compare.py with these runs: its table has the medians, of which the target is missed."""
    head = ["measure", "ik_llama.cpp", "Loquent", "ratio [least, most]", "target"]
    values = {"completion tokens/s": (theirs, ours), "TTFT p99": (times, [10.0] * 4),
              "memory while serving, MiB": (memory, [100.0, 200.0, 300.0, 400.0])}
    return {**kept(1.0), "load": {"busy": False}, "captions": [""], "engine": "shape",
            "tables": [[head, ["completion tokens/s", "30.0", "50.0", "1.70 [1.25, 3.00]", ">= 1.6"],
                        ["TTFT p99", "20.0", "10.0", "0.50 [0.50, 0.50]", "<= 0.6"],
                        ["memory while serving, MiB", "300.0", "250.0", "0.83 [0.33, 1.33]", "<= 0.8"],
                        ["peak memory of its life, MiB", "500", "400", "0.80", "<= 0.8"]]],
            "runs": [{"ik_llama.cpp": {key: list(pair[0]) for key, pair in values.items()},
                      "loquent": {key: list(pair[1]) for key, pair in values.items()}}]}


def test_a_peer_that_gets_slower_from_run_to_run_is_judged_by_its_best_run():
    record = peer_runs.read(beside([40.0, 30.0, 25.0, 20.0], [50.0, 51.0, 52.0, 60.0], times=[20.0, 40.0, 60.0, 16.0]))
    throughput, ttft, memory, peak = record["tables"][0][1:]
    assert throughput[1:4] == ["40.0", "50.0", "1.25 [1.25, 3.00] (its runs fall from 40.0 to 20.0: by its best)"]
    # Its other measures are of tired runs too, and its best one is taken.
    assert ttft[3] == "0.62 [0.17, 0.62] (its runs get slower: by its best)" and ttft[1] == "16.0"
    assert [well for *_, well in tables.judged(record["tables"])] == [False, False, False, True]
    assert "(its runs" not in memory[3] + peak[3]
    assert page.told("{one|peers|completion tokens/s}", {"one": record}) == (
        "1.25 [1.25, 3.00] times ik_llama.cpp's (its runs fall from 40.0 to 20.0: by its best)")
    assert [ratio for _, ratio, *_ in plot.measures({"one": record})] == [1.25, 0.62, 1.33]


@pytest.mark.parametrize("theirs", [[40.0, 36.0, 34.0, 33.0], [40.0, 25.0, 26.0, 20.0], [40.0, 40.0, 30.0, 20.0],
                                    [20.0, 25.0, 30.0, 40.0]])
def test_a_peer_that_does_not_fall_all_the_way_is_judged_by_its_median(theirs):
    raw = beside(theirs, [50.0] * 4)
    assert peer_runs.read(raw)["tables"][0][:3] == raw["tables"][0][:3]


def test_a_time_that_grows_alone_is_that_of_the_best_run_alone():
    rows = peer_runs.read(beside([40.0] * 4, [50.0] * 4, times=[10.0, 11.0, 12.0, 13.0]))["tables"][0][1:]
    assert rows[0][3] == "1.70 [1.25, 3.00]" and rows[1][3].startswith("1.00 [0.77, 1.00] (its runs rise from 10.0")


def test_every_comparison_at_16_requests_and_at_one_has_a_row():
    rows = {figure for _, figure in page.README_ROWS}
    for name in results.BENCHES:
        if name.split("-")[0] in ("one", "stage15"):
            assert f"{{{name}|peers|completion tokens/s}}" in rows, name
        if name.split("-")[0] == "stage15":
            assert f"{{{name}|peers|peak memory}}" in rows, name


def test_where_less_is_better_the_largest_ratio_comes_first():
    record = beside([40.0] * 4, [50.0] * 4)
    other = json.loads(json.dumps(record["tables"][0]).replace("ik_llama.cpp", "llama-server").replace("0.80", "1.06"))
    record["tables"].append(other)
    assert page.peers(record, "peak memory") == "1.06 times llama-server's; 0.80 times ik_llama.cpp's"


def test_every_placeholder_names_a_bench():
    for text in [*page.LINES, *(figure for _, figure in page.README_ROWS)]:
        found = page.PLACEHOLDER.findall(text)
        assert found and all(name in results.BENCHES for name, *_ in found), text


def test_the_picture_has_what_did_not_fail():
    record = kept(3.46)
    record["tables"][0][1][4] = ">= 1.07"
    records = {("", "stage15"): record, ("", "one"): {**record, "outcome": "failed"}, ("zen4", "rose050"): record}
    found = list(plot.measures(page.succeeded(records)))
    assert len(found) == 1 and "stage15" in found[0][0] and found[0][1] == 3.46


def test_the_short_form_of_a_bench_stands_where_the_long_one_has_no_record():
    record = {**kept(3.46), "load": {"busy": False}}
    assert page.told("{delivery|completion|ratio}", {"delivery-quick": record}) == "3.46 [1.0, 9.0]"
    long_form = {**kept(2.0), "load": {"busy": True}}
    assert page.told("{delivery|completion|ratio}", {"delivery-quick": record, "delivery": long_form}).startswith("2.0 [")


def test_the_time_of_a_bench_grows_with_the_peers(tmp_path):
    given = results.arguments(["--peers", str(tmp_path), "--tune-minutes", "4"])
    assert results.prerequisite(results.BENCHES["one"], given)
    for place in ("bin", "llama-server-clang/openmp", "llama-server-clang/plain"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "version").write_text("llama-cpp-python 0.3.36 export GGML_AVX=ON")
    bench = results.BENCHES["one"]
    assert results.prerequisite(bench, given) is None
    assert results.minutes_of(bench, given) == 2 * (bench.minutes + 4)
    only = results.arguments(["--peers", str(tmp_path), "--against", "llama-server"])
    assert results.minutes_of(bench, only) == bench.minutes + 2
    assert results.shown(bench.command, only).endswith("--tune-minutes 2 --only llama-server")
    versions = results.versions(bench, {}, given)
    assert set(versions) == {"Loquent's llama.cpp", "bin", "llama-server-clang/openmp", "llama-server-clang/plain"}


def tables_of(text):
    return [rows for _, rows in tables.captioned_tables(text)]


def captions_of(text):
    return [caption for caption, _ in tables.captioned_tables(text)]


def test_tables_are_found_among_other_lines():
    text = "Warming up\n| a | b |\n| --- | ---: |\n| 1 | |\n\nmore\n| c |\n|---|\n| 2 |"
    assert tables_of(text) == [[["a", "b"], ["1", ""]], [["c"], ["2"]]]
    assert tables_of("no table | here") == []


def test_a_caption_is_the_line_before_its_table():
    text = "# head\n\nfive runs of `x`\n\n| a |\n| --- |\n| 1 |\n\n## next\n| b |\n| --- |\n| c |\n"
    assert captions_of(text) == ["five runs of `x`", ""]
    assert captions_of("| a |\n| b |") == [""]
    assert captions_of("### part\n\nruns: {}\n| a |\n| b |") == ["part"]
    # Neither a line of runs nor a note of what failed is a part of a table or of its caption.
    text = "how\nvllm failed: no memory\n| a |\n| --- |\n| 1 |\nruns: {}\n| 2 |\n\nvllm is left out: it is not built."
    assert tables.captioned_tables(text) == [("how", [["a"], ["1"], ["2"]])]
    assert tables.notes(text) == ["vllm failed: no memory", "vllm is left out: it is not built."]


def test_the_values_of_runs_are_lines_of_their_own():
    assert tables.runs('| a |\nruns: {"a": [1, 2]}\nthe runs: {\n  runs: [3]') == [{"a": [1, 2]}, [3]]
    with pytest.raises(json.JSONDecodeError):
        tables.runs("runs: {")


def test_a_target_judges_the_cell_to_its_left():
    rows = [["measure", "Loquent", "ratio [least, most]", "target"],
            ["tokens/s", "2", "1.10 [1.0, 1.2]", ">= 1.07"], ["memory", "2", "1.03", "<= 0.8"],
            ["losses", "lossy", "−81.8 %", "≤ −75"], ["lost", "0", "", ">= 1"], ["no target", "1", "1", ""],
            ["tokens/s of all", "1", "1,234", ">= 1,000 (requests were lost)"]]
    assert [(label, well) for label, _, _, well in tables.judged([rows])] == [
        ("tokens/s", True), ("memory", False), ("losses, lossy", True), ("lost", False), ("tokens/s of all", True)]
    own = [["RTT", "kB/s", "target"], ["400 ms", "4.9", "−75 %, 4.8 kB/s: missed"], ["100 ms", "4", "±10 %: reached"]]
    assert [well for *_, well in tables.judged([own])] == [False, True]


def test_rows_of_equal_labels_are_told_apart():
    busy = [["server", "streams", "busy programs", "tokens/s", "share", "target"],
            ["loquent", "1", "1", "100.8 [92.0, 100.9]", "0.56", ">= 0.55"], ["loquent", "16", "1", "9.0", "0.5", ">= 0.4"]]
    assert [label for label, *_ in tables.judged([busy], ["how"])] == [
        "loquent (streams 1, busy programs 1)", "loquent (streams 16, busy programs 1)"]
    limit = [["limit", "measured", "target"], ["tokens/s", "1.0", ">= 0.95"]]
    rows = [[["RTT"], ["50 ms"]], limit, [["RTT"], ["10 ms"]], limit]
    captions = ["A clean link: 64 streams", "", "Throughput; 64 streams", ""]
    assert [label for label, *_ in tables.judged(rows, captions)] == ["tokens/s (A clean link)", "tokens/s (Throughput)"]
    assert [label for label, *_ in tables.judged([limit], ["A caption"])] == ["tokens/s"]


def test_no_two_targets_of_a_record_have_one_label():
    for (_, name), record in results.read_all().items():
        labels = [label for label, *_ in tables.judged(record["tables"], record["captions"])]
        assert len(set(labels)) == len(labels), name


def test_targets_of_zero_are_summed_up_apart():
    record = results.read_all()["", "one"]
    rows = [["measure", "measured", "target"], ["tokens/s", "9", ">= 10"], ["TTFT", "1", "<= 2"],
            ["lost", "0", "<= 0"], ["refused", "3", "<= 0"], ["doubled", "0", "<= 0"]]
    told = page.targets({("", "one"): {**record, "tables": [rows], "captions": [""], "outcome": "missed"}})
    assert told.partition("|")[0].split() == (
        "1 of 2 are missed. 3 more count what was lost, doubled, refused or failed, and want 0: 1 of these are missed."
    ).split()


def test_the_head_has_ten_lines_and_says_what_computed_nothing():
    assert len(page.LINES) == 10
    records = {("", name): {**record, "outcome": "missed"} for (machine, name), record in results.read_all().items()
               if not machine}
    for line in page.lines(page.first_machine(records)):
        assert re.search("random weights|imulated|trained model", line), line


def test_a_cell_is_found_by_the_beginnings_of_its_row_and_column():
    found = [[["RTT", "", "against the better TCP"], ["400 ms", "SSE", ""], ["400 ms", "Loquent, QUIC", "−81.8 %"]]]
    assert tables.cell(found, "400 ms;Loquent", "against") == "−81.8 %"
    assert tables.cell(found, "50 ms;Loquent", "against") is None and tables.cell(found, "400 ms", "more") is None


def test_a_model_that_is_missing_is_made_once(tmp_path):
    maker = tmp_path / "shape-model"
    maker.write_text('#!/bin/sh\necho "$*" >>"$0.log"\nfor out; do :; done\necho weights >"$out"\n')
    maker.chmod(0o755)
    given = results.arguments(["--models", str(tmp_path / "models"), "--loquent", str(tmp_path / "loquent")])
    for _ in range(2):
        results.make_models("bench {models}/gpt2.gguf {models}/smollm2.gguf", given)
    assert (tmp_path / "models/gpt2.gguf").read_text() == "weights\n"
    assert [line.split()[:3] for line in (tmp_path / "shape-model.log").open()] == [["gpt2", "--quant", "Q8_0"]]


def test_what_a_bench_lacks_is_said_and_nothing_is_recorded(tmp_path, monkeypatch):
    # Folders of its own: this machine may have models and servers to compare with, or not.
    given = results.arguments(["--models", str(tmp_path), "--peers", str(tmp_path / "peers")])
    bench = results.BENCHES["one-smollm2"]
    assert "tools/models" in results.prerequisite(bench, given)
    (tmp_path / "smollm2.gguf").touch()
    assert "bench/peers/build.sh" in results.prerequisite(bench, given)
    (tmp_path / "peers/one").mkdir(parents=True)
    (tmp_path / "peers/one/version").touch()
    assert results.prerequisite(bench, given) is None
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "make test-python-client" in results.prerequisite(results.BENCHES["python"], given)


def test_the_processor_is_named_with_its_generation(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n"
                       "model name\t: AMD EPYC\nstepping\t: 1\nflags\t\t: avx2 avx512_vnni\nprocessor\t: 1\nmodel\t\t: 9\n")
    found = machine.processor(cpuinfo)
    assert found["family"] == "26" and found["model"] == "2" and found["flags"] == "avx2 avx512_vnni"
    assert page.named({**found, "cores": 2}) == "2 cores of AMD EPYC, family 26, model 2"


def test_work_of_others_makes_the_machine_busy():
    load = machine.Load(others_before=0.0)
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before = machine.ticks()[0]
        while machine.ticks()[0] - before < 50:
            pass
    finally:
        found = load.end(busy=False)
        spinning.kill()
        spinning.wait()
    assert found["others_percent"] > 0 and not found["allowed"]
    assert machine.Load(others_before=60.0).end(busy=True)["busy"]


ORPHAN = """
import subprocess, sys
from records import machine
burn = "import time\\nwhile time.process_time() < 0.5: pass"
before = machine.own_s()
machine.adopt_orphans()
subprocess.run(["sh", "-c", '"$0" -c "$1" & exit 0', sys.executable, burn], check=True)
machine.reap_orphans()
sys.exit(0 if machine.own_s() - before >= 0.5 else "it counts as another's")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux alone")
def test_a_process_that_a_bench_leaves_behind_is_no_others():
    bench = {**os.environ, "PYTHONPATH": str(ROOT / "bench")}
    subprocess.run([sys.executable, "-c", ORPHAN], env=bench, check=True, timeout=60)
