"""An answer as an iterator of events with offsets."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _bridge
from ._errors import LoquentError, answer_error
from ._native import NativeError, NativeStream

#: Most bytes of a refusal that are read.
MAX_REFUSAL_BYTES = 65536


class Reference(NamedTuple):
    """What an answer is resumed with, here or in another process: 32 hex digits each."""

    id: str
    token: str


@dataclass(frozen=True)
class Event:
    """One record of an answer.

    `kind` is `open`, `text`, `reasoning`, `tool_call`, `logprobs`, `other`, `finish`, `usage`,
    `error` or `done`. `text` is a piece of text or reasoning, of a tool call's arguments, the
    reason of a `finish`, the message of an `error`. `data` has the rest: `index`, `id` and `name`
    of a tool call, token counts, log-probabilities. `offset` is the position behind the event, in
    bytes of the answer's log: to go on there, pass it to `resume_chat`.
    """

    kind: str
    choice: int
    text: str
    data: dict[str, Any]
    offset: int


class _Answer:
    """What both kinds of answers share."""

    def __init__(self, stream: NativeStream, offset: int, timeout: float | None) -> None:
        assert stream.reference is not None
        self._stream = stream
        self._timeout = timeout
        self._failed: Event | None = None
        #: Batches of events that were taken from the native module, and what is left of the last:
        #: whoever stops iterating, or is cancelled, may iterate on.
        self._taken = 0
        self._left: deque[tuple[str, int, str, str, int]] = deque()
        #: What the answer is resumed with.
        self.reference = Reference(*stream.reference)
        #: Position behind the last event that was yielded, in bytes.
        self.offset = offset
        #: Text of choice 0 so far; after a resume, the text since then.
        self.text = ""

    @property
    def transport(self) -> str:
        """`quic` or `http`: what the last event came over."""
        return self._stream.transport

    @property
    def resumes(self) -> int:
        """How often the answer has moved to a new connection."""
        return self._stream.resumes

    def _take(self, events: list[tuple[str, int, str, str, int]] | None) -> bool:
        self._taken += 1
        self._left.extend(events or ())
        return events is not None

    def _rest(self) -> Iterator[Event]:
        while self._left:
            yield self._event(*self._left.popleft())

    def _event(self, kind: str, choice: int, text: str, data: str, offset: int) -> Event:
        self.offset = max(self.offset, offset)
        if kind == "text" and choice == 0:
            self.text += text
        event = Event(kind, choice, text, json.loads(data) if data else {}, self.offset)
        if kind == "error":
            self._failed = event
        return event

    def _error(self, error: NativeError) -> Exception:
        if self._failed is not None:
            return LoquentError(self._failed.text, self._failed.data.get("code"))
        return answer_error(error)


class Answer(_Answer):
    """An answer under way. Iterating yields each `Event` once and in order, up to `done`.

    Raises LoquentError if the answer ends before it is complete. Leaving a `with` block cancels
    what is not complete.
    """

    def __iter__(self) -> Iterator[Event]:
        try:
            yield from self._rest()
            while self._take(self._stream.next_events(self._timeout, self._taken)):
                yield from self._rest()
        except NativeError as error:
            if error.args[0] != "closed":
                raise self._error(error) from None

    def cancel(self) -> None:
        """Ends the answer and its generation, for all its readers."""
        self._stream.close(False)

    def detach(self) -> None:
        """Stops reading; the server goes on, so that the answer can be resumed."""
        self._stream.close(True)

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class AsyncAnswer(_Answer):
    """The same for asyncio."""

    async def __aiter__(self) -> AsyncIterator[Event]:
        try:
            for event in self._rest():
                yield event
            while self._take(await _bridge.wait(self._stream.next_events, self._timeout, self._taken)):
                for event in self._rest():
                    yield event
        except NativeError as error:
            if error.args[0] != "closed":
                raise self._error(error) from None

    def cancel(self) -> None:
        """Ends the answer and its generation, for all its readers."""
        self._stream.close(False)

    def detach(self) -> None:
        """Stops reading; the server goes on, so that the answer can be resumed."""
        self._stream.close(True)

    async def __aenter__(self) -> AsyncAnswer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


def refusal(status: int, body: bytes) -> LoquentError:
    """Returns the error of a response that is no answer."""
    try:
        error = json.loads(body)["error"]
        return LoquentError(str(error["message"]), error.get("code"), status)
    except (ValueError, KeyError, TypeError):
        pass
    if status == 200:
        message = "the server does not speak Loquent's protocol; use it through an SDK, or ask with stream=True"
        return LoquentError(message, "no_answer", status)
    return LoquentError(f"refused with status {status}", None, status)
