"""OpenAI's Agents SDK for Python, with a session in a file."""

from pydantic import BaseModel
from sdk import main, read_word, recipe

from agents import Runner, SQLiteSession, function_tool

agent = recipe()["agent"]


class City(BaseModel):
    city: str


def ask(prompt):
    with_tool = agent.clone(tools=[function_tool(read_word)])
    return Runner.run_sync(with_tool, prompt, session=SQLiteSession("one", "conversation.db")).final_output


async def stream(prompt):
    run = Runner.run_streamed(agent, prompt)
    try:
        async for event in run.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                yield event.data.delta
    finally:
        run.cancel()


def schema(prompt):
    return Runner.run_sync(agent.clone(output_type=City), prompt).final_output.model_dump_json()


main(ask, stream, ask, schema)
