"""Every API over `--upstream` with a real engine: what comes through is what the engine itself says."""

import json

import httpx
import jsonschema
import pytest

from .asks import (
    APIS,
    CHAT_APIS,
    GREEDY,
    QUESTION,
    ask,
    chat,
    completion,
    messages,
    ollama,
    post,
    read,
    responses,
    user,
)
from .engines import CONTEXT, MODEL, PATIENCE_S

TOKENS = 12
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
PLAN = "Plan a trip to Rome. Answer in JSON."


def direct(api, engine):
    """The engine's own answer to the question of an API that Loquent puts into chat completions."""
    return ask(completion if api is completion else chat, engine.url, QUESTION, TOKENS)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__)
def test_answers_streams_and_usage_are_the_engines_own(engine, front, api):
    expected = direct(api, engine)
    assert expected.text and expected.usage[1] <= TOKENS
    whole, streamed = ask(api, front.url, QUESTION, TOKENS), read(api, front.url, QUESTION, TOKENS)
    assert whole.text == streamed.text == expected.text
    assert whole.usage == streamed.usage == expected.usage
    assert streamed.is_whole


@pytest.mark.parametrize("api", [responses, messages], ids=lambda api: api.__name__)
def test_an_api_that_the_engine_speaks_itself_passes_unread(engine, sole, api):
    path, body = api(QUESTION, TOKENS)
    own = post(engine, path, body)
    if own.status_code in (404, 405, 501):
        pytest.skip(f"{engine.name} does not speak {path}")
    assert own.status_code == 200, own.text
    expected = ask(api, engine.url, QUESTION, TOKENS)
    assert expected.text
    assert ask(api, sole.url, QUESTION, TOKENS).text == expected.text
    assert read(api, sole.url, QUESTION, TOKENS).text == expected.text


def test_metrics_count_the_tokens_that_the_engine_counts(engine, front):
    names = ("prompt_tokens_total", "generation_tokens_total")
    before = [front.metric(name) for name in names]
    usages = [read(chat, front.url, text, TOKENS).usage for text in ("One, two,", QUESTION)]
    assert [front.metric(name) for name in names] == [had + sum(new) for had, new in zip(before, zip(*usages))]


def test_models_and_tokens_are_those_of_the_engine(engine, front, sole):
    for server in (front, sole):
        assert [one["id"] for one in httpx.get(f"{server.url}/v1/models").json()["data"]] == [MODEL]
    body = {"model": MODEL, "prompt": QUESTION, "content": QUESTION}
    expected = engine.ask("/tokenize", body)["tokens"]
    assert len(expected) > 5
    for server in (front, sole):
        assert post(server, "/tokenize", body).json()["tokens"] == expected


def json_of(api, url, stream):
    """The object that an answer with a schema is."""
    schema = {"name": "trip", "schema": SCHEMA, "strict": True}
    form = {
        "chat": {"response_format": {"type": "json_schema", "json_schema": schema}},
        "responses": {"text": {"format": {"type": "json_schema", **schema}}},
        "messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "ollama": {"format": SCHEMA},
    }[api.__name__]
    answer = (read if stream else ask)(api, url, PLAN, 60, **form)
    assert answer.is_whole, answer
    return json.loads(answer.text)


@pytest.mark.parametrize("api", CHAT_APIS, ids=lambda api: api.__name__)
def test_an_answer_fits_its_schema(engine, front, api):
    expected = json_of(chat, engine.url, False)
    jsonschema.validate(expected, SCHEMA)
    assert json_of(api, front.url, False) == json_of(api, front.url, True) == expected


FUNCTION = {"name": "weather", "description": "Tells the weather", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]


def calls_in_stream(lines):
    """The functions that the chunks of a stream call together."""
    calls = {}
    for line in lines:
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            for part in choice["delta"].get("tool_calls") or []:
                call = calls.setdefault(part["index"], {"name": "", "arguments": ""})
                for member in call:
                    call[member] += part["function"].get(member) or ""
    return list(calls.values())


def functions(answer):
    """The functions that a whole chat completion calls."""
    calls = answer["choices"][0]["message"].get("tool_calls") or []
    return [{name: call["function"][name] for name in ("name", "arguments")} for call in calls]


#: How each API says that a tool must be called: any, or this one.
CHOICES = {
    "required": ("required", "required", {"type": "any"}),
    "named": ({"type": "function", "function": {"name": "weather"}}, {"type": "function", "name": "weather"},
              {"type": "tool", "name": "weather"}),
}


@pytest.fixture(params=CHOICES)
def choice(request, engine):
    if not engine.constrains_calls:
        pytest.skip(f"{engine.name} does not hold a model that must call to the tool's schema")
    return CHOICES[request.param]


def test_a_tool_that_must_be_called_is_called_as_the_engine_calls_it(engine, front, choice):
    path, body = chat("How is the weather in Rome?", 200, tools=TOOLS, tool_choice=choice[0])
    expected = functions(engine.ask(path, body))
    for call in expected:
        assert call["name"] == "weather"
        jsonschema.validate(json.loads(call["arguments"]), SCHEMA)
    assert functions(post(front, path, body).json()) == expected
    with httpx.stream("POST", front.url + path, json={**body, "stream": True}, timeout=PATIENCE_S) as stream:
        streamed = calls_in_stream(stream.iter_lines())
    assert [(call["name"], json.loads(call["arguments"])) for call in streamed] == [
        (call["name"], json.loads(call["arguments"])) for call in expected
    ]


def test_a_tool_that_must_be_called_is_called_in_every_api(engine, front, choice):
    asked = "How is the weather in Rome?"
    path, body = responses(asked, 200, tools=[{"type": "function", **FUNCTION}], tool_choice=choice[1])
    items = post(front, path, body).json()["output"]
    calls = [(item["name"], json.loads(item["arguments"])) for item in items if item["type"] == "function_call"]
    tool = {"name": "weather", "description": "Tells the weather", "input_schema": SCHEMA}
    path, body = messages(asked, 200, tools=[tool], tool_choice=choice[2])
    blocks = post(front, path, body).json()["content"]
    used = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    assert calls == used
    for name, arguments in calls:
        assert name == "weather"
        jsonschema.validate(arguments, SCHEMA)


def test_a_tools_result_reaches_the_model(engine, front):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    turns = [*user("How is the weather in Rome?"), {"role": "assistant", "content": "", "tool_calls": [call]},
             {"role": "tool", "tool_call_id": "call_1", "content": "Rain."}]
    body = {**GREEDY, "messages": turns, "max_tokens": TOKENS}
    path = "/v1/chat/completions"
    expected = engine.ask(path, body)["choices"][0]["message"]["content"]
    assert post(front, path, body).json()["choices"][0]["message"]["content"] == expected


def errors(server, body, path="/v1/chat/completions"):
    """The status and the message of the answers, whole and as a stream; no message where it is no refusal."""
    found = []
    for stream in (False, True):
        answer = post(server, path, {**body, "stream": stream})
        error = answer.json()["error"]["message"] if answer.status_code != 200 else None
        found.append((answer.status_code, error))
    return found


LONG = "word " * CONTEXT * 2


@pytest.mark.parametrize("wrong", [
    pytest.param(dict(messages=user(LONG)), id="too-long"),
    pytest.param(dict(messages=user("x"), temperature="hot"), id="temperature"),
    pytest.param(dict(messages="x"), id="messages"),
    pytest.param(dict(messages=user("x"), response_format={"type": "json_schema", "json_schema": {"schema": 7}}),
                 id="schema"),
])
def test_a_refusal_is_the_engines_own_or_loquents(engine, front, sole, wrong):
    body = {**GREEDY, "max_tokens": 5, **wrong}
    own = errors(engine, body)
    for server in (front, sole):
        through = errors(server, body)
        print(own, through)
        for (status, text), (expected, _) in zip(through, own):
            # Loquent reads a request before it passes it on, and refuses what the engine may let pass or fail at.
            assert status == expected or status == 400
            assert text if status != 200 else expected == 200


def test_an_unknown_model_is_refused_where_there_are_several_and_else_is_the_engines_matter(engine, sole, start):
    body = {**GREEDY, "model": "no-such-model", "messages": user("x"), "max_tokens": 5}
    several = start("--upstream", f"{MODEL}={engine.url}", "--upstream", f"other={engine.url}")
    assert [status for status, _ in errors(several, body)] == [404, 404]
    # llama-server answers whatever model it is asked for.
    assert [status for status, _ in errors(sole, body)] == [status for status, _ in errors(engine, body)]


def test_a_prompt_that_is_too_long_is_told_in_each_apis_words(front):
    path, body = messages(LONG, 5)
    refused = post(front, path, body)
    assert refused.status_code == 400 and refused.json()["error"]["type"] == "invalid_request_error"
    path, body = responses(LONG, 5)
    assert post(front, path, body).status_code == 400
    path, body = ollama(LONG, 5)
    refused = post(front, path, body)
    assert refused.status_code == 400 and isinstance(refused.json()["error"], str)
