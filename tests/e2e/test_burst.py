"""A burst of readers, each with a QUIC connection of its own, at a server that knows how fast they read."""

import json
import subprocess

from conftest import BINARY, Server


def test_all_readers_of_a_burst_larger_than_the_batch_get_their_answers(tmp_path):
    steps = ("--simulate", "1+0.1+0.05", "--max-batch-size", "2")
    server = Server(*steps, "--reading-speed", "10").wait()
    try:
        report = tmp_path / "burst.json"
        burst = ("--readers", "6", "--prompt-tokens", "16", "--answer-tokens", "60")
        # What a busy machine does to them is no matter here.
        patience = ("--ttft-s", "60", "--stalled", "99.9")
        command = [BINARY, "bench", "burst", "--url", server.url, *burst, *patience, "--json", report]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "the largest burst with enough content: 6" in done.stdout
        played = json.loads(report.read_text())
        assert played["largest"] == 6
        assert [len(burst["readers"]) for burst in played["bursts"]] == [6]
        assert played["bursts"][0]["failures"] == []
    finally:
        server.stop()


def test_a_server_without_quic_is_refused_with_a_reason():
    server = Server("--simulate", "inf", "--no-quic").wait()
    try:
        command = [BINARY, "bench", "burst", "--url", server.url, "--readers", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        assert "QUIC does not get through" in done.stderr
    finally:
        server.stop()
