"""The native module. Each call blocks without the GIL and returns its result; with `done` it
returns a `Task` at once and calls `done(result, error)` on another thread. `limit_s` are seconds."""

from typing import Any, Callable

Done = Callable[[Any, BaseException | None], None]
Headers = list[tuple[bytes, bytes]]
EventTuple = tuple[str, int, str, str, int]

class NativeError(Exception):
    """A failure: `args` are its kind and a sentence."""

    args: tuple[str, str]

class Task:
    """A wait with a callback."""

    def abort(self) -> None: ...

class NativeStream:
    """A response whose head has arrived."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> list[tuple[str, str]]: ...
    @property
    def reference(self) -> tuple[str, str] | None: ...
    @property
    def transport(self) -> str: ...
    @property
    def resumes(self) -> int: ...
    def next_piece(self, limit_s: float | None, done: Done | None = None) -> Any: ...
    def next_events(self, limit_s: float | None, taken: int, done: Done | None = None) -> Any: ...
    def close(self, keep: bool = False) -> None: ...

class NativeClient:
    """A client of one server."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        quic: bool,
        via: list[str],
        redundant: bool,
        head_start_s: float,
        resume_limit_s: float,
        state_dir: str | None,
        ca: str | None,
        fingerprint: bytes | None,
    ) -> None: ...
    def ask(self, path: str, headers: Headers, body: bytes, limit_s: float | None, done: Done | None = None) -> Any: ...
    def tunnel(
        self, path: str, headers: Headers, body: bytes, limit_s: float | None, done: Done | None = None
    ) -> Any: ...
    def resume(self, id: str, token: str, offset: int, limit_s: float | None, done: Done | None = None) -> Any: ...
    def warm_up(self, done: Done | None = None) -> Any: ...
    def close(self, limit_s: float, done: Done | None = None) -> Any: ...
