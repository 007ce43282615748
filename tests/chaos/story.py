"""Histories for the tests of the laws: an orderly run, to which a test adds what breaks one law."""

from chaos.seen import EPOCH

WHOLE = "Once upon a time there was a river."
USAGE = {"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 3}}
#: The names of the replicas 0, 1 and 2 in the store.
FIRST, SECOND, THIRD = "f" * 32, "e" * 32, "d" * 32


class Story:
    """Events of a history, written one after the other. Each call is given when it begins and when it ends."""

    def __init__(self, settings=""):
        self.events = []
        for replica, name in enumerate((FIRST, SECOND, THIRD)):
            self.info("start", 0, replica=replica, name=name, settings=settings)

    def write(self, t, e, op, **fields):
        self.events.append({"n": len(self.events) + 1, "t": t, "e": e, "op": op, **fields})
        return len(self.events)

    def call(self, op, begun, ended, t0, t1, e="ok"):
        call = self.write(t0, "invoke", op, **begun)
        self.write(t1, e, op, c=call, **ended)
        return self

    def info(self, op, t, **fields):
        self.write(t, "info", op, **fields)
        return self

    def fault(self, kind, target, t0, t1, settings=""):
        return self.call("fault", dict(kind=kind, target=target, lasts=t1 - t0, settings=settings), {}, t0, t1)

    def ask(self, a="a0", t=1.0, api="chat", replica=0, key="alice", prompt=0, settings="", stored=False):
        begun = dict(a=a, api=api, replica=replica, key=key, prompt=prompt, settings=settings, stored=stored)
        return self.call("ask", begun, dict(a=a, id="1" * 32, status=200), t, t)

    def read(self, text=WHOLE, a="a0", r="a0.0", replica=0, place=None, chars=0, t0=1.0, t1=2.0, end="done", **more):
        """A visit that got `text`, of which each character has a place of its own."""
        begun = dict(a=a, r=r, replica=replica, place=place, chars=chars)
        at = place or 0
        places = [[at + 1 + i, chars + 1 + i] for i in range(len(text))]
        is_done = end == "done"
        got = dict(a=a, status=200, text=text, places=places, end=end, last_t=t1 - t0, error=None, usages=int(is_done),
                   finish="stop" if is_done else None, usage=USAGE if is_done else None)
        return self.call("read", begun, {**got, **more}, t0, t1)

    def refused(self, status=404, a="a0", r="a0.0", replica=1, place=None, chars=0, t0=1.5, t1=1.5):
        begun = dict(a=a, r=r, replica=replica, place=place, chars=chars)
        return self.call("read", begun, dict(a=a, status=status, said=""), t0, t1, e="fail")

    def poll(self, text=WHOLE, state="completed", a="a0", replica=0, t=2.0, usage=None):
        got = dict(a=a, status=200, text=text, state=state, usage=usage, error=None)
        return self.call("poll", dict(a=a, r="a0.0", replica=replica), got, t, t)

    def exit(self, replica, t, by="SIGKILL", code=-9):
        return self.info("exit", t, replica=replica, by=by, code=code)

    def simple(self, op, status, a="a0", replica=0, t=3.0, **more):
        """A call of which only the status counts: a delete, a look, or an attempt to pry."""
        return self.call(op, dict(a=a, replica=replica, **more), dict(a=a, status=status), t, t)

    def stored(self, text=WHOLE, status=200, usage=USAGE, t=9.0):
        return self.call("stored", dict(a="a0", replica=0), dict(a="a0", status=status, text=text, usage=usage), t, t)

    def owner(self, owner, fence, epochs="", t=1.0, state="running", a="a0"):
        fence = fence and str(fence)
        return self.info("owner", t, a=a, owner=owner, fence=fence, state=state, epochs=epochs, head="10")

    def left(self, state, ms, t=60.0):
        return self.info("left", t, a="a0", owner=THIRD, fence="1", state=state, epochs="", head="10", ms=ms)

    def reader(self, end="whole", r="a0.0", t=5.0, a="a0"):
        return self.info("reader", t, a=a, r=r, end=end)

    def phases(self, calm=10.0, rest=20.0):
        return self.info("phase", calm, phase="calm").info("phase", rest, phase="rest")


def place(epoch, offset):
    return epoch * EPOCH + offset
