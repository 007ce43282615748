"""The history of a run: JSON lines, one for each event.

An event has `n`, its line; `t`, seconds since the run began; `e`, which is `invoke`, `ok`, `fail` or `info`; and `op`.
`ok` and `fail` end the call `c`, the line of its `invoke`. A call without an end may or may not have happened.
docs/chaos.md lists the operations.
"""

import hashlib
import json
import time


class History:
    """Writes a history. Each line is written at once, so that a run that is killed leaves what it saw."""

    def __init__(self, path):
        self.file = open(path, "w", buffering=1)
        self.begun, self.lines = time.monotonic(), 0
        self.open_calls = {}

    def now(self):
        """Seconds since the run began."""
        return round(time.monotonic() - self.begun, 3)

    def write(self, e, op, **fields):
        self.lines += 1
        self.file.write(json.dumps({"n": self.lines, "t": self.now(), "e": e, "op": op, **fields}) + "\n")
        return self.lines

    def invoke(self, op, **fields):
        """Begins a call; returns its number."""
        call = self.write("invoke", op, **fields)
        self.open_calls[call] = op
        return call

    def ok(self, call, **fields):
        self.write("ok", self.open_calls.pop(call), c=call, **fields)

    def fail(self, call, **fields):
        self.write("fail", self.open_calls.pop(call), c=call, **fields)

    def info(self, op, **fields):
        self.write("info", op, **fields)

    def close(self):
        self.file.close()


def read(path):
    """The events of a history; of one that broke off, all but a last half line."""
    events = []
    with open(path) as file:
        for line in file:
            if not line.endswith("\n"):
                break
            events.append(json.loads(line))
    return events


def digest(text):
    """A short hash of a text, by which readings are compared at a glance."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
