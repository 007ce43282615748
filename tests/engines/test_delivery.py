"""The way of an engine's answer to its reader: resumed over event streams and QUIC, cancelled, traced."""

import signal
import socket
import subprocess
import threading

import httpx
import pytest

from conftest import BINARY, Server
from lossy import LossyPath
from test_connect import Proxy
from test_resume import read as read_events
from test_resume import resumed
from test_traces import CALLER, PLACE, TRACE, collector, stopping  # noqa: F401

from .asks import APIS, QUESTION, STORY, ask, chat, opened, read
from .engines import CONTEXT, MODEL, PATIENCE_S, wait_until

#: Long enough to be under way while a reader leaves and comes back.
TOKENS = 150
#: More than an engine computes before it hears that its client has left.
LONG_TOKENS = CONTEXT - 100


@pytest.fixture
def proxy(front, tmp_path):
    """`loquent connect` to the server in front, over QUIC."""
    one = Proxy(front.url, tmp_path)
    try:
        assert one.decided() == "QUIC"
        yield one
    finally:
        one.stop()


def test_an_answer_is_resumed_over_event_streams(engine, front):
    expected = ask(chat, engine.url, STORY, TOKENS)
    with opened(chat, front.url, STORY, TOKENS, resumable=True) as (response, _):
        name = [response.headers[f"x-loquent-stream-{part}"] for part in ("id", "token")]
    text, last, done = "", None, False
    for _ in range(3):
        with resumed(front, name, last) as response:
            more, last, done = read_events(response.iter_lines(), 20)
            text += more
            assert more and not done
    with resumed(front, name, last) as response:
        rest, _, done = read_events(response.iter_lines())
    assert done and text + rest == expected.text


@pytest.mark.parametrize("change", ["move", "die"])
def test_an_answer_goes_on_over_quic_when_the_client_moves_and_when_udp_dies(engine, start, tmp_path, change):
    expected = ask(chat, engine.url, STORY, TOKENS)
    front = start("--upstream", f"{MODEL}={engine.url}")
    path = LossyPath(int(front.url.rsplit(":", 1)[1]), loss=0.1)
    proxy = Proxy(path.url, tmp_path)

    def strike():
        if change == "move":
            path.move_client()
        else:
            path.loss = 1

    try:
        assert proxy.decided() == "QUIC"
        answer = read(chat, proxy.url, STORY, TOKENS, strike)
    finally:
        proxy.stop()
        path.close()
    assert answer.is_whole
    assert (answer.text, answer.usage) == (expected.text, expected.usage)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__)
def test_every_api_comes_over_quic(engine, front, proxy, api):
    assert read(api, proxy.url, QUESTION, 30).text == ask(api, front.url, QUESTION, 30).text


def test_the_chat_in_the_terminal_shows_the_engines_answer(engine, front):
    expected = ask(chat, engine.url, QUESTION, 30).text
    command = [BINARY, "chat", "--url", front.url, "--temperature", "0", "--max-tokens", "30", "--plain", QUESTION]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected.strip()


def leave(api, url, stream, **more):
    """Begins a long answer and returns what ends it: the closing of the connection."""
    path, body = api(STORY, LONG_TOKENS, ignore_eos=True, **more)
    client = httpx.Client(timeout=PATIENCE_S)
    if stream:
        response = client.send(client.build_request("POST", url + path, json={**body, "stream": True}), stream=True)
        assert response.status_code == 200, response.read()
        return lambda: (response.close(), client.close())
    reader = socket.create_connection(tuple(url.removeprefix("http://").split(":")))
    request = client.build_request("POST", url + path, json=body)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    reader.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + request.read())
    client.close()
    return reader.close


@pytest.mark.parametrize("way", ["http", "quic"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__)
def test_the_engine_stops_when_the_client_leaves(engine, front, proxy, api, stream, way):
    if not stream and not engine.watches_whole_answers:
        pytest.skip(f"{engine.name} computes a whole answer to its end")
    before = engine.generated()
    end = leave(api, front.url if way == "http" else proxy.url, stream)
    wait_until(lambda: engine.running() == 1, "the engine computes")
    end()
    wait_until(lambda: engine.running() == 0, "the engine stops")
    assert engine.generated() - before < LONG_TOKENS * 2 // 3, "it did not compute the answer to its end"


def test_a_resumable_answer_is_cancelled_by_its_name(engine, front):
    before = engine.generated()
    with opened(chat, front.url, STORY, LONG_TOKENS, ignore_eos=True, resumable=True) as (response, _):
        name = [response.headers[f"x-loquent-stream-{part}"] for part in ("id", "token")]
    wait_until(lambda: engine.running() == 1, "it goes on without its reader")
    headers = {"x-loquent-stream-token": name[1]}
    assert httpx.delete(f"{front.url}/v1/streams/{name[0]}", headers=headers).status_code == 204
    wait_until(lambda: engine.running() == 0, "the engine stops")
    assert engine.generated() - before < LONG_TOKENS * 2 // 3


class Recorder:
    """Passes a connection on to an engine, and keeps what clients send."""

    def __init__(self, port):
        self.port, self.sent = port, bytearray()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            engine = socket.create_connection(("127.0.0.1", self.port))
            for ends in ((client, engine, self.sent), (engine, client, bytearray())):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    @staticmethod
    def _pass(source, sink, kept):
        try:
            while data := source.recv(65536):
                kept += data
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()


def test_the_engine_is_asked_within_the_callers_trace(engine, collector):  # noqa: F811
    recorder = Recorder(engine.port)
    front = Server("--upstream", f"{MODEL}={recorder.url}", *collector.flag).wait()
    with stopping(front):
        path, body = chat(QUESTION, 5)
        assert httpx.post(front.url + path, json={**body, "stream": True}, headers=PLACE).status_code == 200
    recorder.listener.close()
    served = collector.only(CALLER, "chat ")
    asked = collector.only(served.id, "POST /v1/chat/completions")
    assert served.trace == asked.trace == TRACE
    assert f"traceparent: 00-{TRACE}-{asked.id}-01".encode() in bytes(recorder.sent).lower()


def test_the_engines_own_spans_are_children_of_loquents(pool, collector, start, tmp_path):  # noqa: F811
    if pool.engine.name != "vllm":
        pytest.skip(f"{pool.engine.name} exports no traces")
    engine = pool.engine(tmp_path / "traced.log", "--otlp-traces-endpoint", collector.flag[1] + "/v1/traces")
    try:
        engine.wait()
        front = Server("--upstream", f"{MODEL}={engine.url}", *collector.flag).wait()
        with stopping(front):
            path, body = chat(QUESTION, 5)
            assert httpx.post(front.url + path, json=body, headers=PLACE).status_code == 200
        engine.signal(signal.SIGTERM)
        asked = [span for span in collector.spans if span.name.startswith("POST /v1/chat")]
        wait_until(lambda: collector.children(asked[0]), "the engine exports its span")
        # The engine has traces of its own of the looks at its health.
        assert {span.trace for span in (asked[0], *collector.children(asked[0]))} == {TRACE}
    finally:
        engine.end()
