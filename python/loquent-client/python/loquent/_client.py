"""The clients: httpx's own, over Loquent's transports."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import httpx2

from . import _bridge
from ._answer import MAX_REFUSAL_BYTES, Answer, AsyncAnswer, Reference, refusal
from ._errors import answer_error
from ._native import NativeClient, NativeError, NativeStream
from ._servers import Options, Servers
from ._transport import AsyncTransport, Transport
from ._trust import context

#: Options of httpx that belong to its transport.
OF_TRANSPORT = ("verify", "cert", "http1", "http2", "limits", "proxy", "trust_env")
JSON = [(b"content-type", b"application/json")]


def _split(arguments: dict[str, Any], url: str | None, options: Options) -> dict[str, Any]:
    """Takes what belongs to httpx's transport out of a client's arguments."""
    if url is not None:
        arguments.setdefault("base_url", url)
    arguments.setdefault("follow_redirects", True)
    if (trust := context(options.ca, options.fingerprint)) is not None:
        arguments.setdefault("verify", trust)
    return {name: arguments.pop(name) for name in OF_TRANSPORT if name in arguments}


def _question(messages: Any, prompt: Any, parameters: dict[str, Any]) -> tuple[str, bytes]:
    """Returns path and body of a question."""
    if (messages is None) == (prompt is None):
        raise TypeError("give messages, or prompt for a plain completion")
    if messages is not None:
        path, asked = "/v1/chat/completions", {"messages": list(messages)}
    else:
        path, asked = "/v1/completions", {"prompt": prompt}
    return path, json.dumps({**parameters, **asked, "stream": True}).encode()


def _server(servers: Servers) -> NativeClient:
    if servers.url is None:
        raise TypeError("no server to ask: make the client with its URL, as in loquent.Client('https://host:8443')")
    client = servers.client(servers.url)
    assert client is not None
    return client


class Client(httpx2.Client):
    """An `httpx2.Client` whose streamed answers come over QUIC and are resumed.

    With `url`, every request goes to that server, whatever base URL an SDK has. Without it, each
    goes to the server that its own URL names.

    Options of its own: `api_key` replaces the keys of requests; `quic=False` uses event streams
    only; `head_start` is the most seconds that a request waits for QUIC before it uses HTTP;
    `resume_limit` is the most seconds that a lost answer is looked for; `state_dir` is a folder in
    which it remembers what worked for each server. `via` names one or two networks of this machine,
    by interface or local address, the better one first: a QUIC connection is kept over each, and
    `via_mode` says whether the second carries answers only while the first one loses packets
    ("backup") or always ("redundant"). `ca` is a file of certificates to trust instead of the
    system's authorities, and `fingerprint` the SHA-256 of the only certificate to trust. All others
    are httpx's.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        quic: bool = True,
        head_start: float = 0.5,
        resume_limit: float = 90.0,
        state_dir: str | os.PathLike[str] | None = None,
        via: Sequence[str] = (),
        via_mode: str = "backup",
        ca: str | os.PathLike[str] | None = None,
        fingerprint: str | None = None,
        transport: httpx2.BaseTransport | None = None,
        **arguments: Any,
    ) -> None:
        options = Options(api_key, quic, head_start, resume_limit, state_dir, via, via_mode, ca, fingerprint)
        self._servers = Servers(url, options)
        of_transport = _split(arguments, url, options)
        plain = transport or httpx2.HTTPTransport(**of_transport)
        super().__init__(transport=Transport(self._servers, plain), **arguments)

    def warm_up(self) -> str:
        """Connects ahead of the first request. Returns `quic` or `http`, what answers come over."""
        return _server(self._servers).warm_up()

    def stream_chat(
        self,
        *,
        messages: Sequence[Any] | None = None,
        prompt: str | None = None,
        timeout: float | None = None,
        **parameters: Any,
    ) -> Answer:
        """Asks, and returns the answer under way. `parameters` are those of OpenAI's API.

        `timeout` is the most seconds without anything of the answer. Raises LoquentError if the
        server refuses the question, TimeoutError, TypeError if there is no server to ask."""
        client = _server(self._servers)
        path, body = _question(messages, prompt, parameters)
        try:
            stream = client.ask(path, JSON, body, timeout)
            if stream.reference is None:
                raise refusal(stream.status, self._read(stream))
        except NativeError as error:
            raise answer_error(error) from None
        return Answer(stream, 0, timeout)

    def resume_chat(self, reference: tuple[str, str], offset: int = 0, *, timeout: float | None = None) -> Answer:
        """Continues an answer behind `offset`, also one that another process has asked for.

        Raises AnswerGone if the server has it no more."""
        client = _server(self._servers)
        reference = Reference(*reference)
        try:
            return Answer(client.resume(reference.id, reference.token, offset, timeout), offset, timeout)
        except NativeError as error:
            raise answer_error(error) from None

    @staticmethod
    def _read(stream: NativeStream) -> bytes:
        body = b""
        while stream.status != 200 and len(body) < MAX_REFUSAL_BYTES and (piece := stream.next_piece(10.0)):
            body += piece
        stream.close()
        return body


class AsyncClient(httpx2.AsyncClient):
    """The same for asyncio: an `httpx2.AsyncClient`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        quic: bool = True,
        head_start: float = 0.5,
        resume_limit: float = 90.0,
        state_dir: str | os.PathLike[str] | None = None,
        via: Sequence[str] = (),
        via_mode: str = "backup",
        ca: str | os.PathLike[str] | None = None,
        fingerprint: str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        **arguments: Any,
    ) -> None:
        options = Options(api_key, quic, head_start, resume_limit, state_dir, via, via_mode, ca, fingerprint)
        self._servers = Servers(url, options)
        of_transport = _split(arguments, url, options)
        plain = transport or httpx2.AsyncHTTPTransport(**of_transport)
        super().__init__(transport=AsyncTransport(self._servers, plain), **arguments)

    async def warm_up(self) -> str:
        """Connects ahead of the first request. Returns `quic` or `http`, what answers come over."""
        return await _bridge.wait(_server(self._servers).warm_up)

    async def stream_chat(
        self,
        *,
        messages: Sequence[Any] | None = None,
        prompt: str | None = None,
        timeout: float | None = None,
        **parameters: Any,
    ) -> AsyncAnswer:
        """Asks, and returns the answer under way. `parameters` are those of OpenAI's API.

        `timeout` is the most seconds without anything of the answer. Raises LoquentError if the
        server refuses the question, TimeoutError, TypeError if there is no server to ask."""
        client = _server(self._servers)
        path, body = _question(messages, prompt, parameters)
        try:
            stream = await _bridge.wait(client.ask, path, JSON, body, timeout)
            if stream.reference is None:
                raise refusal(stream.status, await self._read(stream))
        except NativeError as error:
            raise answer_error(error) from None
        return AsyncAnswer(stream, 0, timeout)

    async def resume_chat(
        self, reference: tuple[str, str], offset: int = 0, *, timeout: float | None = None
    ) -> AsyncAnswer:
        """Continues an answer behind `offset`, also one that another process has asked for.

        Raises AnswerGone if the server has it no more."""
        client = _server(self._servers)
        reference = Reference(*reference)
        try:
            stream = await _bridge.wait(client.resume, reference.id, reference.token, offset, timeout)
        except NativeError as error:
            raise answer_error(error) from None
        return AsyncAnswer(stream, offset, timeout)

    @staticmethod
    async def _read(stream: NativeStream) -> bytes:
        body = b""
        while stream.status != 200 and len(body) < MAX_REFUSAL_BYTES:
            piece = await _bridge.wait(stream.next_piece, 10.0)
            if piece is None:
                break
            body += piece
        stream.close()
        return body
