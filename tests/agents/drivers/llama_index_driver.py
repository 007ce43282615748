"""LlamaIndex: an agent with a tool and a memory, objects by a JSON schema."""

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel
from sdk import keep, kept, main, read_word, recipe

llm = recipe()["llm"]


class City(BaseModel):
    """A city."""

    city: str


async def turn(prompt, memory):
    agent = FunctionAgent(tools=[FunctionTool.from_defaults(read_word)], llm=llm)
    answer = await agent.run(prompt, memory=memory)
    # Its own form of a memory, `to_dict`, does not work with today's pydantic.
    keep([(one.role.value, one.content) for one in memory.get_all() if one.content])
    return str(answer)


def ask(prompt, history=()):
    return asyncio.run(turn(prompt, ChatMemoryBuffer.from_defaults(list(history), llm=llm)))


def go_on(prompt):
    spoken = [(role, text) for role, text in kept() if role in ("user", "assistant")]
    return ask(prompt, [ChatMessage(role=role, content=text) for role, text in spoken])


async def stream(prompt):
    async for piece in await llm.astream_chat([ChatMessage(prompt)]):
        yield piece.delta or ""


def schema(prompt):
    return llm.as_structured_llm(City).complete(prompt).raw.model_dump_json()


main(ask, stream, go_on, schema)
