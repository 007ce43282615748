"""Requests and answers over one QUIC connection: spec/session.md, sections 1 to 4.

Written from the text of spec/ alone, without reading Loquent's code. Keep it so.

A `Session` opens QUIC streams; an `Exchange` is one of them, from its first message to its end; an
`Answer` outlives both. QUIC itself is aioquic's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Callable, Optional, Union
from urllib.parse import urlsplit

import httpx
from aioquic.asyncio.client import connect as quic_connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import (
    ConnectionTerminated,
    DatagramFrameReceived,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)
from cryptography.hazmat.primitives.serialization import Encoding

from .messages import (
    AnswerHead,
    Code,
    Discovery,
    MalformedMessage,
    MessageReader,
    Type,
    read_answer_head,
    read_discovery,
    read_response_head,
    write_head,
    write_message,
)
from .receiver import Complete, Event, Failed, Receiver, Shown, Silent, Transmit, Way
from .wire import EPOCH, Data, Gone, Record, Resume, Text, WireError, pad_to_step, read_frame, write_frame

COMPLETIONS = "/v1/chat/completions"
PADDING_STEP = 32  # of what a receiver sends (D-2.7)


@dataclass
class Response:
    """An HTTP response that came through the connection (S-3.1)."""

    status: int
    headers: dict[str, str]
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


class Refused(Exception):
    """A request for an answer was refused as over HTTP (S-4.2)."""

    def __init__(self, response: Response):
        super().__init__(f"{response.status}: {response.body[:200]!r}")
        self.response = response


class StreamEnded(Exception):
    """A QUIC stream ended before it said what was asked; None stands for a clean end."""

    def __init__(self, code: Optional[Code]):
        super().__init__(str(code))
        self.code = code


class Answer:
    """What a request yields. It outlives connections; `resume` of a session continues it."""

    def __init__(self, receiver: Receiver):
        self.receiver = receiver
        self.id: Optional[bytes] = None
        self.token: Optional[bytes] = None
        self.headers: dict[str, str] = {}
        self.epoch = 0  # of the log that the newest path carries (D-6.8)
        self.log: list[Shown] = []
        self.outcome: Union[Complete, Failed, None] = None
        self.is_silent = False
        self.path: Optional[Exchange] = None  # the newest; this client has left the older ones
        self._changed = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        return isinstance(self.outcome, Complete)

    @property
    def offset(self) -> int:
        """The end of the last record shown: where another receiver resumes (D-6.4, D-6.8)."""
        return self.epoch * EPOCH + (self.log[-1].offset if self.log else 0)

    @property
    def records(self) -> list[Record]:
        return [shown.record for shown in self.log]

    def text(self, choice: int = 0) -> str:
        return "".join(r.text for r in self.records if isinstance(r, Text) and r.choice == choice)

    def take(self, event: Event) -> None:
        if isinstance(event, Shown):
            self.log.append(event)
        elif isinstance(event, Silent):
            self.is_silent = True
        else:
            self.outcome = event
        self.notify()

    def notify(self) -> None:
        self._changed.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Waits until something that the answer or its path tells holds."""
        while not reached():
            self._changed.clear()
            await self._changed.wait()

    async def until_text(self, characters: int) -> None:
        await self.until(lambda: len(self.text()) >= characters or self.outcome is not None)


@dataclass
class Exchange:
    """One QUIC stream: a tunnelled request, or an answer's path."""

    session: Session
    stream_id: int
    answer: Optional[Answer] = None
    channel: Optional[int] = None
    head: asyncio.Future[Union[Response, AnswerHead]] = field(default_factory=lambda: _future())
    #: None after a clean end, else the code of the reset or of the connection's end.
    ended: asyncio.Future[Optional[Code]] = field(default_factory=lambda: _future())
    #: The code with which the server stopped this side's writing, if it did (S-2.4).
    writing_stopped: Optional[Code] = None
    reader: MessageReader = field(default_factory=MessageReader)
    body: bytearray = field(default_factory=bytearray)
    first: Optional[Type] = None
    data_came_by_frame: bool = False
    data_frames_on_stream: int = 0
    data_frames_in_datagrams: int = 0
    timer: Optional[asyncio.TimerHandle] = None

    # --- Sending -------------------------------------------------------------------------------

    def send(self, data: bytes, end: bool = False) -> None:
        self.session.write_stream(self.stream_id, data, end)

    def send_frame(self, frame: bytes) -> None:
        self.send(write_message(Type.FRAME, frame))

    def reset(self, code: int) -> None:
        """Ends both directions (S-2.1, S-4.5); the path is over for this side."""
        self.session.reset_stream(self.stream_id, code)
        self._end(Code(code))

    def abandon(self) -> None:
        """Hears nothing more of this path: what a lost connection looks like from here."""
        self._end(Code.BROKEN_OFF)

    # --- What the stream brings ----------------------------------------------------------------

    def handle_data(self, data: bytes, end: bool) -> None:
        if self.ended.done():
            return
        try:
            for kind, payload in self.reader.feed(data):
                self._handle_message(kind, payload)
            if end:
                self.reader.end()
                self._handle_end()
        except MalformedMessage:
            self.reset(Code.MALFORMED)

    def _handle_message(self, kind: Type, payload: bytes) -> None:
        # S-2.2: which messages may follow which.
        allowed = {
            None: (Type.RESPONSE, Type.ANSWER, Type.FRAME) if self.answer else (Type.RESPONSE,),
            Type.RESPONSE: (Type.BODY,),
            Type.ANSWER: (Type.FRAME,),
            Type.FRAME: (Type.FRAME,),  # GONE in place of ANSWER (S-4.7)
        }[self.first]
        if kind not in allowed:
            raise MalformedMessage("Order", f"{kind.name} after {self.first}")
        self.first = self.first or kind
        if kind is Type.RESPONSE:
            head = read_response_head(payload)
            self.head.set_result(Response(head.status, head.headers))
        elif kind is Type.ANSWER:
            self._begin_answer(read_answer_head(payload))
        elif kind is Type.BODY:
            self.body += payload
        else:
            self.handle_frame(payload, on_stream=True)

    def _begin_answer(self, head: AnswerHead) -> None:
        assert self.answer is not None
        if head.channel != self.channel:
            raise MalformedMessage("Head", "an ANSWER of another channel")
        self.answer.id, self.answer.token, self.answer.headers = head.id, head.token, head.headers
        self.answer.epoch = head.epoch
        self.head.set_result(head)

    def _handle_end(self) -> None:
        if self.answer is not None and self.first is not Type.RESPONSE:
            self.send(b"", end=True)  # nothing more is needed of this side either
        is_cut = self.first is Type.ANSWER and self.answer is not None and not self.answer.receiver.has_last_record
        self._end(Code.BROKEN_OFF if is_cut else None)  # S-4.6

    def handle_reset(self, code: Code) -> None:
        if not self.ended.done():
            self._end(code)

    def _end(self, code: Optional[Code]) -> None:
        if self.ended.done():
            return
        self.ended.set_result(code)
        if not self.head.done():
            self.head.set_exception(StreamEnded(code))
            self.head.exception()  # whoever awaits it gets it; nobody has to
        if isinstance(self.first, Type) and self.first is Type.RESPONSE and not self.head.exception():
            response = self.head.result()
            assert isinstance(response, Response)
            response.body = bytes(self.body)
        if self.answer is not None:
            if self.answer.path is self:  # else it has gone on elsewhere
                self.answer.receiver.end_path()
                self.settle()
            self.answer.notify()

    # --- The answer's frames -------------------------------------------------------------------

    def handle_frame(self, data: bytes, on_stream: bool) -> None:
        if self.ended.done() or self.answer is None or self.answer.path is not self:
            return
        now_us = self.session.now_us()
        try:
            frame = self.answer.receiver.handle_datagram(data, now_us)
        except WireError:
            return  # D-2.5, S-2.5
        if isinstance(frame, Data):
            self._note_way(on_stream, now_us)
        elif isinstance(frame, Gone) and not self.head.done():
            self.head.set_exception(StreamEnded(None))
            self.head.exception()
        self.settle()

    def _note_way(self, on_stream: bool, now_us: int) -> None:
        """S-4.4: ACK frames take the way on which DATA comes, beginning at once."""
        if on_stream:
            self.data_frames_on_stream += 1
        else:
            self.data_frames_in_datagrams += 1
        assert self.answer is not None
        receiver = self.answer.receiver
        if on_stream and not self.data_came_by_frame and not receiver.transmits:
            receiver.acknowledge(now_us)
        self.data_came_by_frame = on_stream

    def settle(self) -> None:
        """Does what the receiver wants done, and sets its timer."""
        assert self.answer is not None
        receiver = self.answer.receiver
        transmits, receiver.transmits = receiver.transmits, []
        for transmit in transmits:
            self._transmit(transmit)
        events, receiver.events = receiver.events, []
        for event in events:
            self.answer.take(event)
        if self.timer:
            self.timer.cancel()
        wake_us = receiver.wake_us()
        if wake_us is not None:
            self.timer = self.session.loop.call_at(wake_us / 1e6, self._handle_timeout)

    def _transmit(self, transmit: Transmit) -> None:
        on_stream = self.data_came_by_frame or transmit.way is not Way.USUAL
        frame = pad_to_step(transmit.frame, PADDING_STEP)
        if on_stream or not self.session.takes_datagrams():
            self.send_frame(frame)
        if not on_stream or transmit.way is Way.BOTH:
            self.session.write_datagram(frame)

    def _handle_timeout(self) -> None:
        assert self.answer is not None
        if self.answer.path is self:
            self.answer.receiver.handle_timeout(self.session.now_us())
            self.settle()

    def set_hidden(self, hidden: bool) -> None:
        assert self.answer is not None
        self.answer.receiver.set_hidden(hidden, self.session.now_us())
        self.settle()

    def stop(self) -> None:
        """Cancels by a STOP frame (S-4.5)."""
        assert self.answer is not None
        self.answer.receiver.stop()
        self.settle()


class Session(QuicConnectionProtocol):
    """A connection with the ALPN loquent/1. Its methods are the verbs of session.md."""

    ALPN = "loquent/1"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.loop = asyncio.get_running_loop()
        self.exchanges: dict[int, Exchange] = {}
        self.next_channel = 0
        self.close_code: Optional[Code] = None

    def now_us(self) -> int:
        return int(self.loop.time() * 1e6)

    async def begin(self, host: str, path: str) -> None:
        """What comes between the handshake and the first request: nothing here."""

    # --- Requests ------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        key: Optional[str] = None,
        headers: Optional[dict[str, str]] = None,
    ) -> Response:
        """An HTTP request through the connection (S-3.1). Raises StreamEnded if it breaks off (S-3.2)."""
        exchange = self.open()
        messages = write_head(Type.REQUEST, request_head(method, path, key, headers))
        exchange.send(messages + (write_message(Type.BODY, body) if body else b""), end=True)
        response = await exchange.head
        assert isinstance(response, Response)
        code = await exchange.ended
        if code is not None:
            raise StreamEnded(code)
        return response

    async def ask(
        self,
        body: dict[str, Any],
        path: str = COMPLETIONS,
        key: Optional[str] = None,
        headers: Optional[dict[str, str]] = None,
        tokens_per_s: Optional[int] = None,
    ) -> tuple[Answer, Exchange]:
        """Requests an answer by datagram (S-4.1)."""
        exchange = self.open_answer(tokens_per_s)
        head = {**request_head("POST", path, key, headers), "channel": exchange.channel}
        exchange.send(write_head(Type.REQUEST, head))
        exchange.send(write_message(Type.BODY, json.dumps(body).encode()) + write_message(Type.BODY))
        return await self._begun(exchange)

    async def resume(self, answer: Answer) -> tuple[Answer, Exchange]:
        """Continues an answer on this connection with the bytes that are kept (S-4.7, D-6.4)."""
        assert answer.id and answer.token
        offset = answer.receiver.resume(self.take_channel(), self.now_us())
        return await self.resume_at(answer, answer.id, answer.token, answer.epoch * EPOCH + offset)

    async def resume_from(self, name: bytes, token: bytes, offset: int) -> tuple[Answer, Exchange]:
        """Continues an answer of which nothing but its name and the end of a record is kept."""
        receiver = Receiver(self.take_channel(), self.now_us(), offset=offset % EPOCH)
        return await self.resume_at(Answer(receiver), name, token, offset)

    async def resume_at(self, answer: Answer, name: bytes, token: bytes, offset: int) -> tuple[Answer, Exchange]:
        """The first message of the QUIC stream is the RESUME (S-4.7)."""
        exchange = self.open(answer)
        exchange.send_frame(write_frame(Resume(answer.receiver.channel, name, token, offset)))
        return await self._begun(exchange)

    async def _begun(self, exchange: Exchange) -> tuple[Answer, Exchange]:
        assert exchange.answer is not None
        head = await exchange.head
        if isinstance(head, Response):
            await exchange.ended
            raise Refused(head)
        exchange.settle()
        return exchange.answer, exchange

    def open_answer(self, tokens_per_s: Optional[int] = None) -> Exchange:
        """A QUIC stream, and the receiver of what will be asked on it: DATA may overtake ANSWER (S-4.3)."""
        return self.open(Answer(Receiver(self.take_channel(), self.now_us(), tokens_per_s=tokens_per_s)))

    def take_channel(self) -> int:
        self.next_channel += 1
        return self.next_channel - 1

    def open(self, answer: Optional[Answer] = None) -> Exchange:
        """Opens a QUIC stream."""
        exchange = Exchange(self, self.open_stream(), answer, answer.receiver.channel if answer else None)
        self.exchanges[exchange.stream_id] = exchange
        if answer is not None:
            answer.path = exchange
            exchange.settle()
        return exchange

    # --- What the transport offers -------------------------------------------------------------

    def open_stream(self) -> int:
        stream_id = self._quic.get_next_available_stream_id()
        self._quic.send_stream_data(stream_id, b"")  # takes the number
        return stream_id

    def write_stream(self, stream_id: int, data: bytes, end: bool = False) -> None:
        with contextlib.suppress(AssertionError, RuntimeError):  # a side that ended or was stopped takes nothing
            self._quic.send_stream_data(stream_id, data, end)
        self.transmit()

    def reset_stream(self, stream_id: int, code: int) -> None:
        wire_code = self.to_wire_code(code)
        self._quic.reset_stream(stream_id, wire_code)
        self._quic.stop_stream(stream_id, wire_code)
        self.transmit()

    def takes_datagrams(self) -> bool:
        return (self._quic._remote_max_datagram_frame_size or 0) > 0  # aioquic has no other way to ask

    def write_datagram(self, data: bytes) -> None:
        if self.takes_datagrams():
            self._quic.send_datagram_frame(data)
            self.transmit()

    def to_wire_code(self, code: int) -> int:
        return code

    def from_wire_code(self, code: int) -> Code:
        return Code(code)

    async def move(self) -> None:
        """Goes on from another local port, as a client should on a silent path (S-4.10)."""
        old_transport = self._transport
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::", 0))
        await self.loop.create_datagram_endpoint(lambda: self, sock=sock)
        assert old_transport is not None
        old_transport.close()
        self.change_connection_id()

    def vanish(self) -> None:
        """Goes away without a word, as a machine does that loses its network."""
        assert self._transport is not None
        self._transport.close()
        self._transport = _Nowhere()  # aioquic goes on until its timers end
        self._handle_lost(Code.BROKEN_OFF)

    # --- Events of QUIC ------------------------------------------------------------------------

    def quic_event_received(self, event: QuicEvent) -> None:
        match event:
            case StreamDataReceived(data=data, end_stream=end, stream_id=stream_id):
                self.handle_stream_data(stream_id, data, end)
            case DatagramFrameReceived(data=data):
                self.handle_datagram(data)
            case StreamReset(error_code=code, stream_id=stream_id):
                if exchange := self.exchanges.get(stream_id):
                    exchange.handle_reset(self.from_wire_code(code))
            case StopSendingReceived(error_code=code, stream_id=stream_id):
                if exchange := self.exchanges.get(stream_id):
                    exchange.writing_stopped = self.from_wire_code(code)
            case ConnectionTerminated(error_code=code, frame_type=frame_type):
                by_application = frame_type is None
                self._handle_lost(Code(code) if by_application else Code.BROKEN_OFF)

    def handle_stream_data(self, stream_id: int, data: bytes, end: bool) -> None:
        if exchange := self.exchanges.get(stream_id):
            exchange.handle_data(data, end)

    def handle_datagram(self, data: bytes) -> None:
        """A datagram of the connection: its channel says whose it is (D-2.3)."""
        try:
            channel = read_frame(data).channel
        except WireError:
            return
        for exchange in self.exchanges.values():
            if exchange.channel == channel:
                exchange.handle_frame(data, on_stream=False)

    def _handle_lost(self, code: Code) -> None:
        self.close_code = code
        for exchange in self.exchanges.values():
            exchange.handle_reset(code)


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def request_head(method: str, path: str, key: Optional[str], headers: Optional[dict[str, str]]) -> dict[str, Any]:
    head = {"method": method, "path": path, "headers": {"content-type": "application/json", **(headers or {})}}
    return {"key": key, **head} if key is not None else head


class _Nowhere(asyncio.DatagramTransport):
    """A network that loses everything."""

    def sendto(self, data: Any, addr: Any = None) -> None:
        pass

    def close(self) -> None:
        pass


async def discover(url: str) -> Discovery:
    """Asks over HTTP where QUIC is (S-1.3)."""
    async with httpx.AsyncClient(base_url=url) as http:
        response = await http.get("/.well-known/loquent")
    response.raise_for_status()
    return read_discovery(response.content)


@contextlib.asynccontextmanager
async def connect(
    url: str, create: Callable[..., Session] = Session, datagrams: int = 65535, alpn: str = Session.ALPN
) -> AsyncIterator[Session]:
    """A session with the server whose HTTP address is `url`. `datagrams` 0 offers none."""
    document, host = await discover(url), urlsplit(url).hostname or ""
    expected = document.certificate_sha256
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=[alpn],
        server_name=host,
        max_datagram_frame_size=datagrams or None,
        idle_timeout=30.0,  # S-1.4
        # A self-signed certificate is known by its hash, which is compared below.
        verify_mode=ssl.CERT_REQUIRED if expected is None else ssl.CERT_NONE,
    )
    # No session tickets are kept, so nothing is ever sent in 0-RTT data (S-1.5).
    async with quic_connect(host, document.port, configuration=configuration, create_protocol=create) as session:
        assert isinstance(session, Session)
        if expected is not None and _certificate_sha256(session) != expected:
            raise ConnectionError("the certificate is not the one that HTTP told of")
        await session.begin(f"{host}:{document.port}", document.path)
        yield session


def _certificate_sha256(session: Session) -> str:
    certificate = session._quic.tls._peer_certificate  # aioquic has no public name for it
    assert certificate is not None
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
