"""The same session over WebTransport (S-1.1, S-1.2), as a browser opens it.

Written from the text of spec/ alone, without reading Loquent's code. Keep it so.
"""

from __future__ import annotations

import asyncio
from typing import Any, Optional

from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DatagramReceived, DataReceived, H3Event, HeadersReceived
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StopSendingReceived, StreamDataReceived, StreamReset

from .messages import Code
from .session import Session

ALPN = H3_ALPN[0]
# WebTransport's codes lie in a range of HTTP/3's, in which every 31st number is left out
# (draft-ietf-webtrans-http3, section 4.3).
FIRST_ERROR = 0x52E4A40FA8DB


class WebTransportRefused(Exception):
    def __init__(self, status: int):
        super().__init__(f"status {status}")
        self.status = status


class WebTransportSession(Session):
    """One WebTransport session on a connection of its own."""

    ALPN = ALPN

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.h3 = H3Connection(self._quic, enable_webtransport=True)
        self.session_id: Optional[int] = None
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        #: The page's origin; a server refuses those that it does not allow (S-1.4).
        self.origin: Optional[str] = None
        self.path: Optional[str] = None
        #: What browsers of the second draft send with it; later ones, Safari's among them, do not.
        self.draft02: Optional[str] = "1"

    async def begin(self, host: str, path: str) -> None:
        self.session_id = self._quic.get_next_available_stream_id()
        headers = {
            ":method": "CONNECT",
            ":scheme": "https",
            ":authority": host,
            ":path": self.path or path,
            ":protocol": "webtransport",
            "sec-webtransport-http3-draft02": self.draft02,
            "origin": self.origin,
        }
        pairs = [(name.encode(), value.encode()) for name, value in headers.items() if value is not None]
        self.h3.send_headers(self.session_id, pairs)
        self.transmit()
        status = await self.status
        if status != 200:
            raise WebTransportRefused(status)

    # --- What the transport offers -------------------------------------------------------------

    def open_stream(self) -> int:
        assert self.session_id is not None
        return self.h3.create_webtransport_stream(self.session_id)

    def write_datagram(self, data: bytes) -> None:
        assert self.session_id is not None
        self.h3.send_datagram(self.session_id, data)
        self.transmit()

    def to_wire_code(self, code: int) -> int:
        return FIRST_ERROR + code + code // 30

    def from_wire_code(self, code: int) -> Code:
        shifted = code - FIRST_ERROR
        return Code(shifted - shifted // 31)

    # --- Events of QUIC and HTTP/3 -------------------------------------------------------------

    def quic_event_received(self, event: QuicEvent) -> None:
        # What comes on a WebTransport stream that this side opened has no HTTP/3 frames around it.
        is_ours = isinstance(event, StreamDataReceived) and event.stream_id in self.exchanges
        if is_ours or isinstance(event, (StreamReset, StopSendingReceived, ConnectionTerminated)):
            super().quic_event_received(event)
            if isinstance(event, ConnectionTerminated) and not self.status.done():
                self.status.set_exception(ConnectionError(event.reason_phrase))
            return
        for h3_event in self.h3.handle_event(event):
            self._handle_h3(h3_event)

    def _handle_h3(self, event: H3Event) -> None:
        match event:
            case HeadersReceived(headers=headers, stream_id=stream_id) if stream_id == self.session_id:
                self.status.set_result(int(dict(headers)[b":status"]))
            case DatagramReceived(data=data, stream_id=stream_id) if stream_id == self.session_id:
                self.handle_datagram(data)
            case DataReceived(stream_id=stream_id, stream_ended=True) if stream_id == self.session_id:
                self._handle_lost(Code.BROKEN_OFF)  # the server ended the WebTransport session
