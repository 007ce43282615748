"""bench/peers/servers.py: a server is there once it says that it is ready, and gone afterwards."""

import importlib
import json
import pathlib
import sys
import urllib.request

import pytest

path_before = list(sys.path)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers"))
servers = importlib.import_module("servers")
sys.path[:] = path_before

#: Is not ready when it is first asked, and tells then how it was started.
FAKE = f"""#!{sys.executable}
import http.server, json, os, sys

asked = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(self.path)
        self.send_response(200 if len(asked) > 1 else 503)
        self.end_headers()
        told = {{"words": sys.argv[1:], "log": os.environ.get("LOQUENT_LOG"), "asked": asked}}
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, *_):
        pass


http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def program(folder, text):
    path = folder / "loquent"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_it_is_entered_when_it_is_ready_and_ended_when_it_is_left(tmp_path):
    with servers.loquent(program(tmp_path, FAKE), ["--simulate", "10"], tmp_path / "log", LOQUENT_LOG="warn") as server:
        with urllib.request.urlopen(server.url + "/told", timeout=10) as answer:
            told = json.load(answer)
        assert server.process.poll() is None
    assert told["words"] == ["serve", "--port", str(server.port), "--simulate", "10"] and told["log"] == "warn"
    assert told["asked"] == ["/ready", "/ready", "/told"]
    assert server.process.poll() is not None


def test_of_one_that_ends_at_once_its_last_words_are_told(tmp_path):
    with pytest.raises(servers.NotReady, match="no such model"):
        with servers.loquent(program(tmp_path, "#!/bin/sh\necho no such model >&2\nexit 1\n"), [], tmp_path / "log"):
            pytest.fail("it is not ready")
