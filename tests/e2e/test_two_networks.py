"""`loquent connect --via` and `loquent chat --via`: a connection over each of two networks; either may go at any time.

The networks are two loopback addresses of the client, which a relay in front of the server tells apart.
"""

import os
import subprocess
import time

import openai
import pytest

from conftest import BINARY
from test_connect import collect, connect, question  # noqa: F401
from test_doctor import Checkup

#: Linux answers on all of 127.0.0.0/8 without any set-up.
NETWORKS = ("127.0.0.3", "127.0.0.4")
VIA = ",".join(NETWORKS)
#: Without a second network a silent one is given up after this time.
GIVEN_UP_S = 4.0


def pieces(sdk, asked):
    """The text of an answer, piece by piece, each with its time."""
    for chunk in sdk.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            if choice.delta.content:
                yield time.monotonic(), choice.delta.content


def clean(server, asked):
    """The text of an undisturbed answer, straight from the server."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        return collect(sdk, asked)[0]


@pytest.mark.parametrize("mode", ["backup", "redundant"])
@pytest.mark.parametrize("gone", [0, 1])
def test_a_network_that_goes_in_mid_answer_takes_nothing(relays, connect, mode, gone):  # noqa: F811
    server, relay = relays("--simulate", "40")
    proxy = connect(relay.url, "--via", VIA, "--via-mode", mode)
    assert proxy.decided() == "QUIC"
    asked = question(1, 240)
    expected = clean(server, asked)
    # Its lane over the second network begins in this answer, before the loss in the next one.
    assert collect(proxy.sdk(), question(2, 40))[0] == clean(server, question(2, 40))
    assert all(relay.passed_to[network] > 0 for network in NETWORKS), relay.passed_to
    text, last, longest, before = "", None, 0.0, None
    for number, (at, piece) in enumerate(pieces(proxy.sdk(), asked)):
        longest = max(longest, at - (last or at))
        text, last = text + piece, at
        if number == 60:
            before = relay.passed_to.copy()
            relay.gone.add(NETWORKS[gone])
        if number == 160:
            relay.gone.clear()
    print(f"{mode}, {NETWORKS[gone]} goes: longest pause {longest * 1000:.0f} ms")
    assert text == expected
    assert longest < GIVEN_UP_S, "it waited until the network was given up"
    assert relay.passed_to[NETWORKS[1 - gone]] > before[NETWORKS[1 - gone]]


def test_a_network_that_is_gone_for_good_is_missed_by_none(relays, connect):  # noqa: F811
    server, relay = relays("--simulate", "40")
    relay.gone.add(NETWORKS[1])
    proxy = connect(relay.url, "--via", VIA)
    assert proxy.decided() == "QUIC"
    for n in range(3):
        assert collect(proxy.sdk(), question(n, 40))[0] == clean(server, question(n, 40))
    # The first one goes too, and the second one comes.
    relay.gone = {NETWORKS[0]}
    for n in range(3, 5):
        assert collect(proxy.sdk(), question(n, 40))[0] == clean(server, question(n, 40))


def test_over_two_lossy_networks_every_answer_is_that_of_a_clean_one(relays, connect):  # noqa: F811
    server, relay = relays("--simulate", "100", stay_good=0.9, stay_bad=0.5, seed=3)
    proxy = connect(relay.url, "--via", VIA, "--via-mode", "redundant")
    assert proxy.decided() == "QUIC"
    for n in range(5):
        assert collect(proxy.sdk(), question(n, 60)) == collect(
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0), question(n, 60)
        )
    assert relay.lost > 20, "the networks lost next to nothing"


@pytest.mark.parametrize("gone", [0, 1])
def test_chat_goes_on_when_a_network_goes(relays, tmp_path, gone):
    server, relay = relays("--simulate", "40")
    command = [BINARY, "chat", "--url", relay.url, "--via", VIA, "--via-mode", "redundant", "tokens=120"]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as chat:
        text = chat.stdout.read(60)
        passed = relay.passed_to.copy()
        relay.gone.add(NETWORKS[gone])
        text += chat.stdout.read()
        assert chat.wait() == 0, chat.stderr.read()
    asked = {"model": "any", "messages": [{"role": "user", "content": "tokens=120"}]}
    assert text.decode().strip() == clean(server, asked).strip()
    other = NETWORKS[1 - gone]
    assert relay.passed_to[other] > passed[other]


def test_doctor_shows_both_networks(relays):
    _, relay = relays("--simulate", "inf")
    both = [one for one in Checkup("--url", relay.url, "--via", VIA).sheet["checks"] if one["check"] == "via"]
    assert [one["verdict"] for one in both] == ["ok", "ok"], both
    assert all(network in one["found"] for network, one in zip(NETWORKS, both)), both
    relay.gone.add(NETWORKS[1])
    checkup = Checkup("--url", relay.url, "--via", VIA)
    both = [one for one in checkup.sheet["checks"] if one["check"] == "via"]
    assert [one["verdict"] for one in both] == ["ok", "fail"], both
    assert checkup.code == 1
