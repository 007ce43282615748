"""OpenAI's SDK for Python, by the Responses API."""

import json

from pydantic import BaseModel
from sdk import keep, kept, main, read_word, recipe

client = recipe()["client"]
TOOL = {
    "type": "function",
    "name": "read_word",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    },
}


class City(BaseModel):
    city: str


def ask(prompt, previous=None):
    response = client.responses.create(model="any", input=prompt, tools=[TOOL], previous_response_id=previous)
    while calls := [item for item in response.output if item.type == "function_call"]:
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": read_word(**json.loads(call.arguments))}
            for call in calls
        ]
        response = client.responses.create(model="any", input=results, tools=[TOOL], previous_response_id=response.id)
    keep(response.id)
    return response.output_text


def stream(prompt):
    with client.responses.stream(model="any", input=prompt) as events:
        for event in events:
            if event.type == "response.output_text.delta":
                yield event.delta
        events.get_final_response()


def schema(prompt):
    return client.responses.parse(model="any", input=prompt, text_format=City).output_parsed.model_dump_json()


main(ask, stream, lambda prompt: ask(prompt, kept()), schema)
