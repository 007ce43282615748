"""Tools and JSON schemas, through openai-python."""

import contextlib
import json

import httpx
import openai
import pytest

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "tags": {"type": "array", "items": {"enum": ["sun", "rain"]}, "maxItems": 3},
    },
    "required": ["city", "days", "tags"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "Tells the " + name, "parameters": SCHEMA},
    }
    for name in ("weather", "time")
]
FORMAT = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}
INTERVALS = [1, 3, 8, "auto"]
CALLS = [("weather", {"city": "Zürich {}", "days": [1, 2]}), ("time", {})]


def fits(value):
    return (
        value["city"] in ("Oslo", "Rome")
        and 1 <= value["days"] <= 9
        and len(value["tags"]) <= 3
        and set(value["tags"]) <= {"sun", "rain"}
        and len(value) == 3
    )


def user(text):
    return [{"role": "user", "content": text}]


@pytest.fixture
def simulated(start):
    """The simulated engine says what it is told to."""
    server = start("--simulate", "inf")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def join(stream):
    """The text, calls, finish reason, usage and tokens with log-probabilities of a stream."""
    text, calls, reason, usage, entries = "", [], None, None, 0
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            text += choice.delta.content or ""
            entries += len(choice.logprobs.content) if choice.logprobs else 0
            for call in choice.delta.tool_calls or []:
                if call.id:
                    assert call.index == len(calls) and call.type == "function"
                    calls.append([call.function.name, ""])
                calls[call.index][1] += call.function.arguments
    return text, calls, reason, usage, entries


def test_tool_calls_are_complete_at_every_interval(simulated):
    script = "I look. " + "".join(
        "\n<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + "\n</tool_call>"
        for name, arguments in CALLS
    )
    seen = []
    for interval in INTERVALS:
        stream = simulated.chat.completions.create(
            model="x",
            messages=user("say=" + script),
            tools=TOOLS,
            logprobs=True,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"stream_interval": interval},
        )
        text, calls, reason, usage, entries = join(stream)
        assert (text, reason) == ("I look.", "tool_calls")
        assert [(name, json.loads(arguments)) for name, arguments in calls] == CALLS
        # The end token counts, and has neither text nor an entry.
        assert entries == usage.completion_tokens - 1
        seen.append((calls, usage.completion_tokens))
    assert all(one == seen[0] for one in seen)
    whole = simulated.chat.completions.create(model="x", messages=user("say=" + script), tools=TOOLS)
    message = whole.choices[0].message
    assert [[call.function.name, call.function.arguments] for call in message.tool_calls] == seen[0][0]
    assert len({call.id for call in message.tool_calls}) == 2 and message.content == "I look."


def test_tool_choice_none_leaves_the_text(simulated):
    script = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    answer = simulated.chat.completions.create(
        model="x", messages=user("say=" + script), tools=TOOLS, tool_choice="none"
    )
    assert answer.choices[0].message.content == script and not answer.choices[0].message.tool_calls


def test_calls_and_results_are_read(simulated):
    messages = [
        *user("What is the time?"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "time", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "It is noon."},
        *user("say=Thank you."),
    ]
    answer = simulated.chat.completions.create(model="x", messages=messages, tools=TOOLS)
    assert answer.choices[0].message.content == "Thank you."


@pytest.mark.parametrize("interval", INTERVALS)
def test_a_model_is_held_to_a_schema(client, interval):
    stream = client.chat.completions.create(
        model="x",
        messages=user("Where shall I go?"),
        response_format=FORMAT,
        temperature=1.0,
        seed=5,
        stream=True,
        extra_body={"stream_interval": interval},
    )
    text, _, reason, _, _ = join(stream)
    assert reason == "stop" and fits(json.loads(text))


def test_a_model_is_held_to_json(client):
    answer = client.chat.completions.create(
        model="x",
        messages=user("Tell me about tokens in JSON."),
        response_format={"type": "json_object"},
        max_tokens=300,
    )
    choice = answer.choices[0]
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_required_tools_are_called(client, seed):
    answer = client.chat.completions.create(
        model="x",
        messages=user("What is the weather?"),
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=1.0,
        seed=seed,
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    [call] = choice.message.tool_calls
    assert call.function.name in ("weather", "time") and fits(json.loads(call.function.arguments))


def test_a_named_tool_is_called_once(simulated):
    """The model would call it again and again; the guide of the API says exactly once."""
    call = '<tool_call>\n{"name": "place", "arguments": {"name": "Oslo"}}\n</tool_call>'
    schema = {"type": "object", "properties": {"name": {"enum": ["Oslo"]}}, "required": ["name"]}
    answer = simulated.chat.completions.create(
        model="x",
        messages=user("say=" + "\n".join([call] * 3)),
        tools=[{"type": "function", "function": {"name": "place", "parameters": schema}}],
        tool_choice={"type": "function", "function": {"name": "place"}},
    )
    (choice,) = answer.choices
    assert (len(choice.message.tool_calls), choice.finish_reason) == (1, "tool_calls")


@pytest.mark.parametrize("strict", [True, None])
def test_an_object_has_the_properties_of_its_schema_alone(simulated, strict):
    """As pydantic writes schemas, without a word on other properties."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    wordy = '{"name": "Jason", "city": "Rome", "city": "Oslo"}'
    answer = simulated.chat.completions.create(
        model="x",
        messages=user(f"say={wordy}"),
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": strict}},
        max_tokens=200,
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"name"}


def test_a_named_tool_is_called(client):
    stream = client.chat.completions.create(
        model="x",
        messages=user("Hello"),
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "time"}},
        parallel_tool_calls=False,
        stream=True,
    )
    text, calls, reason, _, _ = join(stream)
    assert (text, reason, calls[0][0]) == ("", "tool_calls", "time") and fits(json.loads(calls[0][1]))


@pytest.mark.parametrize(
    ("param", "extra"),
    [
        (
            "response_format",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "x"}}}},
        ),
        ("response_format", {"response_format": {"type": "grammar"}}),
        ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
        (
            "response_format.json_schema.schema",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}}},
        ),
        (
            "response_format",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"enum": ["x" * 200_000]}},
                }
            },
        ),
        ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
        ("tools[0].type", {"tools": [{"type": "retrieval"}]}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}),
        ("tool_choice", {"tool_choice": "required"}),
        (
            "tools",
            {
                "tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "x"}}}],
                "tool_choice": "required",
            },
        ),
        ("ignore_eos", {"response_format": {"type": "json_object"}, "extra_body": {"ignore_eos": True}}),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(client, param, extra):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="x", messages=user("Hello"), max_tokens=5, **extra)
    assert error.value.param == param, error.value


def test_unconstrained_neighbours_say_the_same(client):
    """A row with a grammar beside others changes nothing for them."""

    def plain():
        return client.chat.completions.create(
            model="x", messages=user("What is a KV cache?"), temperature=0, max_tokens=40
        )

    alone = plain().choices[0].message.content
    stream = client.chat.completions.create(
        model="x", messages=user("Go"), response_format={"type": "json_object"}, max_tokens=200, stream=True
    )
    next(iter(stream))
    assert plain().choices[0].message.content == alone
    stream.close()


@pytest.mark.parametrize("streams", [False, True])
def test_a_schema_that_grows_too_complex_in_mid_answer_is_the_requests_error(http, streams):
    properties = {f"property{number}": {"type": "string", "maxLength": 3} for number in range(1500)}
    schema = {"type": "object", "properties": properties}
    form = {"type": "json_schema", "json_schema": {"name": "wide", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 300, "response_format": form}
    lines = []
    with http.stream("POST", "/v1/chat/completions", json={**body, "stream": streams}) as response:
        # A stream has begun by then: its error is an event, and the connection is broken off behind it.
        assert response.status_code == (200 if streams else 400)
        with contextlib.suppress(httpx.RemoteProtocolError):
            lines.extend(line for line in response.iter_lines() if line)
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert error["type"] == "invalid_request_error", error
    assert "simpler schema" in error["message"]
