"""Waiting for the native module in asyncio."""

from __future__ import annotations

import asyncio
from typing import Any, Callable


async def wait(start: Callable[..., Any], *arguments: Any) -> Any:
    """Awaits a method of the native module, and aborts it if the awaiting task is cancelled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def done(value: Any, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            pass  # the loop is closed: nobody waits

    task = start(*arguments, done=done)
    try:
        return await future
    finally:
        task.abort()
