"""Starts and stops the servers under comparison; reads what they cost."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

READY_LIMIT_S = 120


class NotReady(SystemExit):
    """A server did not start; the message says why."""


def free_port():
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A running server: its URL, process id, and seconds from start to ready."""

    def __init__(self, name, command, ready_path, log, *, environment=None, ready_limit_s=READY_LIMIT_S):
        self.name = name
        self.command = command
        self.ready_path = ready_path
        self.log = pathlib.Path(log)
        self.environment = environment or {}
        self.ready_limit_s = ready_limit_s

    def __enter__(self):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [part.replace("{port}", str(self.port)) for part in self.command]
        started = time.monotonic()
        with self.log.open("wb") as log:
            try:
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self.environment})
            except OSError as error:
                raise NotReady(f"{self.name} cannot be started: {error}") from error
        try:
            self._wait(started)
        except BaseException:
            self.__exit__()
            raise
        self.ready_s = time.monotonic() - started
        return self

    def _wait(self, started):
        while time.monotonic() - started < self.ready_limit_s:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError, urllib.error.URLError):
                with urllib.request.urlopen(self.url + self.ready_path, timeout=5) as answer:
                    if answer.status == 200:
                        return
            time.sleep(0.01)
        tail = self.log.read_text(errors="replace")[-2000:]
        raise NotReady(f"{self.name} did not become ready ({' '.join(self.command)}):\n{tail}")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def warm_up(self):
        """One short answer, so that what a first request costs is in no figure."""
        model = self._json("/v1/models")["data"][0]["id"]
        self._json("/v1/completions", {"model": model, "prompt": "Warm up", "max_tokens": 8, "temperature": 0})

    def _json(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.ready_limit_s) as answer:
                return json.load(answer)
        except (OSError, ValueError) as error:
            raise NotReady(f"{self.name} does not answer {path}: {error}") from error

    def peak_mib(self):
        """Largest resident memory of its life so far, in MiB."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        for line in status.splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
        raise NotReady(f"{self.name} has ended")


def loquent(binary, arguments, log, **environment):
    """Our server with `arguments`."""
    command = [binary, "serve", "--port", "{port}", *arguments]
    return Server("loquent", command, "/ready", log, environment=environment)


def llama_server(folder, arguments, log, name="llama-server"):
    """The llama-server in `folder` with `arguments`, called `name`."""
    binary = os.path.join(folder, "llama-server")
    command = [binary, "--host", "127.0.0.1", "--port", "{port}", *arguments]
    return Server(name, command, "/health", log)


def vllm(folder, arguments, log, name, threads):
    """vLLM of the environment in `folder`, on `threads` processors."""
    command = [os.path.join(folder, "bin/vllm"), "serve", *arguments, "--host", "127.0.0.1", "--port", "{port}"]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
                   "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
                   # Helpers such as ninja, which compiles what it needs, lie beside it.
                   "PATH": os.path.join(folder, "bin") + os.pathsep + os.environ.get("PATH", "")}
    # It compiles the model before it serves.
    return Server(name, command, "/health", log, environment=environment, ready_limit_s=600)


def fastapi(python, log, *, rate):
    """The FastAPI server over a simulated token source of `rate` tokens/s for each stream."""
    script = pathlib.Path(__file__).with_name("fastapi_sse.py")
    command = [python, str(script), "--port", "{port}", "--rate", str(rate)]
    return Server("fastapi", command, "/health", log)
