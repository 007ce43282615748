"""`via`: a connection over each of two networks, which are loopback addresses that a relay tells apart."""

import loquent
import pytest
from test_sdks import PACED, collect, delivering, direct, question, sdk

from relay import relays  # noqa: F401

NETWORKS = ("127.0.0.3", "127.0.0.4")


@pytest.mark.parametrize("mode", ["backup", "redundant"])
def test_a_network_that_goes_in_mid_answer_takes_nothing(relays, mode):  # noqa: F811
    server, relay = relays(*PACED)
    asked = question(1, 200)
    expected = collect(direct(server), asked)
    with delivering(relay.url, via=NETWORKS, via_mode=mode) as client:
        assert client.warm_up() == "quic"
        # Its lane over the second network begins in this answer, before the loss in the next one.
        assert collect(sdk(client), question(2, 40)) == collect(direct(server), question(2, 40))
        assert all(relay.passed_to[network] > 0 for network in NETWORKS), relay.passed_to
        before = relay.passed_to.copy()
        assert collect(sdk(client), asked, lambda: relay.gone.add(NETWORKS[0]), expected[0]) == expected
        assert relay.passed_to[NETWORKS[1]] > before[NETWORKS[1]]


def test_what_names_no_network_is_refused():
    for wrong, error in (
        ({"via": ("no/network",)}, "no/network"),
        ({"via": ("a", "b", "c")}, "2"),
        ({"via_mode": "both"}, "redundant"),
    ):
        with pytest.raises(ValueError, match=error):
            loquent.Client("http://127.0.0.1:9", **wrong)
    with pytest.raises(TypeError, match="sequence"):
        loquent.Client("http://127.0.0.1:9", via="wlan0")
