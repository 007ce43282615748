"""Failures of the native module as exceptions that callers know."""

from __future__ import annotations

import httpx2

from ._native import NativeError


class LoquentError(Exception):
    """An answer that is refused or broken off, for good: the client has tried to resume it.

    `code` is the server's or the client's word for the cause, `status` the HTTP status of a
    refusal.
    """

    def __init__(self, message: str, code: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class AnswerGone(LoquentError):
    """The server does not have the answer any more: ask again. Servers keep an answer for 60 s
    after its last reader left (`--resume-grace-s`)."""


def transport_error(error: NativeError, request: httpx2.Request, begun: bool) -> Exception:
    """Returns the exception that httpx's own transport would raise: SDKs know it, and ask again
    where that is safe. `begun` says that the response's head has arrived."""
    kind, message = error.args
    where = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
    if kind == "timeout":
        return httpx2.ReadTimeout(f"{where}: {message}; raise the timeout of the request", request=request)
    if kind == "value":
        return httpx2.LocalProtocolError(message, request=request)
    if kind == "connect" and not begun:
        message = f"{where} cannot be reached: {message}; check the URL, and that the server runs"
        return httpx2.ConnectError(message, request=request)
    if begun:
        return httpx2.RemoteProtocolError(f"{where}: the answer broke off: {message}", request=request)
    return httpx2.ReadError(f"{where} did not answer: {message}", request=request)


def answer_error(error: NativeError) -> Exception:
    """Returns the exception of the iterators."""
    kind, message = error.args
    if kind == "timeout":
        return TimeoutError(f"{message}; raise timeout")
    if kind == "value":
        return ValueError(message)
    if kind == "gone":
        return AnswerGone(f"{message}; ask again", kind)
    return LoquentError(message, kind)
