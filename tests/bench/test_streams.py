"""bench/records/streams.py: each event has the time at which it came, while the rest of the answer is still to come."""

import http.server
import itertools
import json
import threading
import types

import pytest

from records import streams

LINES = [b": a comment\n", b'data: {"n": 1}\n', b"\n", b"id: 7\n", b'data: {"n": 2}\n', b"\n", b"data: [DONE]\n", b"\n"]


@pytest.fixture
def server():
    """A server that answers with what it was asked, as two events, and sends the second once `go_on` is set."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"data: " + asked + b"\n\n")
            went_on = self.server.go_on.wait(10)
            self.wfile.write(b'data: {"went_on": %s}\n\ndata: [DONE]\n\n' % json.dumps(went_on).encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.go_on = threading.Event()
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_an_event_is_there_before_the_next_is_sent(server):
    response = streams.post(server.server_port, "/v1/completions", {"prompt": "a"}, timeout_s=20)
    found = streams.events(response)
    first_at, first = next(found)
    server.go_on.set()
    [(second_at, second)] = found
    assert (response.status, json.loads(first), json.loads(second)) == (200, {"prompt": "a"}, {"went_on": True})
    assert first_at < second_at


def test_comments_ids_and_the_end_are_no_events(monkeypatch):
    clock = itertools.count(10.0)
    monkeypatch.setattr(streams, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    assert [(at, json.loads(event)["n"]) for at, event in streams.events(LINES)] == [(10.0, 1), (11.0, 2)]


@pytest.mark.parametrize("times, gaps", [([1.0, 1.5, 3.5], [500.0, 2000.0]), ([1.0], []), ([], [])])
def test_gaps_lie_between_events(monkeypatch, times, gaps):
    clock = iter(times)
    monkeypatch.setattr(streams, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    assert streams.gaps_ms([b"data: {}\n"] * len(times)) == gaps
