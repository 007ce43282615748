"""Anthropic's SDK for Python: the tool runner as it is by default, which begins a thread on the server."""

from anthropic import beta_tool
from pydantic import BaseModel
from sdk import keep, kept, main, read_word, recipe

client = recipe()["client"]
COMMON = {"model": "any", "max_tokens": 1000}


class City(BaseModel):
    city: str


def ask(prompt, history=()):
    messages = [*history, {"role": "user", "content": prompt}]
    tools = [beta_tool(read_word)]
    runner = client.beta.messages.tool_runner(**COMMON, messages=messages, tools=tools)
    final = runner.until_done()
    text = "".join(block.text for block in final.content if block.type == "text")
    keep([*messages, {"role": "assistant", "content": text}])
    return text


def stream(prompt):
    with client.messages.stream(**COMMON, messages=[{"role": "user", "content": prompt}]) as events:
        yield from events.text_stream


def schema(prompt):
    messages = [{"role": "user", "content": prompt}]
    return client.messages.parse(**COMMON, messages=messages, output_format=City).parsed_output.model_dump_json()


main(ask, stream, lambda prompt: ask(prompt, kept()), schema)
