"""Redis servers for the tests: each on a port of its own, to be killed and started again."""

import shutil
import socket
import subprocess
import tempfile
import time

import pytest


class RedisServer:
    """A Redis server without a file: killed, it has lost everything."""

    def __init__(self, *settings):
        self.settings = settings
        if not shutil.which("redis-server"):
            pytest.skip("redis-server is not installed (tools/setup e2e)")
        self.folder = tempfile.TemporaryDirectory()
        self.process = None
        for _ in range(20):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
            # Somebody else may take the port meanwhile; then the next one is tried.
            if self.start():
                return
        raise AssertionError("no free port")

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def start(self):
        """Starts it, at its port; whether it came up."""
        settings = ["--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--dir", self.folder.name]
        self.process = subprocess.Popen(["redis-server", *settings, *self.settings], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                if self.ask("PING") == "PONG":
                    return True
            except OSError:
                time.sleep(0.02)
        return False

    def ask(self, *words):
        """The reply to a command, as text."""
        command = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(command.encode())
            stream = connection.makefile("rb")
            first = stream.readline().decode().strip()
            if first.startswith("$") and first != "$-1":
                return stream.read(int(first[1:])).decode()
            return first[1:]

    def calls(self, *names):
        """How often the commands were called."""
        calls = 0
        for line in self.ask("INFO", "commandstats").splitlines():
            if line.split(":")[0] in [f"cmdstat_{name}" for name in names]:
                calls += int(line.split("calls=")[1].split(",")[0])
        return calls

    def kill(self):
        self.process.kill()
        self.process.wait(20)

    def close(self):
        self.kill()
        self.folder.cleanup()


@pytest.fixture
def redis():
    running = RedisServer()
    yield running
    running.close()
