"""Messages on a QUIC stream, and the codes of resets: spec/session.md, section 2.

Written from the text of spec/ alone, without reading Loquent's code. Keep it so.
"""

from __future__ import annotations

import json
import string
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Iterator, Optional

from .wire import LARGEST_EPOCH, LARGEST_INT, Reader, WireError, write_int

LIMIT = 1024 * 1024  # of a message that a client receives (S-2.1)
FIRST_SKIPPED_TYPE = 64  # S-2.1: unknown types from here on are skipped


class Type(IntEnum):
    REQUEST = 0
    BODY = 1
    RESPONSE = 2
    ANSWER = 3
    FRAME = 4


class Code(IntEnum):
    """S-2.6."""

    NONE = 0
    MALFORMED = 1
    BROKEN_OFF = 2
    CANCELLED = 3
    SUPERSEDED = 4
    STOPPED = 5
    SHUTTING_DOWN = 6

    @classmethod
    def _missing_(cls, value: object) -> Code:
        return cls.BROKEN_OFF  # an unknown code is read as 2


class MalformedMessage(Exception):
    """What is answered by a reset with code 1 (S-2.1). `name` is the word of spec/vectors/."""

    def __init__(self, name: str, what: str = ""):
        super().__init__(f"{name}: {what}" if what else name)
        self.name = name


def write_message(kind: int, payload: bytes = b"") -> bytes:
    return bytes([kind]) + write_int(len(payload)) + payload


def write_head(kind: Type, head: dict[str, Any]) -> bytes:
    return write_message(kind, json.dumps(head).encode())


class MessageReader:
    """Cuts what a QUIC stream brings into messages."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.buffer = b""

    def feed(self, data: bytes) -> Iterator[tuple[Type, bytes]]:
        self.buffer += data
        while self.buffer:
            kind = self.buffer[0]
            if kind not in list(Type) and kind < FIRST_SKIPPED_TYPE:
                raise MalformedMessage("UnknownType", str(kind))
            reader = Reader(self.buffer[1:])
            try:
                size = reader.int()
                if size > self.limit:
                    raise MalformedMessage("TooLong", f"{size} bytes")
                payload = reader.take(size)
            except WireError as error:
                if error.name == "Truncated":
                    return  # the rest has not arrived yet
                raise MalformedMessage("Length") from None
            self.buffer = reader.rest()
            if kind in list(Type):
                yield Type(kind), payload

    def end(self) -> None:
        if self.buffer:
            raise MalformedMessage("Cut", "the stream ended within a message")


# --- Heads (S-1.3, S-2.2) ------------------------------------------------------------------------
# Members that nobody knows are ignored in all of them.


@dataclass(frozen=True)
class AnswerHead:
    id: bytes
    token: bytes
    channel: int
    offset: int
    headers: dict[str, str]
    epoch: int = 0  # of the log (D-6.8)


@dataclass(frozen=True)
class ResponseHead:
    status: int
    headers: dict[str, str]


@dataclass(frozen=True)
class Discovery:
    port: int
    certificate_sha256: Optional[str]
    path: str


def read_answer_head(payload: bytes) -> AnswerHead:
    head = _object(payload)
    name, token = (_hex(_member(head, member, str), 16) for member in ("id", "token"))
    channel, offset = (_number(head, member, 0, LARGEST_INT) for member in ("channel", "offset"))
    epoch = 0 if head.get("epoch") is None else _number(head, "epoch", 0, LARGEST_EPOCH)
    return AnswerHead(bytes.fromhex(name), bytes.fromhex(token), channel, offset, _headers(head), epoch)


def read_response_head(payload: bytes) -> ResponseHead:
    head = _object(payload)
    return ResponseHead(_number(head, "status", 100, 999), _headers(head))


def read_discovery(payload: bytes) -> Discovery:
    """Version 1 of the document; another version means that the server does not speak this one (S-1.6)."""
    head = _object(payload)
    _number(head, "version", 1, 1)
    certificate = head.get("certificate_sha256")
    if certificate is not None:
        certificate = _hex(_member(head, "certificate_sha256", str), 32)
    return Discovery(_number(head, "port", 1, 65535), certificate, _member(head, "path", str))


def _object(payload: bytes) -> dict[str, Any]:
    try:
        head = json.loads(payload)
    except ValueError:
        raise MalformedMessage("Head", "no JSON") from None
    if not isinstance(head, dict):
        raise MalformedMessage("Head", "no object")
    return head


def _member(head: dict[str, Any], name: str, kind: type) -> Any:
    value = head.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise MalformedMessage("Head", name)
    return value


def _number(head: dict[str, Any], name: str, least: int, most: int) -> int:
    value: int = _member(head, name, int)
    if not least <= value <= most:
        raise MalformedMessage("Head", name)
    return value


def _hex(text: str, size: int) -> str:
    if len(text) != 2 * size or not set(text) <= set(string.hexdigits):
        raise MalformedMessage("Head", f"not {size} bytes in hex")
    return text.lower()


def _headers(head: dict[str, Any]) -> dict[str, str]:
    headers = head.get("headers") or {}
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise MalformedMessage("Head", "headers")
    return {name.lower(): value for name, value in headers.items()}
