"""The native clients of servers, and which way a request goes."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

import httpx2

from ._errors import answer_error
from ._native import NativeClient, NativeError
from ._trust import parse_fingerprint

#: Servers that one client keeps connections to; a program that talks to more gets plain HTTP there.
MAX_SERVERS = 16
ANSWERS = ("/v1/chat/completions", "/v1/completions")
#: Uses of two networks: the second one while the first is losing, or both always.
VIA_MODES = ("backup", "redundant")
STREAMS = ("/v1/messages", "/v1/responses")


class Way(enum.Enum):
    """The way of a request."""

    ANSWER = "answer"  # the delivery protocol: datagrams, resume
    TUNNEL = "tunnel"  # a stream of the QUIC connection
    PLAIN = "plain"  # httpx's own transport


@dataclass(frozen=True)
class Options:
    """Options of every native client."""

    api_key: str | None = None
    quic: bool = True
    head_start: float = 0.5
    resume_limit: float = 90.0
    state_dir: str | os.PathLike[str] | None = None
    via: Sequence[str] = ()
    via_mode: str = "backup"
    ca: str | os.PathLike[str] | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if self.via_mode not in VIA_MODES:
            raise ValueError(f"via_mode is {' or '.join(map(repr, VIA_MODES))}, not {self.via_mode!r}")
        if isinstance(self.via, str):
            raise TypeError("via is a sequence of networks, such as ('wlan0', 'wwan0')")
        if self.ca is not None and self.fingerprint is not None:
            raise TypeError("give ca or fingerprint, not both")


def parse_server(url: str) -> httpx2.URL:
    """Returns the origin of a server's URL.

    Raises ValueError if it is none."""
    parsed = httpx2.URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{url!r} is no server's URL; write it as https://host:8443")
    if parsed.path.rstrip("/") not in ("", "/v1") or parsed.query or parsed.userinfo:
        raise ValueError(f"{url!r} names more than a server; write it as https://host:8443")
    return origin(parsed)


def origin(url: httpx2.URL) -> httpx2.URL:
    """Returns scheme, host and port of `url`."""
    return httpx2.URL(f"{url.scheme}://{url.netloc.decode('ascii')}")


class Servers:
    """The servers of one client: the one that it was made for, or those that requests name."""

    def __init__(self, url: str | None, options: Options) -> None:
        self.url = None if url is None else parse_server(url)
        self._options = options
        self._clients: dict[str, NativeClient] = {}
        if self.url is not None:
            self.client(self.url)

    def client(self, url: httpx2.URL) -> NativeClient | None:
        """Returns the native client of a URL's server, None if there are too many servers."""
        name = str(origin(url))
        if name not in self._clients and len(self._clients) < MAX_SERVERS:
            options = self._options
            state_dir = None if options.state_dir is None else os.fspath(options.state_dir)
            pinned = None if options.fingerprint is None else parse_fingerprint(options.fingerprint)
            try:
                self._clients[name] = NativeClient(
                    name,
                    options.api_key,
                    options.quic,
                    [*options.via],
                    options.via_mode == "redundant",
                    options.head_start,
                    options.resume_limit,
                    state_dir,
                    None if options.ca is None else os.fspath(options.ca),
                    pinned,
                )
            except NativeError as error:
                raise answer_error(error) from None
        return self._clients.get(name)

    def all(self) -> list[NativeClient]:
        """Returns the native clients that there are."""
        return list(self._clients.values())

    def redirect(self, request: httpx2.Request) -> None:
        """Sends `request` to the server that the client was made for."""
        if self.url is not None:
            url, server = request.url, self.url
            request.url = url.copy_with(scheme=server.scheme, host=server.host, port=server.port)
            request.headers["host"] = server.netloc.decode("ascii")
        if self._options.api_key is not None:
            # As the native client does it; Anthropic's SDK has a header of its own.
            request.headers["authorization"] = f"Bearer {self._options.api_key}"
            request.headers.pop("x-api-key", None)


def may_stream(request: httpx2.Request) -> bool:
    """Says whether the body decides on the way of `request`."""
    return request.method == "POST" and request.url.path in ANSWERS + STREAMS


def choose(request: httpx2.Request, body: bytes) -> Way:
    """Returns the way of a request that may stream."""
    if request.headers.get("content-encoding") or b'"stream"' not in body:
        return Way.PLAIN
    try:
        asked = json.loads(body)
    except ValueError:
        return Way.PLAIN  # the server's error says what is wrong with it
    if not isinstance(asked, dict) or asked.get("stream") is not True:
        return Way.PLAIN
    return Way.ANSWER if request.url.path in ANSWERS else Way.TUNNEL


def keeps(body: bytes) -> bool:
    """Says whether an answer outlives its reader, because the request says `resumable`."""
    return b'"resumable"' in body and json.loads(body).get("resumable") is True
