"""OpenAI's Responses API through openai-python, unmodified: responses, streams, background and resume."""

import json
from typing import Literal

import httpx
import openai
import pydantic
import pytest

QUESTION = "What is token streaming?"
TIME = {
    "type": "function",
    "name": "time",
    "description": "Tells the time",
    "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
}


def sdk(server, key="none"):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
def simulated(start):
    """The simulated engine says what it is told to."""
    return sdk(start("--simulate", "500"))


def test_a_response_and_its_stream_agree(client):
    whole = client.responses.create(model="x", input=QUESTION, temperature=0, metadata={"a": "b"})
    assert whole.status == "completed" and whole.model == "loquent-tiny"
    assert len(whole.output_text) > 20 and whole.metadata == {"a": "b"}
    with client.responses.stream(model="x", input=QUESTION, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens > 5
    assert final.usage.total_tokens == final.usage.input_tokens + final.usage.output_tokens
    assert client.responses.retrieve(final.id).output_text == text


def test_a_function_of_a_namespace_makes_a_round_trip(simulated):
    """As Codex sends the tools of MCP servers."""
    call = {"name": "mcp__adder__add", "arguments": {"a": 1}}
    adder = {
        "type": "namespace",
        "name": "mcp__adder",
        "description": "Adds.",
        "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}],
    }
    script = f"say=<tool_call>{json.dumps(call)}</tool_call>"
    with simulated.responses.stream(model="x", input=script, tools=[adder]) as stream:
        final = stream.get_final_response()
    (item,) = final.output
    assert (item.type, item.namespace, item.name) == ("function_call", "mcp__adder", "add")
    assert json.loads(item.arguments) == {"a": 1}
    again = simulated.responses.create(
        model="x",
        tools=[adder],
        input=[
            {"role": "user", "content": script},
            item.to_dict(),
            {"type": "function_call_output", "call_id": item.call_id, "output": "2"},
            {"type": "custom_tool_call", "call_id": "b", "name": "apply_patch", "input": "*** Begin Patch"},
            {"type": "custom_tool_call_output", "call_id": "b", "output": "Done."},
            {"role": "user", "content": "say=It is 2."},
        ],
    )
    assert again.output_text == "It is 2."


def test_a_conversation_by_previous_response_id(client):
    first = client.responses.create(model="x", input=QUESTION, instructions="Be brief.", temperature=0)
    second = client.responses.create(
        model="x", input="Tell me more.", previous_response_id=first.id, temperature=0
    )
    by_hand = client.responses.create(
        model="x",
        input=[
            {"role": "user", "content": QUESTION},
            *first.output,
            {"role": "user", "content": "Tell me more."},
        ],
        temperature=0,
        store=False,
    )
    assert second.output_text == by_hand.output_text
    items = client.responses.input_items.list(second.id, order="asc", limit=2)
    assert [item.type for item in items] == ["message"] * 3, "pages follow each other"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as gone:
        client.responses.create(model="x", input="x", previous_response_id=first.id)
    assert gone.value.code == "previous_response_not_found"
    counted = client.responses.input_tokens.count(model="x", input=QUESTION, instructions="Be brief.")
    assert counted.input_tokens == first.usage.input_tokens


class Trip(pydantic.BaseModel):
    """What a structured answer must be."""

    model_config = pydantic.ConfigDict(extra="forbid")
    city: Literal["Oslo", "Rome"]
    days: Literal[1, 2, 3]


def test_a_conversation_is_summed_up_and_goes_on(client):
    first = client.responses.create(model="x", input=QUESTION, temperature=0)
    compacted = client.responses.compact(model="x", input="And now?", previous_response_id=first.id)
    assert (compacted.object, [item.type for item in compacted.output]) == ("response.compaction", ["compaction"])
    assert compacted.usage.output_tokens > 0
    history = [item.model_dump(exclude_none=True) for item in compacted.output]
    answer = client.responses.create(model="x", input=[*history, {"role": "user", "content": QUESTION}])
    assert answer.status == "completed" and answer.output_text


def test_structured_output_is_parsed(client):
    parsed = client.responses.parse(
        model="x", input="Plan a trip.", text_format=Trip, max_output_tokens=200, temperature=0
    )
    assert isinstance(parsed.output_parsed, Trip)


def test_functions_make_a_round_trip(simulated):
    call = {"name": "time", "arguments": {"zone": "Zürich"}}
    script = f"say=Wait. <tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"
    history = [{"role": "user", "content": script}]
    with simulated.responses.stream(model="x", input=history, tools=[TIME]) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    [said, called] = response.output
    assert said.type == "message" and called.type == "function_call"
    assert json.loads(called.arguments) == call["arguments"]
    history += response.output
    history.append({"type": "function_call_output", "call_id": called.call_id, "output": "noon"})
    history.append({"role": "user", "content": "say=It is noon."})
    answer = simulated.responses.create(model="x", input=history, tools=[TIME])
    assert answer.output_text == "It is noon."


def test_a_custom_tool_makes_a_round_trip(simulated):
    """As Codex sends `apply_patch`."""
    patch = {
        "type": "custom",
        "name": "apply_patch",
        "description": "Changes files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
    }
    text = "*** Begin Patch\n+a \"b\"\n*** End Patch"
    script = f"say=<tool_call>{json.dumps({'name': 'apply_patch', 'arguments': {'input': text}})}</tool_call>"
    history = [{"role": "user", "content": script}]
    with simulated.responses.stream(model="x", input=history, tools=[patch]) as stream:
        pieces = [event.delta for event in stream if event.type == "response.custom_tool_call_input.delta"]
        response = stream.get_final_response()
    [called] = response.output
    assert (called.type, called.name, called.input) == ("custom_tool_call", "apply_patch", text)
    assert "".join(pieces) == text and response.tools[0].name == "apply_patch"
    history += response.output
    history.append({"type": "custom_tool_call_output", "call_id": called.call_id, "output": "Done."})
    history.append({"role": "user", "content": "say=It is done."})
    answer = simulated.responses.create(model="x", input=history, tools=[patch])
    assert answer.output_text == "It is done."


def test_a_required_call_fits_its_schema(client):
    zone = {"type": "object", "properties": {"zone": {"enum": ["Oslo", "Rome"]}}, "required": ["zone"]}
    tool = {**TIME, "parameters": {**zone, "additionalProperties": False}}
    response = client.responses.create(
        model="x", input="What time is it?", tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    [call] = response.output
    assert json.loads(call.arguments)["zone"] in ("Oslo", "Rome")


def test_background_and_a_broken_connection(simulated):
    begun = simulated.responses.create(model="x", input="tokens=2000", background=True, stream=True)
    seen = []
    for event in begun:
        seen.append(event)
        if len(seen) == 20:
            break
    begun.close()
    response_id = seen[0].response.id
    assert simulated.responses.retrieve(response_id).status == "in_progress"
    for event in simulated.responses.retrieve(
        response_id, stream=True, starting_after=seen[-1].sequence_number
    ):
        seen.append(event)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    done = simulated.responses.retrieve(response_id)
    assert done.status == "completed" and done.output_text == text
    again = list(simulated.responses.retrieve(response_id, stream=True))
    assert [event.to_json() for event in again] == [event.to_json() for event in seen]


def test_a_background_response_is_cancelled(simulated):
    begun = simulated.responses.create(model="x", input="tokens=100000", background=True)
    assert begun.status == "queued"
    assert simulated.responses.cancel(begun.id).status == "cancelled"
    assert simulated.responses.retrieve(begun.id).status == "cancelled"


def test_a_background_response_survives_a_crash_as_far_as_it_came(start, tmp_path):
    arguments = ("--simulate", "200", "--store", str(tmp_path / "store"))
    server = start(*arguments)
    client = sdk(server)
    ended = client.responses.create(model="x", input="tokens=20")
    seen = []
    begun = client.responses.create(model="x", input="tokens=100000", background=True, stream=True)
    with pytest.raises(openai.APIConnectionError):
        for event in begun:
            seen.append(event)
            # By then it has been stored more than once.
            if len(seen) == 1000:
                server.process.kill()
    server.stop()
    again = sdk(start(*arguments))
    assert again.responses.retrieve(ended.id).output_text == ended.output_text
    lost = again.responses.retrieve(seen[0].response.id)
    text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert lost.status == "failed" and "restarted" in lost.error.message
    assert lost.output_text and text.startswith(lost.output_text)
    after = seen[-1].sequence_number
    rest = again.responses.retrieve(lost.id, stream=True, starting_after=after)
    with pytest.raises(openai.APIConnectionError):
        for last in rest:
            assert last.type == "response.failed" and last.sequence_number == after + 1


def test_responses_belong_to_their_key(start):
    server = start("--simulate", "inf", "--api-key", "sk-one", "--api-key", "sk-two")
    one, two = sdk(server, "sk-one"), sdk(server, "sk-two")
    mine = one.responses.create(model="x", input="tokens=5")
    assert one.responses.retrieve(mine.id).id == mine.id
    for attempt in (
        lambda: two.responses.retrieve(mine.id),
        lambda: two.responses.delete(mine.id),
        lambda: two.responses.cancel(mine.id),
        lambda: two.responses.input_items.list(mine.id),
    ):
        with pytest.raises(openai.NotFoundError):
            attempt()
    with pytest.raises(openai.AuthenticationError):
        sdk(server, "sk-three").responses.retrieve(mine.id)


def test_an_upstream_that_knows_only_chats_answers_too(server, start, client):
    front = sdk(start("--upstream", server.url))
    direct = client.responses.create(model="x", input=QUESTION, temperature=0)
    with front.responses.stream(model="x", input=QUESTION, temperature=0) as stream:
        response = stream.until_done().get_final_response()
    assert response.output_text == direct.output_text
    assert response.usage.output_tokens == direct.usage.output_tokens
    goes_on = front.responses.create(model="x", input="Tell me more.", previous_response_id=response.id)
    assert goes_on.status == "completed"


def test_what_is_left_out_is_named(http):
    body = {"input": "tokens=5", "tools": [{"type": "web_search"}], "max_output_tokens": 5, "unknown": 1}
    response = httpx.post(f"{http.base_url}/v1/responses", json=body)
    assert response.status_code == 200
    ignored = response.headers["x-loquent-ignored-parameters"]
    assert "tools[0] (web_search)" in ignored and "unknown" in ignored
