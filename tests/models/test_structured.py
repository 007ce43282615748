"""JSON schemas, tools and limits of reasoning, with a trained model that was not trained for them."""

import json

import jsonschema
import openai
import pytest

from chat_templates import with_template

SCHEMAS = {
    "trip": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 1, "maxLength": 20},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "tags": {"type": "array", "items": {"enum": ["sun", "rain", "snow"]}, "maxItems": 3},
        },
        "required": ["city", "days", "tags"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {
            "who": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 16},
                               "age": {"type": ["integer", "null"], "minimum": 0, "maximum": 120}},
                "required": ["name", "age"],
                "additionalProperties": False,
            },
            "likes": {"type": "boolean"},
        },
        "required": ["who", "likes"],
        "additionalProperties": False,
    },
    "choice": {"anyOf": [
        {"type": "object", "properties": {"yes": {"const": True}}, "required": ["yes"], "additionalProperties": False},
        {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 10}, "minItems": 1, "maxItems": 4},
    ]},
    "date": {"type": "object", "properties": {"on": {"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"}},
             "required": ["on"], "additionalProperties": False},
}
ASKED = ["Plan a trip to Rome for me.", "Tell me about Ann, who is 30 and likes tea.", "}]\" not JSON at all"]


@pytest.fixture(scope="module")
def client(serve, smollm2):
    server = serve(smollm2, "--context", "2048")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def user(text):
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("name", [pytest.param("trip", marks=pytest.mark.quick), "nested", "choice", "date"])
def test_an_answer_is_always_json_that_fits_its_schema(client, name):
    form = {"type": "json_schema", "json_schema": {"name": name, "schema": SCHEMAS[name], "strict": True}}
    for seed, text in enumerate(ASKED):
        choice = client.chat.completions.create(
            model="any", messages=user(text), response_format=form, temperature=seed * 0.6, seed=seed, max_tokens=400,
        ).choices[0]
        assert choice.finish_reason == "stop", choice
        jsonschema.validate(json.loads(choice.message.content), SCHEMAS[name])


def tool(name):
    function = {"name": name, "description": f"Tells the {name}", "parameters": SCHEMAS["trip"]}
    return {"type": "function", "function": function}


TOOLS = [tool("weather"), tool("time"), tool("news")]


@pytest.mark.parametrize("named", [pytest.param("weather", marks=pytest.mark.quick), "news"])
def test_the_named_tool_is_called_once_and_as_it_says(client, named):
    for temperature in (0, 1.2):
        choice = client.chat.completions.create(
            model="any", messages=user("How is the weather in Oslo?"), tools=TOOLS, temperature=temperature, seed=7,
            tool_choice={"type": "function", "function": {"name": named}}, max_tokens=400,
        ).choices[0]
        (call,) = choice.message.tool_calls
        assert call.function.name == named
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS["trip"])


def test_whatever_is_called_is_a_tool_that_there_is(client):
    for choice, most in (("required", 8), ("auto", 8)):
        for seed in range(4):
            answer = client.chat.completions.create(
                model="any", messages=user("What time is it in Rome, and what is the news?"), tools=TOOLS, seed=seed,
                tool_choice=choice, temperature=0.8, max_tokens=400,
            ).choices[0]
            calls = answer.message.tool_calls or []
            assert (1 if choice == "required" else 0) <= len(calls) <= most
            for call in calls if answer.finish_reason == "tool_calls" else []:
                assert call.function.name in {"weather", "time", "news"}
                jsonschema.validate(json.loads(call.function.arguments), SCHEMAS["trip"])


THINKS = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
          "<|im_start|>assistant\n<think>\n")


@pytest.fixture(scope="module")
def thinking(serve, smollm2, tmp_path_factory):
    """SmolLM2 with a template that lets it think: its thoughts never end by themselves."""
    path = tmp_path_factory.mktemp("thinking") / "thinking.gguf"
    path.write_bytes(with_template(smollm2.read_bytes(), THINKS.encode()))
    server = serve(path, "--context", "2048")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk
    path.unlink()


@pytest.mark.parametrize("budget", [0, pytest.param(16, marks=pytest.mark.quick)])
def test_reasoning_ends_with_its_budget_and_the_answer_follows(thinking, budget):
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMAS["trip"], "strict": True}}
    for more in ({}, {"response_format": form}):
        answer = thinking.chat.completions.create(
            model="any", messages=user("Plan a trip to Rome."), temperature=0, max_tokens=200,
            extra_body={"thinking_budget_tokens": budget}, **more,
        )
        message = answer.choices[0].message
        thoughts = message.model_extra.get("reasoning_content") or ""
        assert message.content and "think>" not in message.content + thoughts
        assert len(thoughts.split()) <= budget, "a word is a token or more"
        assert bool(thoughts) == bool(budget)
        if more:
            jsonschema.validate(json.loads(message.content), SCHEMAS["trip"])
