"""Answers of Loquent over QUIC, resumed wherever the network breaks.

`Client` is an `httpx2.Client` and `AsyncClient` an `httpx2.AsyncClient`: give one to openai,
anthropic or LangChain as `http_client`, and nothing else changes. `Client.stream_chat` is an
iterator of its own, with offsets from which an answer can be resumed.
"""

from ._answer import Answer, AsyncAnswer, Event, Reference
from ._client import AsyncClient, Client
from ._errors import AnswerGone, LoquentError
from ._transport import AsyncTransport, Transport

__all__ = [
    "Answer",
    "AnswerGone",
    "AsyncAnswer",
    "AsyncClient",
    "AsyncTransport",
    "Client",
    "Event",
    "LoquentError",
    "Reference",
    "Transport",
]
