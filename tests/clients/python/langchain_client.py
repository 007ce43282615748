"""LangChain's ChatOpenAI against the server whose base URL is the argument."""

import sys
from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

base_url = sys.argv[1]
chat = ChatOpenAI(base_url=base_url, api_key="none", model="loquent-tiny", temperature=0, max_tokens=64)


@tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"rain in {city}"


question = [SystemMessage("You are helpful."), HumanMessage("What is Loquent?")]
whole = chat.invoke(question)
assert isinstance(whole, AIMessage) and whole.content, whole
assert whole.usage_metadata["output_tokens"] > 0, whole.usage_metadata

streamed = list(chat.stream(question, stream_usage=True))
assert "".join(chunk.content for chunk in streamed) == whole.content
assert len(streamed) > 2, "it came in pieces"
assert any(chunk.usage_metadata for chunk in streamed)

called = chat.bind_tools([weather], tool_choice="weather", strict=True).invoke("What is the weather in Paris?")
assert [call["name"] for call in called.tool_calls] == ["weather"], called
assert called.tool_calls[0]["args"]["city"] in ("Paris", "Rome"), called

schema = {
    "title": "answer",
    "type": "object",
    "properties": {"yes": {"type": "boolean"}},
    "required": ["yes"],
    "additionalProperties": False,
}
held = chat.with_structured_output(schema, method="json_schema").invoke("Is water wet?")
assert isinstance(held["yes"], bool), held

responses = ChatOpenAI(
    base_url=base_url, api_key="none", model="loquent-tiny", temperature=0, max_tokens=64, use_responses_api=True
)
answered = responses.invoke(question)
assert answered.text == whole.content, answered
pieces = "".join(chunk.text for chunk in responses.stream(question))
assert pieces == whole.content, pieces
