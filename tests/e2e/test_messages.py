"""Anthropic's Python SDK, unmodified."""

import contextlib
import http.server
import json
import re
import threading

import anthropic
import httpx
import pytest

QUESTION = [{"role": "user", "content": "What is token streaming?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA}


def sdk(url, key="none"):
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)


@pytest.fixture
def claude(server):
    with sdk(server.url) as client:
        yield client


def test_streamed_and_whole_answers_agree(claude):
    request = dict(model="loquent-tiny", max_tokens=1000, messages=QUESTION, extra_body={"temperature": 0})
    whole = claude.messages.create(**request)
    assert whole.content[0].type == "text" and whole.content[0].text
    assert (whole.stop_reason, whole.role, whole.model) == ("end_turn", "assistant", "loquent-tiny")
    with claude.messages.stream(**request) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens > 1
    counted = claude.messages.count_tokens(model="loquent-tiny", messages=QUESTION)
    cached = final.usage.cache_read_input_tokens
    assert counted.input_tokens == final.usage.input_tokens + cached


def test_raw_events_come_in_anthropics_order(claude):
    stream = claude.messages.create(model="x", max_tokens=5, messages=QUESTION, stream=True)
    kinds = [event.type for event in stream]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_system_prompt_and_a_stop_sequence_count(claude):
    ask = dict(model="x", max_tokens=50, messages=QUESTION, extra_body={"temperature": 0})
    whole = claude.messages.create(**ask).content[0].text
    stop = whole.split()[3]
    assert 0 < whole.index(stop)
    blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    counted = claude.messages.count_tokens(model="x", messages=QUESTION, system=blocks)
    assert counted.input_tokens > claude.messages.count_tokens(model="x", messages=QUESTION).input_tokens
    cut = claude.messages.create(**ask, stop_sequences=["never", stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].text == whole[: whole.index(stop)]


def test_tools_make_a_round_trip(claude):
    choice = {"type": "any", "disable_parallel_tool_use": True}
    ask = dict(model="x", max_tokens=200, tools=[WEATHER], tool_choice=choice)
    whole = claude.messages.create(**ask, messages=QUESTION)
    assert whole.stop_reason == "tool_use"
    (call,) = [block for block in whole.content if block.type == "tool_use"]
    assert call.name == "weather" and call.input["city"] in ("Oslo", "Rome")
    with claude.messages.stream(**ask, messages=QUESTION) as stream:
        streamed = stream.get_final_message()
    (same,) = [block for block in streamed.content if block.type == "tool_use"]
    assert same.name == "weather" and same.input["city"] in ("Oslo", "Rome")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain.", "is_error": False}
    turns = [*QUESTION, whole.to_param(), {"role": "user", "content": [result]}]
    answer = claude.messages.create(model="x", max_tokens=20, tools=[WEATHER], messages=turns)
    assert answer.content


def test_an_answer_fits_a_schema(claude):
    output = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = claude.messages.create(model="x", max_tokens=50, messages=QUESTION, output_config=output)
    assert json.loads(answer.content[0].text)["city"] in ("Oslo", "Rome")


def test_the_model_is_listed(claude):
    (model,) = claude.models.list().data
    assert (model.id, model.type) == ("loquent-tiny", "model")
    assert claude.models.retrieve("loquent-tiny").created_at == model.created_at


def test_errors_are_typed(claude, start):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.messages.create(model="x", max_tokens=5, messages=[{"role": "user", "content": [image]}])
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert "messages[0].content[0].type" in refused.value.body["error"]["message"]
    assert refused.value.request_id.startswith("req_")
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.list()
    locked = start("--api-key", "secret")
    with sdk(locked.url, "wrong") as wrong, pytest.raises(anthropic.AuthenticationError):
        wrong.messages.create(model="x", max_tokens=5, messages=QUESTION)
    with sdk(locked.url, "secret") as right:
        assert right.messages.create(model="x", max_tokens=5, messages=QUESTION).content


def test_a_full_context_is_told_in_anthropics_words(start):
    """Claude Code shortens a conversation when it reads them."""
    server = start("--simulate", "inf", "--context", "256")
    with sdk(server.url) as client, pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model="x", max_tokens=5, messages=[{"role": "user", "content": "word " * 9000}])
    tokens, maximum = re.fullmatch(
        r"prompt is too long: (\d+) tokens > (\d+) maximum", refused.value.body["error"]["message"]
    ).groups()
    assert int(tokens) > int(maximum)


def test_a_block_for_billing_is_no_prompt(claude):
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1.0.0; cch=abc;"}
    brief = {"type": "text", "text": "Be brief."}
    counts = [
        claude.messages.count_tokens(model="x", messages=QUESTION, system=system).input_tokens
        for system in ([brief], [billing, brief])
    ]
    assert counts[0] == counts[1]


def test_long_prompts_are_pinged(start):
    slow = start("--simulate", "0.5", "--heartbeat-s", "1")
    ask = {"model": "x", "max_tokens": 3, "stream": True, "messages": QUESTION}
    with httpx.stream("POST", f"{slow.url}/v1/messages", json=ask, timeout=60) as response:
        lines = list(response.iter_lines())
    assert lines.count("event: ping") >= 2, "one comes at the start of every message"
    assert lines[-3:-1] == ["event: message_stop", 'data: {"type":"message_stop"}']


class Thinker(http.server.BaseHTTPRequestHandler):
    """An upstream server of chat completions alone, which thinks and keeps what it was asked."""

    asked = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/chat/completions":
            return self.send_error(404)
        Thinker.asked.append((self.path, self.headers.get("authorization"), body))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        deltas = [{"reasoning_content": "Let me "}, {"reasoning_content": "see."}, {"content": "Forty-two."}]
        for delta in deltas:
            self.event({"choices": [{"index": 0, "delta": delta}]})
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}})
        self.wfile.write(b"data: [DONE]\n\n")

    def do_GET(self):
        """The list of models, by which a server in front finds out that this one is there."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "thinker"}]}')

    def event(self, members):
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "thinker"}
        self.wfile.write(f"data: {json.dumps(chunk | members)}\n\n".encode())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(handler):
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{upstream.server_port}"
    upstream.shutdown()
    upstream.server_close()


@pytest.fixture
def thinker():
    with serving(Thinker) as url:
        yield url


class Caller(Thinker):
    """An upstream that calls the tool `weather`, and tells what it said if it sees the whole conversation."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/chat/completions":
            return self.send_error(404)
        Caller.asked.append(body)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        roles = [message["role"] for message in body["messages"]]
        if roles[-1] != "tool":
            function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
            call = {"index": 0, "id": "call_1", "type": "function", "function": function}
            delta, reason = {"tool_calls": [call]}, "tool_calls"
        else:
            knows = roles == ["user", "assistant", "tool"] and "tools" in body
            said = body["messages"][-1]["content"] if knows else "I have forgotten what we spoke of."
            delta, reason = {"content": said}, "stop"
        self.event({"choices": [{"index": 0, "delta": delta}]})
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        self.wfile.write(b"data: [DONE]\n\n")


def test_a_tool_runner_keeps_its_conversation(start):
    """The SDK begins a thread, which this server refuses, and then sends all messages each time."""

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Tells the weather.

        Args:
            city: The place.
        """
        return f"It rains in {city}."

    with serving(Caller) as url, sdk(start("--upstream", url).url) as client:
        ask = dict(model="caller", max_tokens=100, tools=[weather], messages=QUESTION)
        final = client.beta.messages.tool_runner(**ask).until_done()
    assert final.content[0].text == "It rains in Oslo."


@pytest.mark.parametrize("streams", [True, False])
def test_an_upstreams_thinking_becomes_blocks(start, thinker, streams):
    Thinker.asked.clear()
    front = start("--upstream", thinker)
    ask = dict(model="thinker", max_tokens=2000, messages=QUESTION, thinking={"type": "enabled", "budget_tokens": 1024})
    with sdk(front.url, "theirs") as client:
        if streams:
            with client.messages.stream(**ask) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**ask)
    thinking, text = message.content
    assert (thinking.thinking, text.text) == ("Let me see.", "Forty-two.")
    assert thinking.signature
    assert (message.usage.input_tokens, message.usage.output_tokens) == (7, 9)
    path, key, body = Thinker.asked[-1]
    assert (path, key) == ("/v1/chat/completions", "Bearer theirs")
    assert body["messages"] == QUESTION
    assert body["chat_template_kwargs"] == {"enable_thinking": True}
