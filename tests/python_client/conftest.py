"""Starts the real binary behind bad paths, as tests/e2e does, for tests of the Python client."""

import importlib.util
import socket
import sys
import threading
from pathlib import Path

import pytest

# By its path: several folders of tests have a file of that name.
E2E_FOLDER = Path(__file__).parents[1] / "e2e"
SPEC = importlib.util.spec_from_file_location("e2e_conftest", E2E_FOLDER / "conftest.py")
E2E = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(E2E)
sys.path.append(str(E2E_FOLDER))

from lossy import LossyPath  # noqa: E402 (found in the folder that was just added)

server, start = E2E.server, E2E.start


class CutPath(LossyPath):
    """A lossy path whose TCP connections can be cut, and held up for as long as it is frozen."""

    def __init__(self, port, **kwargs):
        self.ends = []
        self.open = threading.Event()
        self.open.set()
        super().__init__(port, **kwargs)

    def _pump(self, one, other):
        self.ends.append(one)
        LossyPath._pump(_Gate(one, self.open), other)

    def cut(self):
        """Breaks every TCP connection off, and returns how many there were."""
        ends, self.ends = self.ends, []
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        return len(ends)


class _Gate:
    """A socket that is read while a gate is open."""

    def __init__(self, sock, gate):
        self._sock, self._gate = sock, gate

    def recv(self, size):
        data = self._sock.recv(size)
        self._gate.wait()
        return data

    def shutdown(self, how):
        self._sock.shutdown(how)


@pytest.fixture
def restart():
    """Starts the successor of a server that has ended, on its port."""
    running = []

    class Successor(E2E.Server):
        def __init__(self, port):
            E2E.Running.__init__(self, "serve", "--port", port, "--simulate", "100")

    def start_again(port):
        running.append(Successor(port))
        return running[-1].wait()

    yield start_again
    for one in running:
        one.stop()


@pytest.fixture
def path():
    """Opens paths to servers; they end with the test."""
    running = []

    def open_path(server, **kwargs):
        running.append(CutPath(int(server.url.rsplit(":", 1)[1]), **kwargs))
        return running[-1]

    yield open_path
    for one in running:
        one.open.set()
        one.close()
