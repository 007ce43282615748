"""pydantic-ai: an agent with a tool, objects by its output tool."""

from pydantic import BaseModel
from pydantic_ai.messages import ModelMessagesTypeAdapter
from sdk import KEPT, main, read_word, recipe

agent = recipe()["agent"]


class City(BaseModel):
    city: str


def ask(prompt, history=None):
    result = agent.run_sync(prompt, message_history=history)
    KEPT.write_bytes(result.all_messages_json())
    return result.output


async def stream(prompt):
    async with agent.run_stream(prompt) as result:
        async for piece in result.stream_text(delta=True, debounce_by=None):
            yield piece


def schema(prompt):
    return agent.run_sync(prompt, output_type=City).output.model_dump_json()


def main_with_tool():
    agent.tool_plain(read_word)
    main(ask, stream, lambda prompt: ask(prompt, ModelMessagesTypeAdapter.validate_json(KEPT.read_bytes())), schema)


main_with_tool()
