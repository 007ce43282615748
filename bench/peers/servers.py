"""Starts and stops the servers under comparison; reads what they cost."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

READY_LIMIT_S = 120


def free_port():
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A running server: its URL, process id, and seconds from start to ready."""

    def __init__(self, name, command, ready_path, log):
        self.name = name
        self.command = command
        self.ready_path = ready_path
        self.log = pathlib.Path(log)

    def __enter__(self):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [part.replace("{port}", str(self.port)) for part in self.command]
        started = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self._wait(started)
        except BaseException:
            self.__exit__()
            raise
        self.ready_s = time.monotonic() - started
        return self

    def _wait(self, started):
        while time.monotonic() - started < READY_LIMIT_S:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError, urllib.error.URLError):
                with urllib.request.urlopen(self.url + self.ready_path, timeout=5) as answer:
                    if answer.status == 200:
                        return
            time.sleep(0.01)
        tail = self.log.read_text(errors="replace")[-2000:]
        raise SystemExit(f"{self.name} did not become ready ({' '.join(self.command)}):\n{tail}")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def peak_mib(self):
        """Largest resident memory of its life so far, in MiB."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
        return int(kib) / 1024


def loquent(binary, arguments, log):
    """Our server with `arguments`."""
    command = [binary, "serve", "--port", "{port}", *arguments]
    return Server("loquent", command, "/ready", log)


def llama_server(folder, arguments, log, name="llama-server"):
    """The llama-server in `folder` with `arguments`, called `name`."""
    binary = os.path.join(folder, "llama-server")
    command = [binary, "--host", "127.0.0.1", "--port", "{port}", *arguments]
    return Server(name, command, "/health", log)


def fastapi(python, log, *, rate):
    """The FastAPI server over a simulated token source of `rate` tokens/s for each stream."""
    script = pathlib.Path(__file__).with_name("fastapi_sse.py")
    command = [python, str(script), "--port", "{port}", "--rate", str(rate)]
    return Server("fastapi", command, "/health", log)
