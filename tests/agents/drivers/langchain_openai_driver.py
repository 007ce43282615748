"""LangChain with OpenAI's API: an agent with a tool."""

from langchain.agents import create_agent
from langchain_core.messages import messages_from_dict, messages_to_dict
from pydantic import BaseModel
from sdk import keep, kept, main, read_word, recipe

llm = recipe()["llm"]


class City(BaseModel):
    """A city."""

    city: str


def ask(prompt, history=()):
    agent = create_agent(llm, tools=[read_word])
    messages = agent.invoke({"messages": [*history, ("user", prompt)]})["messages"]
    keep(messages_to_dict(messages))
    return messages[-1].text


def stream(prompt):
    for chunk in llm.stream(prompt):
        yield chunk.text


def schema(prompt):
    return llm.with_structured_output(City).invoke(prompt).model_dump_json()


main(ask, stream, lambda prompt: ask(prompt, messages_from_dict(kept())), schema)
