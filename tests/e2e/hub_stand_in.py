"""A hub with one file, whose doings a test replaces, and `loquent pull` from it.

`pytest_plugins` gives them to every test that asks for `hub` or `pull`.
"""

import contextlib
import hashlib
import http.server
import json
import os
import resource
import signal
import subprocess
import threading

import pytest

from conftest import BINARY

REPO, COMMIT = "org/model-GGUF", "0123456789abcdef" * 2 + "01234567"
CONTENT = b"GGUF" + bytes(1000)
HASH = hashlib.sha256(CONTENT).hexdigest()
#: Far more than any of these pulls needs that is bounded, retries with their pauses among it.
PATIENCE_S = 60
#: Most bytes that the program may hold while a hub sends without end: a listing has 32 MiB at most.
MOST_KIB = 300 << 10


def entry(name="model.gguf", size=len(CONTENT), sha256=HASH):
    return {"rfilename": name, "size": size, "lfs": {"sha256": sha256, "size": size}}


class Hub(http.server.ThreadingHTTPServer):
    """A hub with one file; a test replaces what it does."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked, self.ended = [], threading.Event()
        self.listing = lambda handler: handler.json({"sha": COMMIT, "siblings": [entry()]})
        self.content = lambda handler: handler.whole(CONTENT)

    def handle_error(self, request, client_address):
        """A client that has gone is what some tests wait for."""


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        """Says nothing."""

    def do_GET(self):
        self.server.asked.append(self.path)
        (self.server.listing if self.path.startswith("/api/") else self.server.content)(self)

    do_HEAD = do_GET

    def head(self, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def whole(self, body, **headers):
        self.head(**{"content_length": len(body), **headers})
        self.wfile.write(body)

    def json(self, said):
        self.whole(json.dumps(said).encode())

    def redirect(self, to):
        self.head(302, location=to, content_length=0)

    def endless(self, piece, pause_s=0.0, **head):
        """Sends a piece again and again until the client goes, or the test ends."""
        self.head(**head)
        while not self.server.ended.wait(pause_s):
            self.wfile.write(piece)
            self.wfile.flush()


@pytest.fixture
def hub():
    server = Hub()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


class Pull:
    """A running `loquent pull`, whose cache is a folder of its own inside another."""

    def __init__(self, hub, folder, env):
        self.outside, self.cache = folder, folder / "a" / "b" / "cache"
        self.cache.mkdir(parents=True)
        named = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        places = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(self.cache), "HF_HOME": str(folder / "home")}
        said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen([BINARY, "pull", REPO], env={**named, **places, **env}, **said)

    def end(self):
        """Exit status and what was said, once it has ended by itself; its peak of memory is checked."""
        with contextlib.ExitStack() as ends:
            ends.callback(self.process.kill)
            timer = threading.Timer(PATIENCE_S, self.process.kill)
            timer.start()
            ends.callback(timer.cancel)
            said = self.process.stdout.read().decode()
            _, status, used = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
        assert self.process.returncode >= 0, f"it ended by {signal.Signals(-self.process.returncode).name}: {said}"
        assert "panicked" not in said, said
        # Its peak begins at that of this process, which it was a copy of.
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert used.ru_maxrss < max(MOST_KIB, own + (16 << 10)), f"{used.ru_maxrss} KiB"
        return self.process.returncode, said

    def files(self):
        """Files outside the cache, and those in it that somebody could load."""
        found = [path for path in self.outside.rglob("*") if path.is_file()]
        # A lock, an incomplete download and a download under its hash are not loaded.
        outside = [path for path in found if self.cache not in path.parents]
        return outside, [path for path in found if self.cache in path.parents and path.suffix == ".gguf"]

    def fails(self):
        """What it says when it fails as it should, with nothing written that could be loaded."""
        status, said = self.end()
        assert status == 1, (status, said)
        assert self.files() == ([], []), said
        assert said.strip() and all(char.isprintable() or char == "\n" for char in said), repr(said)
        return said


@pytest.fixture
def pull(hub, tmp_path):
    begun = []

    def begin(**env):
        begun.append(Pull(hub, tmp_path / str(len(begun)), env))
        return begun[-1]

    yield begin
    for one in begun:
        if one.process.returncode is None:
            one.process.kill()
            one.process.wait()
        one.process.stdout.close()
