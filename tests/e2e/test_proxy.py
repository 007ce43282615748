"""Downloads from the hub through a proxy, as in a company: proxy.py, with and without a password."""

import re
import subprocess
import sys
import time

import pytest

from conftest import PATIENCE_S
from hub_stand_in import CONTENT


class Proxy:
    """A running proxy.py, which writes what it was asked for to a log."""

    def __init__(self, folder, *args):
        self.log, port = folder / "proxy.log", folder / "port"
        listen = ["--hostname", "127.0.0.1", "--port", "0", "--port-file", str(port), "--log-file", str(self.log)]
        few = ["--num-workers", "1", "--num-acceptors", "1"]
        self.process = subprocess.Popen([sys.executable, "-m", "proxy", *listen, *few, *args])
        deadline = time.monotonic() + PATIENCE_S
        while not (port.exists() and port.read_text().strip()):
            assert self.process.poll() is None and time.monotonic() < deadline, "the proxy did not start"
            time.sleep(0.05)
        self.place = f"127.0.0.1:{port.read_text().strip()}"

    def connected(self):
        """Places to which it made tunnels."""
        return re.findall(r"CONNECT (\S+)", self.log.read_text())

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE_S)


@pytest.fixture
def proxy(tmp_path):
    """Starts a proxy that ends with the test."""
    running = []

    def start_proxy(*args):
        running.append(Proxy(tmp_path, *args))
        return running[-1]

    yield start_proxy
    for one in running:
        one.close()


def downloaded(pull):
    status, said = pull.end()
    assert status == 0, said
    return [path.read_bytes() for path in pull.files()[1]]


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_a_model_is_downloaded_through_the_proxy_of_the_environment(hub, pull, proxy, variable):
    through = proxy()
    assert downloaded(pull(**{variable: f"http://{through.place}"})) == [CONTENT]
    assert set(through.connected()) == {hub.url.removeprefix("http://")}


def test_a_proxy_gets_its_user_and_password_and_a_refusal_names_it_without_them(hub, pull, proxy):
    through = proxy("--basic-auth", "annette:s3cret")
    assert downloaded(pull(HTTPS_PROXY=f"http://annette:s3cret@{through.place}")) == [CONTENT]
    asked = len(hub.asked)
    said = pull(HTTPS_PROXY=f"http://annette:wr0ng@{through.place}").fails()
    assert "407" in said and through.place in said and "HTTPS_PROXY" in said, said
    assert "annette" not in said and "wr0ng" not in said, said
    assert len(hub.asked) == asked


def test_hosts_without_a_proxy_are_reached_directly(hub, pull, proxy):
    through = proxy()
    assert downloaded(pull(HTTPS_PROXY=f"http://{through.place}", NO_PROXY="127.0.0.1")) == [CONTENT]
    assert through.connected() == []


def test_a_proxy_that_is_away_is_named(hub, pull):
    # Nothing listens on the port of a Discard server.
    said = pull(HTTPS_PROXY="http://127.0.0.1:9").fails()
    assert "through the proxy 127.0.0.1:9" in said, said
    assert hub.asked == []
