"""Bytes: integers, frames and records of spec/delivery.md, sections 1 to 6.

Written from the text of spec/ alone, without reading Loquent's code. Keep it so: it is the check
that the text suffices, and what an author in another language reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Callable, Optional, Union

LARGEST_INT = 2**53 - 1  # D-1.2
EPOCH = 2**36  # what an epoch counts in a position (D-6.8)
LARGEST_EPOCH = LARGEST_INT // EPOCH
BELOW_U32 = 2**32  # D-3.1, D-3.4
VERSION = 1  # D-2.1, and of the open record
MISSING_BITS = 53  # D-5.4
HOLD_UNIT_US = 125  # D-5.5
MAX_RANGES = 8  # D-5.6
MAX_BODY = 16383  # D-3.2


class WireError(Exception):
    """Bytes that the text calls an error. `name` is the word that spec/vectors/ uses for it."""

    def __init__(self, name: str, what: str = ""):
        super().__init__(f"{name}: {what}" if what else name)
        self.name = name


class Incomplete(Exception):
    """The log ends within a record: the rest has not arrived yet."""


# --- Fields (section 1) ----------------------------------------------------------------------


def write_int(value: int) -> bytes:
    """The shortest form (D-1.1)."""
    assert 0 <= value <= LARGEST_INT, value
    for form, size in enumerate((1, 2, 4, 8)):
        if value < 1 << (8 * size - 2):
            return (value | form << (8 * size - 2)).to_bytes(size, "big")
    raise AssertionError("unreachable: the largest integer fits eight bytes")


class Reader:
    """Reads the fields of one frame or one record body, in order."""

    def __init__(self, data: bytes):
        self.data = data
        self.at = 0

    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        if self.left() < count:
            raise WireError("Truncated")
        self.at += count
        return self.data[self.at - count : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def int(self, below: int = LARGEST_INT + 1) -> int:
        first = self.byte()
        size = 1 << (first >> 6)
        value = int.from_bytes(bytes([first & 0x3F]) + self.take(size - 1), "big")
        if value >= below:
            raise WireError("Malformed", f"{value} is too large")
        return value

    def text(self) -> str:
        return as_text(self.take(self.int()))

    def rest(self) -> bytes:
        return self.take(self.left())

    def end(self) -> None:
        """Holds that nothing follows the last field (D-1.4)."""
        if self.left():
            raise WireError("Malformed", "bytes after the last field")


def as_text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise WireError("Malformed", "not UTF-8") from None


def write_text(text: str) -> bytes:
    data = text.encode()
    return write_int(len(data)) + data


# --- Frames (sections 2, 4, 5, 6) --------------------------------------------------------------


class FrameKind(IntEnum):
    DATA = 0
    ACK = 1
    RESUME = 2
    STOP = 3
    GONE = 4
    PADDED = 5
    EXTENDED = 7  # an `int` says which (D-2.2)


@dataclass(frozen=True)
class Data:
    channel: int
    packet: int
    offset: int
    bytes: bytes


@dataclass(frozen=True)
class Ack:
    channel: int
    number: int
    cumulative: int
    largest: Optional[int] = None  # on the wire `largest + 1`, 0 for none (D-5.3)
    missing: int = 0
    hold: int = 0  # units of 125 µs
    unshown: int = 0
    pace: int = 0
    hidden: bool = False
    probe: bool = False
    ranges: tuple[tuple[int, int], ...] = field(default=())  # begin and end offsets


@dataclass(frozen=True)
class Resume:
    channel: int
    id: bytes
    token: bytes
    offset: int


@dataclass(frozen=True)
class Stop:
    channel: int


@dataclass(frozen=True)
class Gone:
    channel: int


Frame = Union[Data, Ack, Resume, Stop, Gone]


def write_frame(frame: Frame, checked: bool = False) -> bytes:
    """A frame's bytes; `checked` adds the checksum (D-2.4)."""
    kind, fields = _frame_fields(frame)
    return _sealed(kind, fields, checked)


def write_padded(inner: bytes, length: int, checked: bool = False) -> bytes:
    """A PADDED frame of `length` bytes, or as short as it can be if that is longer (D-2.6)."""
    fields = write_int(len(inner)) + inner
    spent = 1 + len(fields) + (4 if checked else 0)
    return _sealed(FrameKind.PADDED, fields + bytes(max(0, length - spent)), checked)


def pad_to_step(inner: bytes, step: int) -> bytes:
    """A PADDED frame whose length is a multiple of `step` (D-2.7)."""
    steps = -(-len(write_padded(inner, 0)) // step)
    return write_padded(inner, steps * step)


def _sealed(kind: int, fields: bytes, checked: bool) -> bytes:
    data = bytes([VERSION << 4 | (8 if checked else 0) | kind]) + fields
    return data + crc32c(data).to_bytes(4, "big") if checked else data


def _frame_fields(frame: Frame) -> tuple[int, bytes]:
    match frame:
        case Data(channel, packet, offset, log_bytes):
            return FrameKind.DATA, _ints(channel, packet, offset) + log_bytes
        case Ack():
            return FrameKind.ACK, _ack_fields(frame)
        case Resume(channel, name, token, offset):
            return FrameKind.RESUME, write_int(channel) + name + token + write_int(offset)
        case Stop(channel):
            return FrameKind.STOP, write_int(channel)
        case Gone(channel):
            return FrameKind.GONE, write_int(channel)
    raise TypeError(frame)


def _ints(*values: int) -> bytes:
    return b"".join(map(write_int, values))


def _ack_fields(ack: Ack) -> bytes:
    flags = (1 if ack.hidden else 0) | (2 if ack.probe else 0)
    largest = 0 if ack.largest is None else ack.largest + 1
    out = bytes([flags]) + _ints(ack.channel, ack.number, ack.cumulative, largest)
    out += _ints(ack.missing, ack.hold, ack.unshown, ack.pace)
    at = ack.cumulative
    for begin, end in ack.ranges[:MAX_RANGES]:
        out += _ints(begin - at, end - begin)  # D-5.6
        at = end
    return out


def read_frame(data: bytes, needs_checksum: bool = False) -> Frame:
    """The frame in a datagram or a FRAME message, with padding taken off."""
    reader, kind, checked = _open_frame(data)
    if needs_checksum and not checked:
        raise WireError("BadChecksum", "the link does not authenticate its content (D-2.4)")
    if kind != FrameKind.PADDED:
        return _read_fields(kind, reader)
    reader, kind, _ = _open_frame(_inner_frame(reader))
    return _read_fields(kind, reader)


def _inner_frame(reader: Reader) -> bytes:
    """The frame within a PADDED one (D-2.6); what follows it is padding, which is not looked at."""
    try:
        inner = reader.take(reader.int())
    except WireError:
        raise WireError("Malformed", "padding without a frame") from None
    if not inner or inner[0] & 8 or inner[0] & 7 == FrameKind.PADDED:
        raise WireError("Malformed", "a PADDED frame holds a plain frame")
    return inner


def _open_frame(data: bytes) -> tuple[Reader, int, bool]:
    if not data:
        raise WireError("Truncated")
    if data[0] >> 4 != VERSION:
        raise WireError("UnknownVersion")
    checked = bool(data[0] & 8)
    if checked:
        if len(data) < 5:
            raise WireError("Truncated")
        if crc32c(data[:-4]) != int.from_bytes(data[-4:], "big"):
            raise WireError("BadChecksum")
        data = data[:-4]
    reader = Reader(data)
    return reader, reader.byte() & 7, checked


def _read_fields(kind: int, reader: Reader) -> Frame:
    if kind == FrameKind.ACK:
        return _read_ack(reader)
    if kind not in (FrameKind.DATA, FrameKind.RESUME, FrameKind.STOP, FrameKind.GONE):
        raise WireError("Malformed", f"kind {kind} is unassigned (D-2.2)")
    channel = reader.int()
    if kind == FrameKind.DATA:
        packet, offset, log_bytes = reader.int(), reader.int(), reader.rest()
        if offset + len(log_bytes) > LARGEST_INT:  # D-4.2
            raise WireError("Malformed", "the log is too long")
        return Data(channel, packet, offset, log_bytes)
    frame: Frame = Stop(channel) if kind == FrameKind.STOP else Gone(channel)
    if kind == FrameKind.RESUME:
        frame = Resume(channel, reader.take(16), reader.take(16), reader.int())
    reader.end()
    return frame


def _read_ack(reader: Reader) -> Ack:
    flags, channel, number = reader.byte(), reader.int(), reader.int()
    cumulative, largest, missing = reader.int(), reader.int(), reader.int()
    hold, unshown, pace = reader.int(), reader.int(), reader.int()
    if unshown > cumulative:  # D-5.9
        raise WireError("Malformed", "more unshown than arrived")
    ranges: list[tuple[int, int]] = []
    at = cumulative
    while reader.left():
        distance, length = reader.int(), reader.int()
        begin, end = at + distance, at + distance + length
        if distance < 1 or length < 1 or end > LARGEST_INT or len(ranges) == MAX_RANGES:
            raise WireError("Malformed", "ranges (D-5.6)")
        ranges.append((begin, end))
        at = end
    latest = largest - 1 if largest else None
    hidden, probe = bool(flags & 1), bool(flags & 2)
    return Ack(channel, number, cumulative, latest, missing, hold, unshown, pace, hidden, probe, tuple(ranges))


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """RFC 3720, appendix B.4."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


# --- Records (section 3) -----------------------------------------------------------------------


@dataclass(frozen=True)
class Open:
    meta: str


@dataclass(frozen=True)
class Text:
    choice: int
    tokens: int
    text: str


@dataclass(frozen=True)
class Reasoning:
    choice: int
    tokens: int
    text: str


@dataclass(frozen=True)
class ToolCall:
    choice: int
    index: int
    tokens: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Logprobs:
    choice: int
    json: str


@dataclass(frozen=True)
class Finish:
    choice: int
    reason: str


@dataclass(frozen=True)
class Usage:
    prompt: int
    completion: int
    cached: int
    reasoning: int


@dataclass(frozen=True)
class Error:
    code: str
    message: str


@dataclass(frozen=True)
class Done:
    pass


@dataclass(frozen=True)
class Other:
    choice: int
    json: str


@dataclass(frozen=True)
class Progress:
    queued: int
    eta_ms: Optional[int]
    total: int
    cached: int
    processed: int
    elapsed_ms: int


Record = Union[Open, Text, Reasoning, ToolCall, Logprobs, Finish, Usage, Error, Done, Other, Progress]


def read_record(log: bytes) -> tuple[int, Optional[Record]]:
    """The first record of `log` and its length; None for a kind to be skipped (D-3.5)."""
    if not log:
        raise Incomplete
    if log[0] & 0x80:  # a short record (D-3.3)
        size = log[0] & 0x7F
        if len(log) < 1 + size:
            raise Incomplete
        return 1 + size, Text(0, 1, as_text(log[1 : 1 + size]))
    begin = 1 if log[0] < 0x40 else 2  # the length's own bytes (D-3.2)
    if len(log) < begin:
        raise Incomplete
    size = Reader(log).int()
    if size == 0:
        raise WireError("Truncated", "a body begins with a tag")
    if len(log) < begin + size:
        raise Incomplete
    return begin + size, _read_body(Reader(log[begin : begin + size]))


def _read_body(body: Reader) -> Optional[Record]:
    tag = body.byte()
    choice, kind = tag >> 4, tag & 15
    if choice == 15:
        choice = body.int(below=BELOW_U32)
    if kind == 15:
        kind = body.int()
        if kind < 16:
            raise WireError("Malformed", "a kind below 16 stands in the tag (D-3.1)")
    read = _RECORD_READERS.get(kind)
    return read(choice, body) if read else None


def _read_open(_choice: int, body: Reader) -> Record:
    if body.byte() != VERSION:
        raise WireError("UnknownVersion")
    return Open(as_text(body.rest()))


def _read_tool_call(choice: int, body: Reader) -> Record:
    index, tokens = body.int(below=BELOW_U32), body.int(below=BELOW_U32)
    return ToolCall(choice, index, tokens, body.text(), body.text(), as_text(body.rest()))


def _read_usage(_choice: int, body: Reader) -> Record:
    usage = Usage(*(body.int(below=BELOW_U32) for _ in range(4)))
    body.end()
    return usage


def _read_progress(_choice: int, body: Reader) -> Record:
    queued, eta, *rest = (body.int(below=BELOW_U32) for _ in range(6))
    body.end()
    return Progress(queued, eta - 1 if eta else None, *rest)


def _read_done(_choice: int, body: Reader) -> Record:
    body.end()
    return Done()


_RECORD_READERS: dict[int, Callable[[int, Reader], Record]] = {
    0: _read_open,
    1: lambda choice, body: Text(choice, 1, as_text(body.rest())),
    2: lambda choice, body: Text(choice, body.int(below=BELOW_U32), as_text(body.rest())),
    3: lambda choice, body: Reasoning(choice, 1, as_text(body.rest())),
    4: lambda choice, body: Reasoning(choice, body.int(below=BELOW_U32), as_text(body.rest())),
    5: _read_tool_call,
    6: lambda choice, body: Logprobs(choice, as_text(body.rest())),
    7: lambda choice, body: Finish(choice, as_text(body.rest())),
    8: _read_usage,
    9: lambda choice, body: Error(body.text(), as_text(body.rest())),
    10: _read_done,
    11: lambda choice, body: Other(choice, as_text(body.rest())),
    12: _read_progress,
}


def write_record(record: Record) -> bytes:
    if isinstance(record, Text) and record.choice == 0 and record.tokens == 1:
        short = record.text.encode()
        if len(short) <= 0x7F:
            return bytes([0x80 | len(short)]) + short
    kind, fields = _record_fields(record)
    choice = getattr(record, "choice", 0)
    body = bytes([min(choice, 15) << 4 | kind]) + (write_int(choice) if choice >= 15 else b"") + fields
    assert len(body) <= MAX_BODY
    return write_int(len(body)) + body


def _record_fields(record: Record) -> tuple[int, bytes]:
    match record:
        case Open(meta):
            return 0, bytes([VERSION]) + meta.encode()
        case Text(_, tokens, text) | Reasoning(_, tokens, text):
            single = 1 if isinstance(record, Text) else 3
            return (single, text.encode()) if tokens == 1 else (single + 1, write_int(tokens) + text.encode())
        case ToolCall(_, index, tokens, name_id, name, arguments):
            return 5, _ints(index, tokens) + write_text(name_id) + write_text(name) + arguments.encode()
        case Logprobs(_, json):
            return 6, json.encode()
        case Finish(_, reason):
            return 7, reason.encode()
        case Usage(prompt, completion, cached, reasoning):
            return 8, _ints(prompt, completion, cached, reasoning)
        case Error(code, message):
            return 9, write_text(code) + message.encode()
        case Done():
            return 10, b""
        case Other(_, json):
            return 11, json.encode()
        case Progress(queued, eta_ms):
            eta = 0 if eta_ms is None else eta_ms + 1
            fields = (queued, eta, record.total, record.cached, record.processed, record.elapsed_ms)
            return 12, b"".join(write_int(field) for field in fields)
    raise TypeError(record)
