"""Transports of httpx: streamed answers go through the native client, the rest as ever."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2

from . import _bridge
from ._errors import transport_error
from ._native import NativeError, NativeStream
from ._servers import Servers, Way, choose, keeps, may_stream

#: How long the end of a client waits for the server to hear of cancelled answers.
CLOSE_LIMIT_S = 2.0


def _limits(request: httpx2.Request) -> tuple[float | None, float | None]:
    """Returns the most seconds until the response's head, and between pieces of its body."""
    timeout: dict[str, Any] = request.extensions.get("timeout") or {}
    connect, read = timeout.get("connect"), timeout.get("read")
    head = None if connect is None or read is None else connect + read
    return head, read


def _call(way: Way, client: Any) -> Any:
    return client.ask if way is Way.ANSWER else client.tunnel


class _Body:
    """What the bodies of both kinds share."""

    def __init__(self, stream: NativeStream, request: httpx2.Request, keep: bool) -> None:
        self._stream = stream
        self._request = request
        self._keep = keep
        self._limit = _limits(request)[1]

    def _failed(self, error: NativeError) -> Exception:
        if error.args[0] == "closed":
            return httpx2.StreamClosed()
        return transport_error(error, self._request, begun=True)


class _SyncBody(_Body, httpx2.SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        try:
            while (piece := self._stream.next_piece(self._limit)) is not None:
                yield piece
        except NativeError as error:
            raise self._failed(error) from None

    def close(self) -> None:
        self._stream.close(self._keep)


class _AsyncBody(_Body, httpx2.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while (piece := await _bridge.wait(self._stream.next_piece, self._limit)) is not None:
                yield piece
        except NativeError as error:
            raise self._failed(error) from None

    async def aclose(self) -> None:
        self._stream.close(self._keep)


def _response(stream: NativeStream, body: Any) -> httpx2.Response:
    extensions = {"http_version": b"HTTP/1.1", "loquent": stream}
    return httpx2.Response(stream.status, headers=stream.headers, stream=body, extensions=extensions)


class Transport(httpx2.BaseTransport):
    """A transport that delivers streamed answers over QUIC, or by event streams that are resumed.

    `plain` is the transport of all other requests. A client that is made by hand can have it as
    `httpx2.Client(transport=...)`; `loquent.Client` makes it itself.
    """

    def __init__(self, servers: Servers, plain: httpx2.BaseTransport) -> None:
        self._servers = servers
        self._plain = plain

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends one request, as httpx wants it of a transport."""
        self._servers.redirect(request)
        body = request.read() if may_stream(request) else b""
        way = choose(request, body) if body else Way.PLAIN
        client = None if way is Way.PLAIN else self._servers.client(request.url)
        if client is None:
            return self._plain.handle_request(request)
        path, headers = request.url.raw_path.decode("ascii"), request.headers.raw
        try:
            stream = _call(way, client)(path, headers, body, _limits(request)[0])
        except NativeError as error:
            raise transport_error(error, request, begun=False) from None
        if stream is None:
            return self._plain.handle_request(request)
        return _response(stream, _SyncBody(stream, request, keeps(body)))

    def close(self) -> None:
        """Closes the connections; answers that nobody read to their end are cancelled."""
        for client in self._servers.all():
            client.close(CLOSE_LIMIT_S)
        self._plain.close()


class AsyncTransport(httpx2.AsyncBaseTransport):
    """The same for asyncio."""

    def __init__(self, servers: Servers, plain: httpx2.AsyncBaseTransport) -> None:
        self._servers = servers
        self._plain = plain

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends one request, as httpx wants it of a transport."""
        self._servers.redirect(request)
        body = await request.aread() if may_stream(request) else b""
        way = choose(request, body) if body else Way.PLAIN
        client = None if way is Way.PLAIN else self._servers.client(request.url)
        if client is None:
            return await self._plain.handle_async_request(request)
        path, headers = request.url.raw_path.decode("ascii"), request.headers.raw
        try:
            stream = await _bridge.wait(_call(way, client), path, headers, body, _limits(request)[0])
        except NativeError as error:
            raise transport_error(error, request, begun=False) from None
        if stream is None:
            return await self._plain.handle_async_request(request)
        return _response(stream, _AsyncBody(stream, request, keeps(body)))

    async def aclose(self) -> None:
        """Closes the connections; answers that nobody read to their end are cancelled."""
        for client in self._servers.all():
            await _bridge.wait(client.close, CLOSE_LIMIT_S)
        await self._plain.aclose()
