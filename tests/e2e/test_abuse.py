"""All attacks of bench/abuse.sh at once, for a few seconds, beside honest streams."""

import json
import subprocess
import sys

import pytest

from conftest import BINARY, REPOSITORY

#: A quiet phase and two rounds.
SECONDS = 12


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    if not sys.platform.startswith("linux"):
        pytest.skip("descriptors are counted in /proc")
    out = tmp_path_factory.mktemp("abuse") / "figures.json"
    run = [sys.executable, REPOSITORY / "bench/abuse/run.py", "--binary", BINARY, "--seconds", str(SECONDS)]
    subprocess.run([*run, "--json", out], check=True, timeout=110, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


def test_every_attack_was_made(figures):
    rounds = figures["rounds"]
    assert not any(one["failed"] for one in rounds), rounds
    made = {name for one in rounds for name, counts in one["attacks"].items() if counts.get("begun")}
    assert len(made) >= 24, made


def test_no_honest_stream_is_lost_under_attack(figures):
    for one in [figures["quiet"], *(one["honest"] for one in figures["rounds"])]:
        assert not one["lost"] and one["whole"] > 0, one


def test_the_server_outlives_the_attacks_and_keeps_no_descriptor(figures):
    assert figures["alive"]
    assert figures["after"][-1]["descriptors"] <= figures["before"]["descriptors"], figures["after"]
