"""The processes of a measurement: the server, and its users and attackers, each on its own."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent


class Server:
    """A simulated server with two keys, and what the system says of its process."""

    def __init__(self, binary, tokens_per_s, *more):
        self.honest_key, self.attackers_key = secrets.token_hex(8), secrets.token_hex(8)
        keys = ("--api-key", self.honest_key, "--api-key", self.attackers_key)
        simulate = ("--simulate", str(tokens_per_s), "--port", "0")
        environment = {**os.environ, "LOQUENT_LOG": "error"}
        self._log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([binary, "serve", *simulate, *keys, *more], stderr=self._log, env=environment)
        self.url = self._announced()
        self.port = int(self.url.rsplit(":", 1)[1])
        self.udp_port = json.loads(self.get("/.well-known/loquent"))["port"]

    def stop(self):
        self.process.kill()
        self.process.wait()

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def _announced(self):
        for _ in range(600):
            if found := re.search(r"on (http://\S+)", self.log()):
                return found[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit("the server did not start: " + self.log())

    def get(self, path, timeout_s=10):
        with urllib.request.urlopen(self.url + path, timeout=timeout_s) as response:
            return response.read()

    def gauges(self):
        """Requests and bytes that the server holds."""
        text = self.get("/metrics").decode()
        names = ("num_requests_running", "num_requests_waiting", "delivery_kept_bytes", "quic_connections")
        return {name: float(re.search(rf"^loquent_{name}(?:{{.*}})? (\S+)", text, re.M)[1]) for name in names}

    def resident_kib(self):
        """Resident memory, the whole and without mapped files, and its peak."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return {name: int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("VmRSS", "RssAnon", "VmHWM")}

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))


class Child:
    """A process that prints a line when it is at work, and figures when it is terminated."""

    def __init__(self, *command):
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.terminated = False
        self.process.stdout.readline()

    def terminate(self):
        """Once: a second signal may arrive while the first prints the figures, and print them again."""
        if not self.terminated:
            self.process.send_signal(signal.SIGTERM)
        self.terminated = True

    def end(self):
        self.terminate()
        try:
            out, errors = self.process.communicate(timeout=90)
            return json.loads(out)
        except (subprocess.TimeoutExpired, ValueError) as error:
            self.process.kill()
            raise SystemExit(f"a child process failed: {error}\n{errors if 'errors' in locals() else ''}") from error
