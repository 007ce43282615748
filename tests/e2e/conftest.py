"""Starts the real binary for the tests and ends it with them."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest

pytest_plugins = ["authority", "relay", "redis_server", "hub_stand_in"]

# Far longer than anything takes that a test waits for, on a busy machine too.
PATIENCE_S = 60
# httpx gives a request up after five seconds unless it is told otherwise.
for wait in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, wait, PATIENCE_S)

BINARY = os.environ.get("LOQUENT_BIN", "target/debug/loquent")
READY = re.compile(r"on (https?://\S+)")
# What ends a process that is broken, and nothing that a test does.
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


def free_port(kind=socket.SOCK_STREAM):
    """A port of 127.0.0.1 on which nobody listens."""
    with socket.socket(type=kind) as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Crashed(Exception):
    """The program crashed: whatever else a test says, that is a fault."""


class Running:
    """A process of the binary that says on stderr where it can be reached."""

    def __init__(self, *args, env=None, binary=BINARY, inherits=True):
        # A file that may not grow further is an error to the server, as it is here, and not its end.
        self.process = subprocess.Popen(
            [binary, *args],
            stderr=subprocess.PIPE,
            text=True,
            env={**(os.environ if inherits else {}), **(env or {})},
            restore_signals=False,
        )
        self.log = []
        self.url = None
        self._announced = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line)
            if found := READY.search(line):
                self.url = found[1]
                self._announced.set()
            self._heard(line)
        self._announced.set()

    def _heard(self, line):
        """What else a line of the log tells."""

    def heard(self, words):
        """The line with `words`, once it is printed."""
        deadline = time.monotonic() + PATIENCE_S
        while not (lines := [line for line in self.log if words in line]):
            assert time.monotonic() < deadline, "".join(self.log)
            time.sleep(0.01)
        return lines[0]

    def stop(self):
        ended = self.process.poll()
        if ended is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self.process.stderr.close()
        if ended is not None and -ended in CRASHES:
            raise Crashed(f"{signal.Signals(-ended).name}: " + "".join(self.log[-20:]))


class Server(Running):
    """A running `loquent serve`, ready for requests."""

    def __init__(self, *args, env=None, **kwargs):
        super().__init__("serve", "--port", "0", *args, env={"LOQUENT_LOG": "warn", **(env or {})}, **kwargs)

    def wait_announced(self):
        """Waits until the model is announced; fails with the log if it never is."""
        assert self._announced.wait(PATIENCE_S) and self.url, "".join(self.log)
        return self

    def wait(self):
        """Waits until requests are taken."""
        self.wait_announced()
        transport = httpx.HTTPTransport(retries=3)
        with httpx.Client(transport=transport) as client:
            for _ in range(PATIENCE_S * 20):
                if client.get(f"{self.url}/ready").status_code == 200:
                    return self
                time.sleep(0.05)
        raise AssertionError("never ready: " + "".join(self.log))

    def metric(self, name):
        """One value from /metrics; labels are part of the name."""
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
            if line.startswith(f"loquent_{name} "):
                return float(line.split()[-1])
        return 0.0

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)


class JsonServer(Running):
    """A `loquent serve` whose log is for programs."""

    def _heard(self, line):
        # Whatever is no JSON ends the thread, and nothing is announced.
        if url := json.loads(line).get("url"):
            self.url = url
            self._announced.set()


@pytest.fixture
def start_json():
    """Starts servers with arguments of the test's own, whose logs are for programs."""
    running = []

    def start_server(*args, **kwargs):
        server = JsonServer("serve", "--port", "0", "--log-format", "json", *args, **kwargs)
        running.append(server)
        assert server._announced.wait(PATIENCE_S) and server.url, "".join(server.log)
        return server

    yield start_server
    for server in running:
        server.stop()


@pytest.fixture
def start():
    """Starts servers with arguments of the test's own."""
    running = []

    def start_server(*args, wait=True, **kwargs):
        running.append(Server(*args, **kwargs))
        return running[-1].wait() if wait else running[-1].wait_announced()

    yield start_server
    for server in running:
        server.stop()


@pytest.fixture(scope="session")
def server():
    """A server with the bundled model and default settings, shared by the tests."""
    running = Server().wait()
    yield running
    running.stop()


@pytest.fixture
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


@pytest.fixture(scope="session")
def chromium():
    """The path of an installed browser."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")


REPOSITORY = Path(__file__).resolve().parents[2]
