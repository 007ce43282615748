"""Engines that the tests of this folder share, two of each at most, and servers in front of them."""

import os

import pytest

# The server's own harness, which starts and ends `loquent serve`.
from conftest import Server, start  # noqa: F401

from .engines import ENGINES, MODEL, wait_until


def pytest_collection_modifyitems(items):
    # An engine may have to start first, which takes minutes on a busy machine.
    for item in items:
        item.add_marker(pytest.mark.timeout(900))


def kind(name):
    """The class of an engine that tools/test-engines has made ready."""
    if name not in os.environ.get("ENGINES", "").split():
        pytest.skip(f"{name} is not ready: tools/test-engines installs it")
    return ENGINES[name]


class Pool:
    """Engines of one kind, which are started when they are needed, and again when they are dead."""

    def __init__(self, engine, folder):
        self.engine, self.folder, self.started, self.running = engine, folder, 0, []
        #: Servers in front of one engine, by what they are given as upstream.
        self.fronts = {}

    def alive(self, count):
        """So many engines that answer."""
        for dead in [one for one in self.running if not one.is_alive()]:
            dead.end()
            self.running.remove(dead)
        while len(self.running) < count:
            self.started += 1
            self.running.append(self.engine(self.folder / f"{self.engine.name}-{self.started}.log"))
        return [one.wait() for one in self.running[:count]]

    def front(self, upstream):
        """The server in front of `upstream` that tests share."""
        if upstream not in self.fronts:
            self.fronts[upstream] = Server("--upstream", upstream).wait()
        return self.fronts[upstream]

    def close(self):
        for one in self.fronts.values():
            one.stop()
        for one in self.running:
            one.end()


@pytest.fixture(scope="session", params=ENGINES)
def pool(request, tmp_path_factory):
    """The engines of one kind; those of another are ended first, to leave the machine its memory."""
    engines = Pool(kind(request.param), tmp_path_factory.mktemp("engines"))
    yield engines
    engines.close()


@pytest.fixture
def engine(pool):
    """An engine that nobody asks anything."""
    (one,) = pool.alive(1)
    wait_until(lambda: one.running() == 0, "the engine is idle")
    return one


@pytest.fixture
def two(pool):
    """Two engines of a kind."""
    both = pool.alive(2)
    for one in both:
        wait_until(lambda: one.running() == 0, "the engine is idle")
    return both


@pytest.fixture
def front(engine, pool):
    """Loquent in front of the engine, under the model's name: it puts every API into chat completions."""
    return pool.front(f"{MODEL}={engine.url}")


@pytest.fixture
def sole(engine, pool):
    """Loquent in front of the engine as its only upstream: an API that the engine speaks itself passes unread."""
    return pool.front(engine.url)
