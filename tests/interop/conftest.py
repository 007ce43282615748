"""Starts servers for the independent client, and says what they must answer."""

import asyncio
import functools

import httpx
import pytest

# How the real binary is started, and how UDP is lost on the way to it. Neither knows the protocol.
from conftest import Server
from relay import HIDDEN_HOST, Relay

from .client.session import COMPLETIONS

#: Tokens per second of the simulated engine that the tests share.
PACE = 200
RUN_LIMIT_S = 110


def scenario(test):
    """Runs an async test on an event loop of its own."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), RUN_LIMIT_S))

    return run


def pytest_configure(config):
    config.addinivalue_line("markers", "rules(text): the rules of spec/ that a test is about")


def request_of(tokens, **members):
    """A request whose simulated answer has so many tokens."""
    return {"messages": [{"role": "user", "content": f"tokens={tokens}"}], "temperature": 0, **members}


class Target:
    """A running server, and what it says to the same request over plain HTTP."""

    def __init__(self, server, url=None, oracle=None):
        self.server = server
        self.url = url or server.url
        self.oracle = oracle or server  # answers the same requests with the same text
        self._texts = {}

    async def text(self, body, headers=None):
        name = repr(body)
        if name not in self._texts:
            async with httpx.AsyncClient(timeout=60) as http:
                answer = await http.post(self.oracle.url + COMPLETIONS, json=body, headers=headers)
            self._texts[name] = answer.json()["choices"][0]["message"]["content"]
        return self._texts[name]


@pytest.fixture(scope="session")
def oracle():
    """A server whose simulated engine writes the same text without waiting."""
    server = Server("--simulate", "inf").wait()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def target(oracle):
    """A server with a simulated engine, shared by the tests."""
    server = Server("--simulate", str(PACE)).wait()
    yield Target(server, oracle=oracle)
    server.stop()


@pytest.fixture(scope="session")
def bundled():
    """A server with the bundled model, shared by the tests."""
    server = Server().wait()
    yield Target(server)
    server.stop()


@pytest.fixture
def start(oracle):
    """Starts servers with a simulated engine and arguments of the test's own."""
    servers = []

    def start_server(*args):
        servers.append(Server(*args).wait())
        return Target(servers[-1], oracle=oracle)

    yield start_server
    for server in servers:
        server.stop()


@pytest.fixture
def lossy(start):
    """Starts servers behind a relay that loses a share of the UDP datagrams each way, by a seed."""
    relays = []

    def start_lossy(*args, loss, seed):
        target = start("--host", HIDDEN_HOST, *args)
        relays.append(Relay(target.server.url, seed=seed, stay_good=1 - loss, stay_bad=loss))
        return Target(target.server, relays[-1].url, target.oracle), relays[-1]

    yield start_lossy
    for relay in relays:
        relay.close()
