"""Ollama's Python package, unmodified."""

import httpx
import ollama
import pytest

QUESTION = [{"role": "user", "content": "What is token streaming?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
}


@pytest.fixture
def llama(server):
    return ollama.Client(host=server.url)


def weather(city: str) -> str:
    """Tells the weather.

    Args:
      city: The city.
    """
    return f"Rain in {city}."


def test_the_model_is_found_and_described(llama):
    (model,) = llama.list().models
    assert model.model == "loquent-tiny" and model.modified_at.year > 2000
    assert model.size > 1 << 20 and model.details.parameter_size.endswith("M")
    assert model.details.quantization_level and model.details.family != "loquent"
    shown = llama.show(model.model)
    assert "completion" in shown.capabilities
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] > 0
    assert llama.ps().models[0].context_length > 0


def test_streamed_and_whole_answers_agree(llama):
    ask = dict(model="loquent-tiny", messages=QUESTION, options={"temperature": 0, "num_predict": 1000})
    whole = llama.chat(**ask)
    parts = list(llama.chat(**ask, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content != ""
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].done_reason == whole.done_reason == "stop"
    assert parts[-1].eval_count == whole.eval_count > 1
    assert whole.prompt_eval_count == parts[-1].prompt_eval_count > 1
    assert whole.total_duration >= whole.eval_duration > 0
    generated = llama.generate(model="loquent-tiny", prompt=QUESTION[0]["content"], options=ask["options"])
    assert generated.response == whole.message.content


def test_log_probabilities_come_with_the_text(llama):
    ask = dict(model="x", options={"temperature": 0, "num_predict": 6}, logprobs=True, top_logprobs=2)
    chat = llama.chat(messages=QUESTION, **ask)
    parts = list(llama.chat(messages=QUESTION, stream=True, **ask))
    streamed = [entry.token for part in parts for entry in part.logprobs or []]
    assert streamed == [entry.token for entry in chat.logprobs] and "".join(streamed).startswith(chat.message.content)
    assert all(len(entry.top_logprobs) == 2 for entry in chat.logprobs)
    assert llama.generate(prompt="Hi", raw=True, **ask).logprobs[0].logprob <= 0


def test_an_answer_fits_a_schema(llama):
    answer = llama.chat(model="x", messages=QUESTION, format=SCHEMA, options={"num_predict": 200})
    assert any(city in answer.message.content for city in ("Oslo", "Rome"))
    answer = llama.generate(model="x", prompt="{}", format=SCHEMA, stream=True, options={"num_predict": 200})
    text = "".join(part.response for part in answer)
    assert any(city in text for city in ("Oslo", "Rome")), text


def test_tools_make_a_round_trip(start):
    llama = ollama.Client(host=start("--simulate", "inf").url)
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    ask = [{"role": "user", "content": f"say={call}"}]
    parts = list(llama.chat(model="x", messages=ask, tools=[weather], stream=True))
    (part,) = [part for part in parts if part.message.tool_calls]
    (wanted,) = part.message.tool_calls
    assert (wanted.function.name, wanted.function.arguments) == ("weather", {"city": "Oslo"})
    result = {"role": "tool", "tool_name": "weather", "content": weather(**wanted.function.arguments)}
    turns = [*ask, part.message, result, {"role": "user", "content": "say=It rains."}]
    assert llama.chat(model="x", messages=turns, tools=[weather]).message.content == "It rains."


def test_errors_and_refusals_are_the_packages_own(llama, start):
    with pytest.raises(ollama.ResponseError, match="'temperature'") as refused:
        llama.chat(model="x", messages=QUESTION, options={"temperature": 9})
    assert refused.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="there is no model"):
        llama.pull("x")
    assert llama.pull("loquent-tiny").status == "success"
    assert [part.status for part in llama.pull("loquent-tiny:latest", stream=True)] == ["success"]
    elsewhere = start("--ollama-api", "never")
    with pytest.raises(ollama.ResponseError, match="--ollama-api"):
        ollama.Client(host=elsewhere.url).list()


def test_openais_paths_need_no_version(server):
    models = httpx.get(f"{server.url}/models").json()
    assert models["data"][0]["id"] == "loquent-tiny"
    missing = httpx.get(f"{server.url}/v2/models").json()["error"]["message"]
    assert f"{server.url}/v1" in missing
