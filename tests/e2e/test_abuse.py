"""All attacks of bench/abuse.sh at once, for a few seconds, beside honest streams."""

import json
import os
import signal
import subprocess
import sys

import pytest

from conftest import BINARY, REPOSITORY

#: A quiet phase and two rounds.
SECONDS = 12


pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    if not sys.platform.startswith("linux"):
        pytest.skip("descriptors are counted in /proc")
    out = tmp_path_factory.mktemp("abuse") / "figures.json"
    run = [
        sys.executable,
        REPOSITORY / "bench/abuse/run.py",
        "--binary",
        BINARY,
        "--seconds",
        str(SECONDS),
        "--rounds",
        "2",
    ]
    process = subprocess.Popen([*run, "--json", out], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        assert process.wait(200) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # its server and its attackers too
    return json.loads(out.read_text())


def test_every_attack_was_made(figures):
    rounds = figures["rounds"]
    assert not any(one["failed"] for one in rounds), rounds
    made = {name for one in rounds for name, counts in one["attacks"].items() if counts.get("begun")}
    assert len(made) >= 36, made


def test_no_honest_stream_is_lost_under_attack(figures):
    for one in [figures["quiet"], *figures["rounds"]]:
        for users in ("honest", "newcomers"):
            assert not one[users]["lost"] and one[users]["whole"] > 0, one[users]


def test_the_server_outlives_the_attacks_and_keeps_nothing_of_them(figures):
    assert figures["alive"]
    before, after = figures["before"], figures["after"][-1]
    assert after["descriptors"] <= before["descriptors"], after
    for held in ("num_requests_running", "num_requests_waiting", "delivery_kept_bytes"):
        assert after[held] == 0, after
