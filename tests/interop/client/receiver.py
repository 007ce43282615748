"""The receiver of spec/delivery.md, section 9: assembles one answer's log, and says what to send.

Written from the text of spec/ alone, without reading Loquent's code. Keep it so.

It does no input or output: every call has the time in microseconds, `transmits` is what is to be
sent, `events` what the reader is told, and `wake_us` when to call `handle_timeout`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Optional, Union

from .wire import (
    HOLD_UNIT_US,
    MAX_RANGES,
    MISSING_BITS,
    Ack,
    Data,
    Done,
    Error,
    Frame,
    Gone,
    Incomplete,
    Record,
    Stop,
    Text,
    WireError,
    read_frame,
    read_record,
    write_frame,
)

SECOND_US = 1_000_000
ACK_GAP_US = 100_000  # D-9.2
LINGER_US = 3 * SECOND_US  # D-9.1
MAX_PROBES = 5  # D-9.4
MAX_HELD_BYTES = 64 * 1024  # D-7.1 asks for 32 KiB at least
MAX_HELD_RANGES = 32


class State(Enum):
    OPEN = "open"
    LINGERING = "lingering"
    CLOSED = "closed"


@dataclass(frozen=True)
class Shown:
    """A record for the reader, and the log offset after it: the cursor for a resume."""

    offset: int
    record: Record


@dataclass(frozen=True)
class Complete:
    """Done was read: the answer is whole (D-3.6)."""


@dataclass(frozen=True)
class Failed:
    """The answer is incomplete for good; `error` is set if the log could not be read."""

    error: Optional[str] = None


@dataclass(frozen=True)
class Silent:
    """Nothing came for long: the owner may resume on another path (D-9.6)."""


Event = Union[Shown, Complete, Failed, Silent]


class Way(Enum):
    """By which of a path's two ways a frame leaves."""

    USUAL = "usual"  # datagrams, unless S-4.4 says FRAME messages
    BOTH = "both"
    RELIABLE = "reliable"  # a FRAME message where there is a QUIC stream


@dataclass(frozen=True)
class Transmit:
    frame: bytes
    way: Way


class Receiver:
    def __init__(
        self,
        channel: int,
        now_us: int,
        offset: int = 0,
        has_other_paths: bool = False,
        tokens_per_s: Optional[int] = None,
    ):
        self.first_probe_us = SECOND_US if has_other_paths else 2 * SECOND_US
        self.silent_us = 3 * SECOND_US if has_other_paths else 10 * SECOND_US
        self.token_gap_us = SECOND_US // tokens_per_s if tokens_per_s else 0
        self.state = State.OPEN
        self.hidden = False
        self.shown = offset  # log offset up to which records were handed to the reader
        self.held = bytearray()  # log bytes from `shown` on, with gaps as `arrived` says
        self.arrived = [(offset, offset)]  # disjoint, ascending; the first ends at `cumulative`
        self.waiting: deque[tuple[int, Record]] = deque()  # read but held back (D-9.8)
        self.read_to = offset
        self.next_text_us = 0  # when the reader's pace allows the next text
        self.closes_us: Optional[int] = None
        self.has_last_record = False
        self.transmits: list[Transmit] = []
        self.events: list[Event] = []
        self._begin_path(channel, now_us)

    def _begin_path(self, channel: int, now_us: int) -> None:
        """D-6.3, D-9.7: numbers and silence begin anew, bytes stay."""
        self.channel = channel
        self.ack_number = 0
        self.packets: set[int] = set()
        self.largest: Optional[int] = None
        self.largest_at_us = now_us
        self.last_ack_us: Optional[int] = None
        self.ack_due_us: Optional[int] = None
        self.quiet_since_us = now_us
        self.probes_sent = 0
        self.told_silent = False
        self.path_is_over = False

    # --- What is asked of it -------------------------------------------------------------------

    @property
    def cumulative(self) -> int:
        return self.arrived[0][1]

    def handle_datagram(self, data: bytes, now_us: int) -> Frame:
        """Takes one frame. Raises WireError for what must be ignored (D-2.5); then nothing has changed."""
        frame = read_frame(data)
        if frame.channel != self.channel:
            raise WireError("WrongChannel")
        if not isinstance(frame, (Data, Gone)):
            raise WireError("Malformed", "a frame that receivers never get")
        if self.state is State.CLOSED:
            return frame
        self.quiet_since_us, self.probes_sent, self.told_silent = now_us, 0, False  # D-9.4
        if isinstance(frame, Gone):
            self._fail(None)  # D-6.5
        else:
            self._handle_data(frame, now_us)
        return frame

    def handle_timeout(self, now_us: int) -> None:
        if self.state is State.LINGERING and self.closes_us is not None and now_us >= self.closes_us:
            self.close()  # D-9.1
        if self.state is State.CLOSED:
            return
        self._show(now_us)
        if self.path_is_over:
            return
        if self.ack_due_us is not None and now_us >= self.ack_due_us:
            self._ack(now_us)
        probe_at = self._probe_at_us()
        if probe_at is not None and now_us >= probe_at:
            self.probes_sent += 1
            # D-9.5: the path may have lost the datagrams of the first.
            self._ack(now_us, probe=True, way=Way.BOTH if self.probes_sent > 1 else Way.USUAL)
        silent_at = self._silent_at_us()
        if silent_at is not None and now_us >= silent_at:
            self.told_silent = True
            self.events.append(Silent())

    def wake_us(self) -> Optional[int]:
        """When `handle_timeout` is due next."""
        if self.state is State.CLOSED:
            return None
        next_text_us = self.next_text_us if self.waiting else None
        if self.path_is_over:
            return next_text_us
        times = [next_text_us, self.ack_due_us, self.closes_us, self._probe_at_us(), self._silent_at_us()]
        return min((time for time in times if time is not None), default=None)

    def set_hidden(self, hidden: bool, now_us: int) -> None:
        if hidden == self.hidden or self.state is State.CLOSED:
            return
        self.hidden = hidden
        self._show(now_us)
        self._ack(now_us)  # D-9.3

    def acknowledge(self, now_us: int) -> None:
        """An ACK at once: what S-4.4 asks of a client that was sent DATA in a FRAME message."""
        if self.state is not State.CLOSED:
            self._ack(now_us)

    def resume(self, channel: int, now_us: int) -> int:
        """Goes on as another channel; the offset to ask for (D-6.4).

        What lies beyond it may be other bytes at the next server (D-6.8).
        """
        self.arrived = self.arrived[:1]
        del self.held[self.cumulative - self.shown :]
        self._begin_path(channel, now_us)
        return self.cumulative

    def stop(self) -> None:
        """The reader wants no more (D-6.6)."""
        if self.state is not State.CLOSED:
            self.transmits.append(Transmit(write_frame(Stop(self.channel)), Way.RELIABLE))
            self.close()

    def end_path(self) -> None:
        """The path is over, by the sender's doing or not: nothing more is sent on it (D-9.1).

        What is held back is shown all the same, and a resume begins another path.
        """
        self.path_is_over = True
        if self.state is State.LINGERING:
            self.close()

    def close(self) -> None:
        self.state = State.CLOSED

    # --- DATA ----------------------------------------------------------------------------------

    def _handle_data(self, frame: Data, now_us: int) -> None:
        if self.largest is None or frame.packet > self.largest:
            self.largest, self.largest_at_us = frame.packet, now_us
        self.packets.add(frame.packet)
        self.packets = {packet for packet in self.packets if packet >= self.largest - MISSING_BITS}
        is_news = self._keep(frame.offset, frame.bytes)
        if is_news:
            self._read(now_us)
            if self.state is State.CLOSED:  # the log is unreadable: STOP was the last word
                return
        if is_news or self.last_ack_us is None:
            self._ack(now_us)  # D-9.2
        else:
            self.ack_due_us = self.last_ack_us + ACK_GAP_US
            if now_us >= self.ack_due_us:
                self._ack(now_us)

    def _keep(self, offset: int, data: bytes) -> bool:
        """Keeps those bytes that are new and within the bounds; whether there were any."""
        begin, end = max(offset, self.cumulative), min(offset + len(data), self.shown + MAX_HELD_BYTES)  # D-9.9
        touching = [r for r in self.arrived if r[0] <= end and r[1] >= begin]
        if begin >= end or (not touching and len(self.arrived) > MAX_HELD_RANGES):
            return False
        is_news = False
        for gap_begin, gap_end in _gaps(touching, begin, end):
            is_news = True
            self._store(gap_begin, data[gap_begin - offset : gap_end - offset])  # the first byte stays (D-4.4)
        merged = (min([begin, *(r[0] for r in touching)]), max([end, *(r[1] for r in touching)]))
        self.arrived = sorted([r for r in self.arrived if r not in touching] + [merged])
        return is_news

    def _store(self, offset: int, data: bytes) -> None:
        at = offset - self.shown
        self.held.extend(bytes(max(0, at + len(data) - len(self.held))))
        self.held[at : at + len(data)] = data

    # --- Records -------------------------------------------------------------------------------

    def _read(self, now_us: int) -> None:
        """Reads the records that are whole, and shows what is due."""
        while not self.has_last_record:
            try:
                log = bytes(self.held[self.read_to - self.shown : self.cumulative - self.shown])
                size, record = read_record(log)
            except Incomplete:
                break
            except WireError as error:
                self.token_gap_us = 0  # what came before the error is shown at once
                self._show(now_us)
                self._fail(error.name)  # D-3.5, D-9.10
                self.transmits.append(Transmit(write_frame(Stop(self.channel)), Way.RELIABLE))
                return
            self.read_to += size
            if record is not None:
                self.waiting.append((self.read_to, record))
            elif not self.waiting:
                self._forget_to(self.read_to)
            self.has_last_record = isinstance(record, (Done, Error))  # D-3.6
        self._show(now_us)

    def _show(self, now_us: int) -> None:
        """Hands the records that are due to the reader."""
        was_behind = self._reader_is_behind()
        while self.waiting and self._may_show(self.waiting[0][1], now_us):
            offset, record = self.waiting.popleft()
            self._forget_to(offset)
            self.events.append(Shown(offset, record))
            if isinstance(record, (Done, Error)):
                self.events.append(Complete() if isinstance(record, Done) else Failed())
                self.state = State.CLOSED if self.path_is_over else State.LINGERING
                self.closes_us = now_us + LINGER_US
        if not self.waiting:
            self._forget_to(self.read_to)  # skipped records at the end
        if was_behind and not self._reader_is_behind():
            self.quiet_since_us = now_us  # D-9.4: the sender is needed again from now on

    def _may_show(self, record: Record, now_us: int) -> bool:
        """Text is shown not faster than the reader's pace (D-9.8)."""
        if isinstance(record, Text) and self.token_gap_us and not self.hidden:
            if now_us < self.next_text_us:
                return False
            self.next_text_us = now_us + record.tokens * self.token_gap_us
        return True

    def _forget_to(self, offset: int) -> None:
        del self.held[: offset - self.shown]
        self.shown = offset

    def _fail(self, error: Optional[str]) -> None:
        self.close()
        self.events.append(Failed(error))

    # --- ACK -----------------------------------------------------------------------------------

    def _ack(self, now_us: int, probe: bool = False, way: Way = Way.USUAL) -> None:
        if self.path_is_over:
            return
        unshown = self.cumulative - self.shown  # an unfinished record at the end counts (D-5.9)
        ack = Ack(
            channel=self.channel,
            number=self.ack_number,
            cumulative=self.cumulative,
            largest=self.largest,
            missing=self._missing(),
            hold=0 if self.largest is None else (now_us - self.largest_at_us) // HOLD_UNIT_US,
            unshown=unshown,
            pace=self._pace(unshown),
            hidden=self.hidden,
            probe=probe,
            ranges=tuple(self.arrived[1 : 1 + MAX_RANGES]),
        )
        self.ack_number += 1
        self.last_ack_us, self.ack_due_us = now_us, None
        self.transmits.append(Transmit(write_frame(ack), way))

    def _missing(self) -> int:
        """D-5.4."""
        if self.largest is None:
            return 0
        bits = range(min(MISSING_BITS, self.largest))
        return sum(1 << bit for bit in bits if self.largest - 1 - bit not in self.packets)

    def _pace(self, unshown: int) -> int:
        """Unshown bytes by the time in which they will be shown (D-9.8)."""
        if not self.waiting:
            return 0
        tokens = sum(record.tokens for _, record in self.waiting if isinstance(record, Text))
        return unshown * SECOND_US // max(1, tokens * self.token_gap_us)

    def _reader_is_behind(self) -> bool:
        """Nothing more can be taken in until the reader was shown something."""
        return self.cumulative - self.shown >= MAX_HELD_BYTES

    # --- Silence -------------------------------------------------------------------------------

    def _probe_at_us(self) -> Optional[int]:
        if self.has_last_record or self._reader_is_behind() or self.probes_sent == MAX_PROBES:
            return None
        return self.quiet_since_us + self.first_probe_us * 2**self.probes_sent

    def _silent_at_us(self) -> Optional[int]:
        if self.has_last_record or self._reader_is_behind() or self.told_silent:
            return None
        return self.quiet_since_us + self.silent_us


def _gaps(ranges: list[tuple[int, int]], begin: int, end: int) -> list[tuple[int, int]]:
    """The parts of begin..end that no range covers; `ranges` are disjoint and ascending."""
    gaps, at = [], begin
    for range_begin, range_end in ranges:
        if range_begin > at:
            gaps.append((at, min(range_begin, end)))
        at = max(at, range_end)
    if at < end:
        gaps.append((at, end))
    return gaps
