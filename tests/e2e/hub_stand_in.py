"""A hub with one file; a test replaces what it does. `pytest_plugins` gives it to every test that asks for `hub`."""

import hashlib
import http.server
import json
import threading

import pytest

REPO, COMMIT = "org/model-GGUF", "0123456789abcdef" * 2 + "01234567"
CONTENT = b"GGUF" + bytes(1000)
HASH = hashlib.sha256(CONTENT).hexdigest()


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
