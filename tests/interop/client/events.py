"""The same answers as server-sent events over HTTP: spec/session.md, section 5.

Written from the text of spec/ alone, without reading Loquent's code. Keep it so.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Optional

import httpx

from .session import COMPLETIONS


@dataclass(frozen=True)
class ServerEvent:
    data: str
    id: Optional[int]  # the log offset after it (S-5.1)

    @property
    def is_done(self) -> bool:
        return self.data == "[DONE]"

    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class EventStream:
    """An answer's events, and what is needed to go on with it elsewhere."""

    response: httpx.Response
    id: Optional[bytes] = None
    token: Optional[bytes] = None
    offset: int = 0
    is_complete: bool = False
    events: list[ServerEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lines = self.response.aiter_lines()  # one reading, which may pause

    async def __aiter__(self) -> AsyncIterator[ServerEvent]:
        """The events as they come. Raises httpx.RemoteProtocolError where the path is aborted (S-5.4)."""
        data: list[str] = []
        event_id: Optional[int] = None
        async for line in self._lines:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if line == "" and data:
                yield self._take(ServerEvent("\n".join(data), event_id))
                data, event_id = [], None
            elif name == "data":
                data.append(value)
            elif name == "id":
                event_id = int(value)
            # Lines that begin with a colon are comments, which say nothing.

    def _take(self, event: ServerEvent) -> ServerEvent:
        self.events.append(event)
        if event.id is not None:
            self.offset = event.id
        self.is_complete = self.is_complete or event.is_done
        return event

    async def read(self, characters: Optional[int] = None) -> str:
        """Reads to the end, or until there is that much text and a cursor behind it."""
        async for event in self:
            if characters is not None and event.id is not None and len(self.text()) >= characters:
                break
        return self.text()

    def chunks(self) -> list[Any]:
        return [event.json() for event in self.events if not event.is_done]

    def text(self, choice: int = 0) -> str:
        choices = (c for chunk in self.chunks() for c in chunk.get("choices", []))
        return "".join(c.get("delta", {}).get("content") or "" for c in choices if c["index"] == choice)


@contextlib.asynccontextmanager
async def ask_events(
    url: str, body: dict[str, Any], headers: Optional[dict[str, str]] = None
) -> AsyncIterator[EventStream]:
    """A completion as events that can be resumed (S-5.1)."""
    body = {**body, "stream": True, "resumable": True}
    async with _stream("POST", url + COMPLETIONS, json=body, headers=headers) as response:
        name, token = (bytes.fromhex(response.headers[f"x-loquent-stream-{it}"]) for it in ("id", "token"))
        yield EventStream(response, name, token)


@contextlib.asynccontextmanager
async def resume_events(url: str, name: bytes, token: bytes, offset: int) -> AsyncIterator[EventStream]:
    """Goes on with an answer, whatever it travelled on before (S-5.2)."""
    headers = {"x-loquent-stream-token": token.hex(), "last-event-id": str(offset)}
    async with _stream("GET", f"{url}/v1/streams/{name.hex()}", headers=headers) as response:
        yield EventStream(response, name, token, offset)


async def delete_answer(url: str, name: bytes, token: bytes) -> int:
    """Ends and forgets an answer; the status (S-5.3)."""
    async with httpx.AsyncClient() as http:
        headers = {"x-loquent-stream-token": token.hex()}
        return (await http.delete(f"{url}/v1/streams/{name.hex()}", headers=headers)).status_code


@contextlib.asynccontextmanager
async def _stream(method: str, url: str, **arguments: Any) -> AsyncIterator[httpx.Response]:
    async with httpx.AsyncClient(timeout=60) as http, http.stream(method, url, **arguments) as response:
        if response.status_code != 200:
            await response.aread()
        response.raise_for_status()
        yield response
