"""The server that the tools attack: the real binary on a free loopback port, and whether it took harm."""

import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from .report import Finding, Unreadable, one_line

READY_S = 60
END_S = 20
ANNOUNCED = re.compile(r"on (https?)://[^:\s]+:(\d+)")
#: Requests that are still computed when a tool ends: its connections may only just have closed.
QUIET_S = 30
# What the server says when it is broken, in whatever way it is asked.
BROKEN = re.compile(r"panicked at|RUST_BACKTRACE|\bstatus=5\d\d\b|\bERROR\b|AddressSanitizer|double free")


def make_certificate(folder):
    """A self-signed certificate for localhost, as (certificate, key)."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 90 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command.split(), *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


class Target:
    """A running `loquent serve`.

    `arguments` are added to its command line. With `is_encrypted` it has a certificate of its own, and `url` is https.
    """

    def __init__(self, binary, *arguments, is_encrypted=False, answers_after_s=READY_S):
        self._folder = tempfile.TemporaryDirectory(prefix="loquent-probe-")
        folder = Path(self._folder.name)
        self.certificate = None
        if is_encrypted:
            self.certificate, key = make_certificate(folder)
            arguments = (*arguments, "--tls-cert", self.certificate, "--tls-key", key)
        # Nothing of the machine's own settings: a key or a file of the user would change what is tested.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LOQUENT_")}
        environment = {**kept, "LOQUENT_LOG": "info", "NO_COLOR": "1", "XDG_CONFIG_HOME": str(folder)}
        command = [str(binary), "serve", "--host", "127.0.0.1", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace", env=environment)
        self.broken, self.tail, self._announced, self.port = [], [], threading.Event(), None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._announced.wait(answers_after_s) or self.port is None:
            self.stop()
            raise RuntimeError("the server did not start: " + " ".join(self.tail[-5:]))
        self._wait_ready(answers_after_s)

    def _read(self):
        for line in self.process.stderr:
            if self.port is None and (found := ANNOUNCED.search(line)):
                self.scheme, self.port = found[1], int(found[2])
                self._announced.set()
            if BROKEN.search(line) and len(self.broken) < 50:
                self.broken.append(line.strip())
            self.tail = [*self.tail[-19:], line.strip()]
        self._announced.set()

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def get(self, path, timeout=10):
        """The status and body of a GET; the status of a refused or broken connection is 0."""
        context = None
        if self.scheme == "https":
            context = ssl.create_default_context(cafile=str(self.certificate))
        try:
            with urllib.request.urlopen(self.url + path, timeout=timeout, context=context) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError as error:
            return 0, str(error).encode()

    def _wait_ready(self, seconds):
        end = time.monotonic() + seconds
        while self.get("/ready")[0] != 200:
            if time.monotonic() > end or self.process.poll() is not None:
                self.stop()
                raise RuntimeError("the server is not ready: " + " ".join(self.tail[-5:]))
            time.sleep(0.1)

    def metric(self, name):
        """The value of a metric without labels; None if the server does not say it."""
        _, body = self.get("/metrics")
        found = re.search(rf"^loquent_{name} (\S+)$", body.decode(errors="replace"), re.M)
        return float(found[1]) if found else None

    def resident_mib(self):
        """Memory of the process that is resident, in MiB; None where there is no /proc."""
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024
        return None

    def descriptors(self):
        """Open descriptors of the process; None where there is no /proc."""
        with contextlib.suppress(OSError):
            return len(os.listdir(f"/proc/{self.process.pid}/fd"))
        return None

    def harm(self, tool):
        """Findings about the server itself: it ended, it does not answer, it still computes, it said that it broke."""
        found = []
        if self.process.poll() is not None:
            said = one_line(" ".join(self.tail[-3:]))
            return [Finding(f"{tool}/server ended", f"exit status {self.process.returncode}: {said}")]
        status, _ = self.get("/ready")
        if status != 200:
            found.append(Finding(f"{tool}/server not ready", f"/ready is {status}"))
        end = time.monotonic() + QUIET_S
        while (running := self.metric("num_requests_running")) and time.monotonic() < end:
            time.sleep(0.2)
        if running:
            found.append(Finding(f"{tool}/server busy", f"{running:.0f} requests run {QUIET_S} s after their clients"))
        found += [Finding(f"{tool}/server log", one_line(line)) for line in self.broken]
        return found

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self._reader.join(END_S)
        self.process.stderr.close()
        self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Progress:
    """Lines on stderr: which tool runs, for how long already, and its bound."""

    EVERY_S = 10

    def __init__(self, tool):
        self.tool, self.begun = tool, time.monotonic()

    def say(self, text):
        print(f"probe: {self.tool}: {text}", file=sys.stderr, flush=True)

    def run(self, command, limit_s, **more):
        """Runs a tool and returns it with its output; after `limit_s` it is ended, with status None.

        Its own children end with it.
        """
        process = subprocess.Popen(
            [str(it) for it in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **more,
        )
        chunks = []
        reader = threading.Thread(target=lambda: chunks.append(process.stdout.read()), daemon=True)
        reader.start()
        end, status = time.monotonic() + limit_s, None
        while time.monotonic() < end:
            try:
                status = process.wait(min(self.EVERY_S, max(0.1, end - time.monotonic())))
                break
            except subprocess.TimeoutExpired:
                self.say(f"{time.monotonic() - self.begun:.0f} s, at most {limit_s:.0f} s for this part")
        if status is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.join(END_S)
        process.stdout.close()
        return status, b"".join(chunks).decode(errors="replace")


def read_report(path, said):
    """A tool's report in JSON. Raises Unreadable, with the end of what the tool printed, if there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unreadable(f"no report: {error}; it said: {one_line(said[-300:], 300)}") from None


def installed_version(places, package):
    """The version of a package in the tool's own environment, as tools/setup made it."""
    python = places / package / "bin/python"
    code = f"import importlib.metadata as it; print(it.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
