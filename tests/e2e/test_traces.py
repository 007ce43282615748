"""One trace through the local proxy, a server in front, and the server that answers; and through a
replica that takes an answer over. Real processes export it to a collector here."""

import contextlib
import http.server
import signal
import struct
import threading

import httpx
import pytest

from conftest import Running, Server
from test_resume import begin, read, resumed

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PLACE = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


def fields(message):
    """The fields of a protobuf message by their numbers, each with its values as they are coded."""
    found, at = {}, 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            value, at = message[at : at + size], at + size
        found.setdefault(number, []).append(value)
    return found


def attributes(pairs):
    """The texts, switches, integers and numbers among attributes."""
    found = {}
    for pair in map(fields, pairs):
        value = fields(pair[2][0])
        for kind, decode in {1: bytes.decode, 2: bool, 3: int, 4: lambda it: struct.unpack("<d", it)[0]}.items():
            if kind in value:
                found[pair[1][0].decode()] = decode(value[kind][0])
    return found


class Span:
    def __init__(self, service, coded):
        self.service = service
        self.trace, self.id = coded[1][0].hex(), coded[2][0].hex()
        self.parent = coded[4][0].hex() if coded.get(4) else ""
        self.name = coded[5][0].decode()
        self.start, self.end = (int.from_bytes(coded[number][0], "little") for number in (7, 8))
        self.attributes = attributes(coded.get(9, []))
        self.events = [fields(event)[2][0].decode() for event in coded.get(11, [])]

    def __repr__(self):
        return f"{self.service}: {self.name} {self.id} < {self.parent}"


class Collector:
    """Takes what is exported to its port."""

    def __init__(self):
        self.spans = spans = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                for resource in map(fields, fields(body)[1]):
                    service = attributes(fields(resource[1][0])[1])["service.name"]
                    for scope in map(fields, resource[2]):
                        spans.extend(Span(service, fields(span)) for span in scope[2])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def flag(self):
        return ["--otlp-endpoint", f"http://127.0.0.1:{self.server.server_port}"]

    def children(self, of):
        return [span for span in self.spans if span.parent == of.id]

    def only(self, parent, kind):
        """The only child of the span with this id, which begins with these words."""
        [found] = [span for span in self.spans if span.parent == parent]
        assert found.name.startswith(kind), found
        return found


@pytest.fixture
def collector():
    running = Collector()
    yield running
    running.server.shutdown()
    running.server.server_close()


@contextlib.contextmanager
def stopping(*processes):
    """Ends processes as an operator does, so that they export what is left."""
    try:
        yield
        for process in processes:
            process.process.send_signal(signal.SIGTERM)
        for process in processes:
            assert process.process.wait(60) == 0, "".join(process.log)
    finally:
        for process in processes:
            process.stop()


def test_one_trace_from_the_proxy_to_the_server_that_answers(collector, tmp_path):
    answering = [Server("--simulate", "inf", *collector.flag).wait() for _ in range(2)]
    front = Server("--upstream", f"{answering[0].url},{answering[1].url}", *collector.flag).wait()
    where = ("--url", front.url, "--listen", "127.0.0.1:0", "--state-dir", str(tmp_path))
    proxy = Running("connect", *where, *collector.flag)
    with stopping(proxy, front, *answering):
        assert proxy._announced.wait(60) and proxy.url, "".join(proxy.log)
        body = {"stream": True, "messages": [{"role": "user", "content": "tokens=20"}]}
        url = f"{proxy.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, headers=PLACE, timeout=60) as response:
            assert response.status_code == 200 and read(response.iter_lines())[2]
    assert {span.trace for span in collector.spans} == {TRACE}
    sent = collector.only(CALLER, "POST /v1/chat/completions")
    assert (sent.service, sent.attributes["resumes"]) == ("loquent-connect", 0)
    assert sent.attributes["transport"] in ("quic", "http") and sent.events == ["first piece"]
    served = collector.only(sent.id, "chat ")
    asked = collector.only(served.id, "POST /v1/chat/completions")
    assert asked.attributes["http.response.status_code"] == 200 and asked.events == ["first token"]
    ports = [int(server.url.rsplit(":", 1)[1]) for server in answering]
    assert asked.attributes["server.port"] in ports
    answered = collector.only(asked.id, "chat ")
    assert answered.attributes["gen_ai.usage.output_tokens"] == 21
    phases = {span.name for span in collector.children(answered)}
    assert phases == {"tokenize", "queue", "prefill", "decode"}
    for outer, inner in [(sent, served), (served, asked), (asked, answered)]:
        assert outer.start <= inner.start


@pytest.mark.parametrize(
    "environment, name",
    [
        ({"OTEL_SERVICE_NAME": "chat-eu", "OTEL_RESOURCE_ATTRIBUTES": "service.name=other"}, "chat-eu"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=chat-eu"}, "chat-eu"),
    ],
    ids=["by its own variable", "among the attributes"],
)
def test_an_operator_names_the_service(collector, environment, name):
    server = Server("--simulate", "inf", *collector.flag, env=environment).wait()
    with stopping(server):
        body = {"messages": [{"role": "user", "content": "tokens=2"}]}
        url = f"{server.url}/v1/chat/completions"
        assert httpx.post(url, json=body, headers=PLACE).status_code == 200
    assert {span.service for span in collector.spans} == {name}


def test_an_answer_that_is_taken_over_stays_in_its_trace(collector, redis):
    shared = ("--simulate", "100", "--store", redis.url, *collector.flag)
    owner, successor = [Server(*shared).wait() for _ in range(2)]
    try:
        with stopping(successor):
            with httpx.Client(timeout=60, headers=PLACE) as client:
                name, (_, last, _) = begin(owner, client, 20)
            owner.process.kill()
            with resumed(successor, name, last) as response:
                assert response.status_code == 200 and read(response.iter_lines())[2]
    finally:
        owner.stop()
    # The killed owner's own spans have died with it.
    taken = collector.only(CALLER, "chat ")
    assert taken.trace == TRACE and taken.attributes["takeover"] is True
    assert taken.attributes["gen_ai.operation.name"] == "chat"
