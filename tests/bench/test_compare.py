"""bench/peers/compare.py: what a server lost is listed with its cause and marks the figures."""

import importlib.util
import json
import pathlib
import sys
import types

PEERS = pathlib.Path(__file__).resolve().parents[2] / "bench/peers"
sys.path.insert(0, str(PEERS))
spec = importlib.util.spec_from_file_location("peers_compare", PEERS / "compare.py")
compare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compare)
sys.path.remove(str(PEERS))


def request(group, outcome):
    return json.dumps({"group": group, "outcome": outcome})


BROKEN = {"failed": {"kind": "broken", "message": "the connection\nbroke | early"}}
OPTIONS = types.SimpleNamespace(label="stage15", name="llama-server", runs=3, model="m", threads=2, ours="")
ROW = {"meaning": "tokens/s", "sign": ">=", "target": 1.07, "theirs": 1.0, "ours": 2.0, "ratio": 2.0,
       "least": 1.9, "most": 2.1}


def rendered(failures):
    report = {"failures": failures, "peak_mib": {"llama-server": 2.0, "loquent": 1.0}}
    return compare.render(OPTIONS, compare.SCENARIOS["stage15"], [], report, [ROW])


def test_failures_are_counted_by_server_and_cause():
    lines = [request("llama-server", BROKEN), request("llama-server", "finished"), request("llama-server", BROKEN),
             request("loquent", "left"), request("loquent", "finished")]
    assert compare.failures(lines) == {"llama-server": {"broken: the connection\nbroke | early": 2}}


def test_lost_requests_are_listed_and_mark_every_figure():
    text = rendered({"llama-server": {"broken: the connection\nbroke | early": 2}})
    assert "| **llama-server lost 2 of all runs' requests** | broken: the connection broke / early | | | |" in text
    assert "| >= 1.07 (requests were lost) |" in text


def test_nothing_is_marked_where_nothing_was_lost():
    text = rendered({})
    assert "lost" not in text and "| >= 1.07 |" in text and "temperature 0" in text


def test_all_scenarios_sample_alike():
    assert compare.SAMPLING == ["--temperature", "0"]
    assert not any("--temperature" in scenario["bench"] for scenario in compare.SCENARIOS.values())


def test_further_peers_are_folders_with_a_llama_server(tmp_path):
    for name in ("ik_llama", "llama-server-native"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "llama-server").touch()
    (tmp_path / "empty").mkdir()
    assert [folder.name for folder in compare.further_peers(tmp_path)] == ["ik_llama", "llama-server-native"]
    assert compare.further_peers(None) == []


def test_a_peer_gets_settings_that_it_knows():
    scenario = compare.SCENARIOS["stage15"]
    theirs = types.SimpleNamespace(**{**vars(OPTIONS), "name": "ik_llama"})
    assert "--no-ui" in compare.peer_arguments(OPTIONS, scenario, ["--kv-unified"])
    assert "--no-ui" not in compare.peer_arguments(theirs, scenario, ["-rtr"])
