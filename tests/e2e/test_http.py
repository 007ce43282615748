"""The HTTP surface: exact bytes, errors, disconnects, drain."""

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from urllib.parse import urlparse

import httpx
import pytest

from conftest import BINARY, PATIENCE_S, REPOSITORY, Server

CHAT = {"messages": [{"role": "user", "content": "What is token streaming?"}], "temperature": 0}
LONG = {**CHAT, "stream": True, "ignore_eos": True, "max_tokens": 5000}
# A simulated engine of this pace is still busy with LONG when the tests look.
PACED = ("--simulate", "100")


def until(condition, seconds=PATIENCE_S):
    """Waits for something that the server does by itself."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


@contextlib.contextmanager
def streaming(server, body):
    """A stream of which the head has come; leaving the block leaves the server."""
    with httpx.Client(base_url=server.url, timeout=60) as http:
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            yield response.iter_bytes()


def sse(http, body):
    """The parsed events of a stream as (id, data) and its comments."""
    events, comments = [], []
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        for block in "".join(response.iter_text()).split("\n\n"):
            if block.startswith(":"):
                comments.append(block)
            elif block:
                fields = dict(line.split(": ", 1) for line in block.split("\n"))
                events.append((fields.get("id"), fields["data"]))
    return events, comments


def test_the_shape_of_a_stream(http):
    events, comments = sse(http, {**CHAT, "stream": True, "stream_options": {"include_usage": True}})
    assert not comments, "SDKs fail at them"
    assert events[-1][1] == "[DONE]"
    assert {number for number, _ in events} == {None}, "ids are for streams that can be resumed"
    chunks = [json.loads(data) for _, data in events[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-2]["choices"][0]["delta"] == {}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_the_ids_of_a_resumable_stream_are_offsets_that_grow(http):
    events, _ = sse(http, {**CHAT, "stream": True, "resumable": True})
    ids = [int(number) for number, _ in events if number is not None]
    assert ids == sorted(ids) and ids[0] > 0
    assert events[-1] == (str(ids[-1]), "[DONE]")


def test_timings_are_told_when_asked_for(http):
    options = {"include_usage": True, "include_timings": True}
    events, _ = sse(http, {**CHAT, "stream": True, "stream_options": options})
    last = json.loads(events[-2][1])
    timings = last["loquent_timings"]
    assert len(timings["emit_us"]) == last["usage"]["completion_tokens"]
    assert timings["emit_us"] == sorted(timings["emit_us"])
    assert 0 <= timings["scheduled_us"] <= timings["first_token_us"] <= timings["finished_us"]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"{", 400, "JSON"),
        (b"\xff\xfe{}", 400, "UTF-8"),
        (b"[]", 400, "object"),
        (b"{}", 400, "messages"),
        (json.dumps({**CHAT, "temperature": "x"}).encode(), 400, "temperature"),
        (json.dumps({**CHAT, "max_tokens": -2}).encode(), 400, "max_tokens"),
        (json.dumps({"messages": [{"role": "alien", "content": "x"}]}).encode(), 400, "alien"),
        (json.dumps({"messages": [{"role": "user"}]}).encode(), 400, "content"),
        (json.dumps({**CHAT, "response_format": {"type": "xml"}}).encode(), 400, "response_format"),
        (json.dumps({**CHAT, "audio": {"voice": "x"}}).encode(), 400, "audio"),
        (json.dumps({"messages": [{"role": "user", "content": "word " * 9000}]}).encode(), 400, "context"),
        (b"[" * 200_000, 400, "JSON"),
    ],
)
def test_bad_requests_get_a_clear_error_and_the_server_goes_on(http, body, status, word):
    response = http.post("/v1/chat/completions", content=body)
    assert response.status_code == status
    error = response.json()["error"]
    assert word in error["message"] and error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}
    assert http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 2}).status_code == 200


def test_bad_tokens_and_paths(http):
    for body in ({"prompt": [99_999_999]}, {"prompt": ""}, {"prompt": []}):
        assert http.post("/v1/completions", json=body).status_code == 400, body
    assert http.post("/detokenize", json={"tokens": [99_999_999]}).status_code == 400
    assert http.get("/v1/nothing").status_code == 404
    assert http.get("/v1/completions").status_code == 405
    assert http.get("/v1/nothing").json()["error"]["code"] == "not_found"


def test_an_oversized_body_is_refused(start):
    server = start("--max-request-bytes", "1000")
    response = httpx.post(f"{server.url}/v1/completions", content=b'{"prompt": "' + b"x" * 2000)
    assert response.status_code == 413 and "1000" in response.json()["error"]["message"]
    # A client that reads nothing before it has sent everything.
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{server.url}/v1/completions", data=b"x" * (9 << 20), timeout=60)
    assert refused.value.code == 413 and "1000" in refused.value.read().decode()


def test_tokenize_and_back(http):
    text = "Grüße, 世界! 🚆 <|im_end|>"
    tokens = http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert tokens["count"] == len(tokens["tokens"]) > 0
    assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": text, "content": text}


def test_special_tokens_in_a_message_are_only_text(http):
    def prompt_tokens(content):
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        return http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]

    assert prompt_tokens("<|im_end|>") > prompt_tokens("a") + 2


def test_health_ready_and_metrics(http, server):
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ready").status_code == 200
    before = server.metric('request_success_total{finished_reason="length"}')
    http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 3})
    assert server.metric('request_success_total{finished_reason="length"}') == before + 1
    text = http.get("/metrics").text
    for name in ("num_requests_running", "num_requests_waiting", "time_to_first_token_seconds_bucket",
                 "inter_token_latency_seconds_bucket", "kv_cache_usage_perc", "prefix_cache_hits_total",
                 "decode_batch_size_bucket"):
        assert f"loquent_{name}" in text, name


def test_an_api_key_is_asked_for(start):
    server = start("--api-key", "secret")
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
        response = httpx.post(f"{server.url}/v1/chat/completions", json=CHAT, headers=headers)
        assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
    good = {"authorization": "Bearer secret"}
    assert httpx.get(f"{server.url}/v1/models", headers=good).status_code == 200
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize("args, env", [(["--api-key", ""], {}), ([], {"LOQUENT_API_KEY": ""})])
def test_an_empty_key_is_refused_at_start(args, env):
    done = subprocess.run(
        [BINARY, "serve", "--port", "0", "--simulate", "inf", *args],
        env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False,
    )
    assert done.returncode != 0 and "API key is empty" in done.stderr, done.stderr


def test_a_server_is_open_to_the_network_only_on_request(start):
    command = [BINARY, "serve", "--simulate", "inf", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    for advice in ["there is no API key", "--api-key", "127.0.0.1", "--open"]:
        assert advice in done.stderr, done.stderr
    open_server = start("--simulate", "inf", "--host", "0.0.0.0", "--open")
    assert any("none: open to your network" in line for line in open_server.log)
    start("--simulate", "inf", "--host", "0.0.0.0", env={"LOQUENT_API_KEY": "secret"})


def test_pages_of_other_origins_are_kept_out(start, http, server):
    foreign = {"origin": "https://elsewhere.example"}
    assert http.post("/v1/chat/completions", json=CHAT, headers=foreign).status_code == 403
    own = {"origin": server.url}
    assert http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1}, headers=own).status_code == 200
    open_server = start("--cors-origin", "https://elsewhere.example")
    response = httpx.options(f"{open_server.url}/v1/chat/completions", headers=foreign)
    assert response.headers["access-control-allow-origin"] == foreign["origin"]


def test_a_client_that_leaves_frees_the_engine(start):
    server = start(*PACED)
    with streaming(server, LONG):
        until(lambda: server.metric("num_requests_running") == 1)
    until(lambda: server.metric("num_requests_running") == 0)
    until(lambda: server.metric('request_success_total{finished_reason="abort"}') == 1)
    assert server.metric('request_success_total{finished_reason="length"}') == 0


def test_a_client_that_leaves_without_streaming_is_noticed_too(start):
    server = start(*PACED)
    address = urlparse(server.url)
    body = json.dumps({**LONG, "stream": False}).encode()
    with socket.create_connection((address.hostname, address.port)) as raw:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode() + body)
        until(lambda: server.metric("num_requests_running") == 1)
    until(lambda: server.metric("num_requests_running") == 0)
    until(lambda: server.metric('request_success_total{finished_reason="abort"}') == 1)
    assert server.metric('request_success_total{finished_reason="length"}') == 0


def read_until(sock, end):
    """What comes until `end` has come, or the connection ends."""
    sock.settimeout(PATIENCE_S)
    got = b""
    while not got.endswith(end) and (more := sock.recv(65536)):
        got += more
    return got


def half_sent(place, body):
    """A connection with a request whose head the server has read, and whose body has still to come."""
    sock = socket.create_connection(place)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    sock.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
    assert read_until(sock, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
    return sock


def idle(place):
    """A connection whose request has been answered, and which stays open."""
    sock = socket.create_connection(place)
    sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert read_until(sock, b"}").startswith(b"HTTP/1.1 200 ")
    return sock


def refuses_connections(place):
    try:
        socket.create_connection(place).close()
    except (ConnectionRefusedError, ConnectionResetError):  # reset: the port closed during the handshake
        return True
    return False


def test_sigterm_lets_streams_end_and_refuses_new_work(start):
    server = start(*PACED)
    address = urlparse(server.url)
    place = (address.hostname, address.port)
    body = json.dumps({**CHAT, "stream": True, "max_tokens": 5}).encode()
    with half_sent(place, body) as late, idle(place) as kept:
        with streaming(server, {**LONG, "max_tokens": 500}) as pieces:
            until(lambda: server.metric("num_requests_running") == 1)
            server.terminate()
            until(lambda: refuses_connections(place))
            assert read_until(kept, b"never") == b"", "an idle connection ends"
            late.sendall(body)
            refusal = read_until(late, b"never")
            assert refusal.startswith(b"HTTP/1.1 503 ") and b"\r\nconnection: close\r\n" in refusal.lower(), refusal
            assert server.process.poll() is None, "a stream is still running"
            text = b"".join(pieces)
    assert text.endswith(b"data: [DONE]\n\n") and text.count(b'"finish_reason":"length"') == 1
    assert server.process.wait(PATIENCE_S) == 0


def test_a_silent_stream_gets_empty_chunks(start):
    # A token takes ten seconds, so that they are all that comes between two.
    server = start("--simulate", "0.1", "--heartbeat-s", "1")
    with streaming(server, {**LONG, "max_tokens": 5}) as pieces:
        got = b""
        while got.count(b'"delta":{}') < 2:
            got += next(pieces)
        assert b'"finish_reason":"' not in got
        assert all(event.startswith(b"data: ") for event in got.split(b"\n\n")[:-1]), got


def test_a_stream_that_outlives_the_drain_limit_is_broken_not_ended(start):
    server = start(*PACED, "--drain-timeout-s", "0")
    with streaming(server, LONG) as pieces:
        until(lambda: server.metric("num_requests_running") == 1)
        server.terminate()
        received = b""
        with pytest.raises(httpx.RemoteProtocolError):
            for piece in pieces:
                received += piece
    assert b"[DONE]" not in received
    assert server.process.wait(PATIENCE_S) == 0


def test_names_in_model_files_and_plans_send_the_terminal_no_orders(start, tmp_path):
    orders, shown = "a\x1b]0;b\x07cdefg", "a]0;bcdefg"
    model = (REPOSITORY / "models" / "loquent-tiny.gguf").read_bytes()
    at = model.index(b"loquent-tiny", model.index(b"general.name"))
    # In the file and in its name, which is the model's.
    path = tmp_path / f"{orders}.gguf"
    path.write_bytes(model[:at] + orders.encode() + model[at + len(orders) :])
    server = start("--model", str(path))
    plan = (REPOSITORY / "plans" / "fig5.toml").read_text().split("\n", 1)
    assert plan[0].startswith("title = ")
    (tmp_path / "plan.toml").write_text(f"title = {json.dumps(orders)}\n{plan[1]}")
    command = [BINARY, "sim", str(tmp_path / "plan.toml"), "--sessions", "1"]
    report = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    for text in ("".join(server.log), report.stdout + report.stderr):
        assert shown in text
        assert [c for c in text if not c.isprintable() and c not in "\n\t"] == []


@pytest.mark.parametrize(
    ("content", "word"),
    [(None, "not found"), (b"hello, this is no model", "not a GGUF"), (b"", "not a GGUF"), ("truncated", "truncated")],
)
def test_a_file_that_is_no_model_is_refused_in_one_line(tmp_path, content, word):
    path = tmp_path / "model.gguf"
    if content == "truncated":
        content = (REPOSITORY / "models" / "loquent-tiny.gguf").read_bytes()[:-1000]
    if content is not None:
        path.write_bytes(content)
    done = subprocess.run(
        [BINARY, "serve", "--port", "0", "--model", path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert word in done.stderr.splitlines()[-1] and str(path) in done.stderr


def test_a_port_in_use_is_told(server):
    port = urlparse(server.url).port
    done = subprocess.run(
        [BINARY, "serve", "--port", str(port)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "--port" in done.stderr


def test_flags_come_by_environment_too():
    server = Server(env={"LOQUENT_SERVED_MODEL_NAME": "by-env", "LOQUENT_MAX_BATCH_SIZE": "2"}).wait()
    try:
        assert httpx.get(f"{server.url}/ready").json()["model"] == "by-env"
    finally:
        server.stop()


def test_keep_alive_connections_are_not_closed_under_the_client(http):
    for _ in range(50):
        response = http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1})
        assert response.status_code == 200


def test_a_queued_client_gets_headers_at_once_and_its_leaving_is_noticed(start):
    server = start(*PACED, "--max-batch-size", "1")
    with streaming(server, LONG):
        until(lambda: server.metric("num_requests_running") == 1)
        with streaming(server, LONG):
            until(lambda: server.metric("num_requests_waiting") == 1)
        until(lambda: server.metric("num_requests_waiting") == 0)
        assert server.metric("num_requests_running") == 1
        assert server.metric('request_success_total{finished_reason="length"}') == 0, "none has ended by itself"


def test_beyond_the_bound_requests_get_429_with_retry_after(start):
    server = start(*PACED, "--max-inflight-requests", "2")

    def post():
        return httpx.post(f"{server.url}/v1/chat/completions", json={**CHAT, "max_tokens": 1})

    with streaming(server, {**LONG, "n": 2}):
        refused = post()
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
    until(lambda: post().status_code == 200)


def test_who_waits_too_long_is_told_so(start):
    server = start(*PACED, "--max-batch-size", "1", "--queue-timeout-s", "0.2")
    with streaming(server, LONG):
        until(lambda: server.metric("num_requests_running") == 1)
        waited = httpx.post(f"{server.url}/v1/chat/completions", json=CHAT)
        assert waited.status_code == 429 and "queue" in waited.json()["error"]["message"]


def test_a_reader_that_stops_loses_its_own_stream_only(start):
    server = start("--simulate", "inf", "--stream-buffer-bytes", "4096", "--slow-reader-timeout-s", "1",
                   "--context", "500000", "--kv-cells", "1000000")
    address = urlparse(server.url)
    body = json.dumps({**LONG, "max_tokens": 400_000}).encode()
    with socket.create_connection((address.hostname, address.port)) as stuck:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        stuck.sendall(head.encode() + body)
        until(lambda: server.metric("stream_pauses_total") >= 1)
        other = httpx.post(f"{server.url}/v1/chat/completions", json={**CHAT, "max_tokens": 50})
        assert other.status_code == 200, "the others go on"
        # Paused, it may have left the batch, so that it counts as waiting until it is ended.
        until(lambda: server.metric("num_requests_running") + server.metric("num_requests_waiting") == 0)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := stuck.recv(1 << 20):
                received += data
        assert b"stopped reading" in received[-1000:], "what had been sent is read, then why it ended"
        assert b"[DONE]" not in received
        assert not received.endswith(b"0\r\n\r\n"), "a clean end would be taken for a complete answer"


def test_more_biases_than_openai_takes_are_refused(http):
    # Each would cost the engine time at every token.
    bias = {str(token): -100 for token in range(1025)}
    refused = http.post("/v1/chat/completions", json={**CHAT, "logit_bias": bias})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "logit_bias"
    del bias["0"]
    assert http.post("/v1/chat/completions", json={**CHAT, "logit_bias": bias, "max_tokens": 2}).status_code == 200
    assert http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 2}).status_code == 200
