"""What the drivers of SDKs in Python share. A driver is run as `DRIVER MODE PROMPT`; RECIPE holds the docs' code."""

import asyncio
import contextlib
import inspect
import json
import os
import sys
from pathlib import Path

KEPT = Path("conversation.json")


def recipe():
    """The names that the docs' code defines; what it prints goes to stderr."""
    names = {}
    with contextlib.redirect_stdout(sys.stderr):
        exec(compile(os.environ["RECIPE"], "docs/apps.md", "exec"), names)
    return names


def read_word(path: str) -> str:
    """Reads a file.

    Args:
        path: the file's path.
    """
    return Path(path).read_text()


def keep(value):
    """Keeps the conversation for the next process."""
    KEPT.write_text(json.dumps(value))


def kept():
    return json.loads(KEPT.read_text())


async def _print_all(pieces):
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            print(piece, end="", flush=True)


def main(ask=None, stream=None, go_on=None, schema=None):
    """Runs the mode. An interrupted stream is closed; the process then lives until its input ends."""
    mode, prompt = sys.argv[1:]
    if mode != "stream":
        print({"ask": ask, "continue": go_on, "schema": schema}[mode](prompt))
        return
    pieces = stream(prompt)
    try:
        if inspect.isasyncgen(pieces):
            asyncio.run(_print_all(pieces))
        else:
            for piece in pieces:
                print(piece, end="", flush=True)
    except KeyboardInterrupt:
        pieces.close() if inspect.isgenerator(pieces) else None
        print("\n(cancelled)", flush=True)
        sys.stdin.read()
