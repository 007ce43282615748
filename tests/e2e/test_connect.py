"""`loquent connect`: any SDK, unmodified, over a lossy path; nothing broken looks whole."""

import concurrent.futures
import http.server
import os
import pty
import re
import signal
import socket
import subprocess
import threading
import time

import httpx
import openai
import pytest

from conftest import BINARY, PATIENCE_S, Running
from lossy import LossyPath

PACED = ("--simulate", "100")


class Proxy(Running):
    """A running `loquent connect`."""

    def __init__(self, to, state_dir, *args, listen="127.0.0.1:0", env=None):
        self.way, self._decided = None, threading.Event()
        where = ["--url", to, "--listen", listen, "--state-dir", str(state_dir)]
        if "--head-start-ms" not in args:
            # Half a second is little for a handshake where the machine is busy.
            where += ["--head-start-ms", "5000"]
        super().__init__("connect", *where, *args, env=env)
        assert self._announced.wait(PATIENCE_S) and self.url, "".join(self.log)

    def _heard(self, line):
        if line.startswith("Answers come over "):
            self.way = line.split()[3].strip(".;")
            self._decided.set()

    def decided(self):
        """The way that answers come, once it says so."""
        assert self._decided.wait(PATIENCE_S), "".join(self.log)
        return self.way

    def sdk(self, **extra):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **extra)


@pytest.fixture
def connect(tmp_path):
    """Starts proxies that end with the test."""
    running = []

    def start_proxy(to, *args, **kwargs):
        running.append(Proxy(to, tmp_path / "state", *args, **kwargs))
        return running[-1]

    yield start_proxy
    for proxy in running:
        proxy.stop()


@pytest.fixture
def lossy():
    """Lossy paths that end with the test."""
    running = []

    def start_path(server, **kwargs):
        running.append(LossyPath(int(server.url.rsplit(":", 1)[1]), **kwargs))
        return running[-1]

    yield start_path
    for path in running:
        path.close()


def question(n, tokens):
    return {"model": "x", "messages": [{"role": "user", "content": f"Question {n}: tokens={tokens}"}]}


def collect(sdk, asked):
    """Text, finish reason, usage, and the number of chunks of one streamed answer."""
    text, finish, usage, chunks = "", None, None, 0
    for chunk in sdk.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        chunks += 1
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return text, finish, usage.completion_tokens, chunks


def test_a_hundred_answers_over_a_lossy_path_are_those_of_a_clean_one(start, connect, lossy):
    server = start("--simulate", "200", "--max-batch-size", "32")
    path = lossy(server, loss=0.2, seed=1)
    proxy = connect(path.url, "--head-start-ms", "5000")
    assert proxy.decided() == "QUIC"
    asked = [question(n, 40) for n in range(100)]
    clean = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        expected = list(pool.map(lambda one: collect(clean, one), asked))
        began = time.monotonic()
        lossy_answers = list(pool.map(lambda one: collect(proxy.sdk(), one), asked))
        took = time.monotonic() - began
    assert lossy_answers == expected
    assert len({text for text, *_ in expected}) == 100
    print(f"100 answers in {took:.1f} s with {path.dropped} packets lost")
    assert path.dropped > 100, "the path lost next to nothing"
    assert took < 60


@pytest.mark.parametrize("change", ["move", "die", "narrow"])
def test_an_answer_survives_a_new_address_and_the_death_of_udp(start, connect, lossy, change):
    server = start(*PACED)
    path = lossy(server, loss=0)
    proxy = connect(path.url, "--head-start-ms", "5000")
    assert proxy.decided() == "QUIC"
    asked = question(1, 200)
    direct = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    expected = direct.chat.completions.create(**asked).choices[0].message.content
    text, last, stall = "", None, 0
    for chunk in proxy.sdk().chat.completions.create(**asked, stream=True):
        now = time.monotonic()
        stall = max(stall, now - (last or now))
        last, before = now, len(text)
        text += chunk.choices[0].delta.content or ""
        if before < len(expected) // 3 <= len(text):
            if change == "move":
                path.move_client()
            elif change == "die":
                path.loss = 1
            else:
                # Acknowledgements pass, so that the connection seems to live, and text does not.
                path.longest = 60
    assert text == expected
    print(f"{change}: longest stall {stall * 1000:.0f} ms")
    assert stall < (5 if change == "move" else 15)


def test_everything_else_passes_unchanged(start, connect):
    server = start(*PACED)
    proxy = connect(server.url)
    proxy.decided()
    sdk = proxy.sdk()
    direct = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert [one.id for one in sdk.models.list()] == [one.id for one in direct.models.list()]
    whole, same = (one.chat.completions.create(**question(1, 12)) for one in (sdk, direct))
    assert whole.choices[0].message.content == same.choices[0].message.content
    assert collect(sdk, question(1, 12)) == collect(direct, question(1, 12))
    for stream in (True, False):
        with pytest.raises(openai.BadRequestError) as refused:
            sdk.chat.completions.create(**question(1, 5), stream=stream, temperature=9)
        assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("other")
    assert httpx.get(f"{proxy.url}/health").status_code == 200
    text = sdk.completions.create(model="x", prompt="tokens=9", stream=True)
    assert "".join(chunk.choices[0].text for chunk in text if chunk.choices)


def test_a_local_key_keeps_other_users_out(start, connect, tmp_path):
    server = start(*PACED, "--api-key", "operators")
    file = tmp_path / "local-key"
    args = ("--api-key", "operators", "--local-key-file", str(file))
    proxy = connect(server.url, *args)
    proxy.decided()
    local = file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600 and len(local) > 30
    for headers in ({}, {"authorization": "Bearer none"}, {"authorization": "Bearer operators"}):
        assert httpx.get(f"{proxy.url}/v1/models", headers=headers).status_code == 401
    # As Anthropic's clients send it.
    assert httpx.get(f"{proxy.url}/v1/models", headers={"x-api-key": local}).status_code == 200
    sdk = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=local, max_retries=0)
    assert sdk.models.list().data
    direct = openai.OpenAI(base_url=f"{server.url}/v1", api_key="operators", max_retries=0)
    assert collect(sdk, question(1, 12)) == collect(direct, question(1, 12))
    again = connect(server.url, *args)
    assert file.read_text().strip() == local
    assert httpx.get(f"{again.url}/v1/models", headers={"authorization": f"Bearer {local}"}).status_code == 200
    # Without a local key it is said at the start whose key everybody here uses.
    warning = "All users of this machine can use its key"
    open_proxy = connect(server.url, "--api-key", "operators")
    open_proxy.heard(warning)
    assert httpx.get(f"{open_proxy.url}/v1/models").status_code == 200
    again.decided()
    assert not any(warning in line for line in proxy.log + again.log)


def test_other_machines_are_served_with_a_key_or_on_demand_only(start, connect):
    server = start(*PACED)
    command = [BINARY, "connect", "--url", server.url, "--listen", "0.0.0.0:0"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert refused.returncode != 0 and "--local-key" in refused.stderr
    proxy = connect(server.url, "--open", "--allowed-host", "box.lan", listen="0.0.0.0:0")
    proxy.decided()
    for host, status in (("box.lan", 200), ("192.168.0.7:1", 200), ("evil.example", 403)):
        assert httpx.get(f"{proxy.url}/v1/models", headers={"host": host}).status_code == status, host


class Curious(http.server.BaseHTTPRequestHandler):
    """A server that keeps the headers it gets and sets a cookie."""

    seen = []

    def do_GET(self):
        self.seen.append(self.headers)
        self.send_response(200)
        self.send_header("set-cookie", "theirs=1")
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def test_cookies_of_this_machine_stay_on_it(connect):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Curious) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        proxy = connect(f"http://127.0.0.1:{server.server_port}", "--no-quic")
        private = {"cookie": "other-program=secret", "referer": "http://127.0.0.1:8888/?token=secret"}
        answered = httpx.get(f"{proxy.url}/v1/models", headers={**private, "x-kept": "1"})
        server.shutdown()
    assert answered.status_code == 200 and "set-cookie" not in answered.headers
    assert any(headers["x-kept"] == "1" for headers in Curious.seen)
    assert not any("secret" in value for headers in Curious.seen for value in headers.values())


def test_the_proxys_key_replaces_those_of_all_clients(connect):
    Curious.seen.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Curious) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        proxy = connect(f"http://127.0.0.1:{server.server_port}", "--no-quic", "--api-key", "operators")
        for name in ("x-api-key", "api-key", "authorization"):
            sent = {name: "Bearer clients", "x-kept": name}
            assert httpx.get(f"{proxy.url}/v1/models", headers=sent).status_code == 200
        server.shutdown()
    passed = [headers for headers in Curious.seen if "x-kept" in headers]
    assert [headers["authorization"] for headers in passed] == ["Bearer operators"] * 3
    assert not any("clients" in value for headers in passed for value in headers.values())


def raw_events(url, path, body):
    """An answer's events as they stand, but for what each answer has of its own."""
    with httpx.stream("POST", url + path, json=body, timeout=PATIENCE_S) as response:
        blocks = "".join(response.iter_text()).split("\n\n")
    own = re.compile(r'"(chat)?cmpl-[^"]*"|"created":\d+')
    return [own.sub("", block) for block in blocks if block and not block.startswith(":")]


@pytest.mark.parametrize("args", [(), ("--no-quic",)])
def test_events_are_byte_for_byte_the_servers_own(start, connect, args):
    # Of its own: where the cache holds the prompt decides the last digits of log-probabilities.
    server = start()
    proxy = connect(server.url, *args)
    proxy.decided()
    chat = {"messages": [{"role": "user", "content": "What is token streaming?"}], "max_tokens": 20}
    counts = {"include_usage": True, "continuous_usage_stats": True}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 2}),
        ("/v1/chat/completions", {**chat, "stream_options": {"include_usage": True}}),
        ("/v1/chat/completions", {**chat, "stream_options": counts}),
        ("/v1/completions", {"prompt": "Token", "max_tokens": 8, "logprobs": 1, "echo": True}),
    ):
        body = {**body, "stream": True, "temperature": 0}
        own = raw_events(server.url, path, {**body, "resumable": True})
        assert len(own) > 5 and own[-1].endswith("[DONE]")
        assert raw_events(proxy.url, path, body) == own, body


@pytest.mark.parametrize("args", [(), ("--no-quic",)])
def test_a_server_that_dies_is_never_a_clean_end(start, connect, args):
    server = start(*PACED)
    proxy = connect(server.url, "--resume-limit-s", "2", *args)
    proxy.decided()
    stream = proxy.sdk(timeout=60).chat.completions.create(**question(1, 500), stream=True)
    chunks = iter(stream)
    for _ in range(5):
        next(chunks)
    server.process.kill()
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        for _ in chunks:
            pass


def test_a_client_that_leaves_cancels_its_answer(start, connect):
    server = start(*PACED)
    proxy = connect(server.url)
    proxy.decided()
    stream = proxy.sdk().chat.completions.create(**question(1, 2000), stream=True)
    next(iter(stream))
    running = lambda: httpx.get(f"{server.url}/metrics").text
    wait_until(lambda: "num_requests_running 1" in running(), "it is not generated")
    stream.close()
    wait_until(lambda: "num_requests_running 0" in running(), "it is generated for nobody")


def wait_until(condition, otherwise):
    """Waits until `condition` holds; fails with `otherwise` if it never does."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def is_stored(folder, stream_id):
    """Whether a proxy's file in `folder` has the answer."""
    return any(stream_id in file.read_text() for file in folder.glob("answers-*.json"))


def read_events(response, until=None):
    """(id, text) after the events so far; stops once `until` characters of text came."""
    last, text, done = 0, "", False
    for line in response.iter_lines():
        if line.startswith("id: "):
            last = int(line[4:])
        elif line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            chunk = httpx.Response(200, content=line[6:]).json()
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
            if until and len(text) >= until:
                break
    return last, text, done


@pytest.mark.parametrize("args", [(), ("--no-quic",)])
def test_a_killed_and_restarted_proxy_resumes(start, connect, tmp_path, args):
    server = start(*PACED)
    proxy = connect(server.url, *args)
    proxy.decided()
    asked = question(1, 300)
    direct = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    expected = direct.chat.completions.create(**asked).choices[0].message.content
    body = {**asked, "stream": True, "resumable": True}
    with httpx.stream("POST", f"{proxy.url}/v1/chat/completions", json=body, timeout=PATIENCE_S) as response:
        stream_id = response.headers["x-loquent-stream-id"]
        last, text, done = read_events(response, until=len(expected) // 3)
        wait_until(lambda: is_stored(tmp_path / "state", stream_id), "the proxy has stored no answer")
        proxy.process.kill()
    assert not done and expected.startswith(text)
    again = connect(server.url, *args)
    again.decided()
    assert any(stream_id in line for line in again.log), "it does not say what is under way"
    # Its id and the last event are enough: the proxy has the token.
    headers = {"last-event-id": str(last)}
    with httpx.stream("GET", f"{again.url}/v1/streams/{stream_id}", headers=headers, timeout=PATIENCE_S) as response:
        assert response.status_code == 200
        _, rest, done = read_events(response)
    assert done and text + rest == expected
    assert httpx.get(f"{again.url}/v1/streams/{'0' * 32}").status_code == 404


def test_what_goes_wrong_is_said_in_openais_words(connect, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    proxy = connect(f"http://127.0.0.1:{port}")
    assert f"http://127.0.0.1:{port} cannot be reached: " in proxy.heard(" cannot be reached")
    for stream in (True, False):
        with pytest.raises(openai.InternalServerError, match="cannot be reached") as refused:
            proxy.sdk().chat.completions.create(**question(1, 1), stream=stream)
        assert refused.value.status_code == 502
    for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
        refused = httpx.get(f"{proxy.url}/v1/models", headers=headers)
        assert refused.status_code == 403 and refused.json()["error"]["code"] == "origin_not_allowed"
    taken = proxy.url.removeprefix("http://")
    other = subprocess.run(
        [BINARY, "connect", "--url", "http://127.0.0.1:1", "--listen", taken, "--state-dir", str(tmp_path)],
        capture_output=True, text=True, timeout=PATIENCE_S,
    )
    assert other.returncode == 1 and "choose another --listen" in other.stderr


def test_a_termination_lets_answers_end(start, connect):
    server = start(*PACED)
    proxy = connect(server.url)
    proxy.decided()
    stream = iter(proxy.sdk().chat.completions.create(**question(1, 100), stream=True))
    next(stream)
    proxy.process.send_signal(signal.SIGTERM)
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "stop"
    assert proxy.process.wait(PATIENCE_S) == 0


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
@pytest.mark.parametrize("args, way", [((), "QUIC"), (("--no-quic",), "HTTP")])
def test_answers_come_over_ipv6(start, connect, args, way):
    server = start("--host", "::1", *PACED)
    proxy = connect(server.url, *args, listen="[::1]:0")
    assert server.url.startswith("http://[::1]:") and proxy.url.startswith("http://[::1]:")
    assert proxy.decided() == way
    direct = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert collect(proxy.sdk(), question(1, 60)) == collect(direct, question(1, 60))


@pytest.fixture
def certified(authority, start):
    """The port of a server with that certificate."""
    cert = ("--tls-cert", authority / "cert.pem", "--tls-key", authority / "key.pem")
    server = start(*PACED, *map(str, cert), wait=False)
    assert server.url.startswith("https://")
    return server.url.rsplit(":", 1)[1]


def test_certificates_of_an_authority_hold_for_both_ways(certified, trusting, connect):
    url = f"https://localhost:{certified}"
    for args, way in (((), "QUIC"), (("--no-quic",), "HTTP")):
        proxy = connect(url, *args, env=trusting)
        assert proxy.decided() == way
        text, finish, *_ = collect(proxy.sdk(), question(1, 20))
        assert text and finish == "stop"
    stranger = connect(url)
    assert "--ca FILE" in stranger.heard("cannot be reached")
    with pytest.raises(openai.InternalServerError, match="cannot be reached"):
        collect(stranger.sdk(), question(1, 20))


def test_an_upstream_with_a_certificate_of_an_authority_is_used_and_no_other(certified, trusting, start):
    gateway = start("--upstream", f"https://localhost:{certified}", env=trusting)
    sdk = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
    text, finish, *_ = collect(sdk, question(1, 20))
    assert text and finish == "stop"
    # The certificate is for localhost, not for the address; and who does not know the authority trusts nobody.
    for host, env, told in (("127.0.0.1", trusting, "not valid for name"), ("localhost", {}, "SSL_CERT_FILE")):
        stranger = start("--upstream", f"https://{host}:{certified}", env=env, wait=False)
        sdk = openai.OpenAI(base_url=f"{stranger.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.InternalServerError, match=f"invalid peer certificate.*{told}"):
            collect(sdk, question(1, 20))


@pytest.mark.parametrize("args, way", [((), "over QUIC"), (("--no-quic",), "over HTTP")])
def test_the_chat_says_how_its_answer_came(start, tmp_path, args, way):
    server = start(*PACED)
    terminal, stdout = pty.openpty()
    # So long that it moves to QUIC even where a busy machine begins it over HTTP.
    command = [BINARY, "chat", "--url", server.url, *args, "tokens=300"]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TERM": "dumb"}
    chat = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, env=env)
    os.close(stdout)
    shown = b""
    try:
        while data := os.read(terminal, 4096):
            shown += data
    except OSError:
        pass  # The last writer of a terminal has closed it.
    os.close(terminal)
    assert chat.wait(PATIENCE_S) == 0
    assert "tokens/s" in shown.decode() and way in shown.decode(), shown
