"""A history in order: answers with all that was seen of them, and faults. Nothing here judges."""

import dataclasses

#: A position is epoch * EPOCH + offset (spec/delivery.md, D-6.8).
EPOCH = 1 << 36
#: Faults that lose what the store has, all or the last of it.
LOSSES = {"store-empty", "failover"}
#: Faults in which a replica is alive and does not reach the store.
APART = {"pause", "cut", "stall"}
STORE = "store"


@dataclasses.dataclass
class Fault:
    n: int
    kind: str
    target: object
    t0: float
    t1: float
    settings: str


@dataclasses.dataclass
class Process:
    replica: int
    settings: str
    t0: float
    t1: float = float("inf")


@dataclasses.dataclass
class Call:
    """A call: the event of its beginning and that of its end, which may be missing."""

    begun: dict
    ended: dict

    @property
    def t0(self):
        return self.begun["t"]

    @property
    def t1(self):
        return self.ended["t"] if self.ended else float("inf")

    @property
    def status(self):
        """The status, or 0 where there was none."""
        return (self.ended or {}).get("status", 0)

    @property
    def lines(self):
        return [event["n"] for event in (self.begun, self.ended) if event]

    def __getitem__(self, name):
        """What either event has."""
        return (self.ended or {}).get(name, self.begun.get(name))


@dataclasses.dataclass
class Reading:
    """One pass of a reader from the beginning of an answer: its visits, and the text after each."""

    r: str
    visits: list = dataclasses.field(default_factory=list)
    text: str = ""

    @property
    def is_done(self):
        return bool(self.visits) and self.visits[-1]["end"] == "done"


@dataclasses.dataclass
class Answer:
    """An answer, and all that was seen of it, in the order of its calls."""

    asked: Call
    readings: list = dataclasses.field(default_factory=list)
    visits: list = dataclasses.field(default_factory=list)
    polls: list = dataclasses.field(default_factory=list)
    deletes: list = dataclasses.field(default_factory=list)
    looks: list = dataclasses.field(default_factory=list)
    pries: list = dataclasses.field(default_factory=list)
    stored: list = dataclasses.field(default_factory=list)
    readers: list = dataclasses.field(default_factory=list)
    owners: list = dataclasses.field(default_factory=list)
    left: dict = None

    @property
    def a(self):
        return self.asked["a"]

    @property
    def stopped_t(self):
        """When a DELETE was confirmed, or nothing."""
        return min((call.t1 for call in self.deletes if call.status == 204), default=None)

    @property
    def stopping_t(self):
        """When a DELETE was first sent: from then on it may have happened."""
        return min((call.t0 for call in self.deletes), default=float("inf"))

    def whole(self):
        """The longest text that anybody has."""
        texts = [reading.text for reading in self.readings]
        texts += [call["text"] for call in [*self.polls, *self.stored] if call.status == 200]
        return max((text for text in texts if text), key=len, default="")

    def is_whole(self):
        return bool(self.readers) and all(event["end"] == "whole" for event in self.readers)


class Seen:
    """What a history shows."""

    def __init__(self, events):
        self.events = events
        self.answers, self.faults, self.exits, self.rests, self.phases = {}, [], [], [], {}
        #: Of each process of a replica, by the name that the store knows: its replica, and from when to when it ran.
        self.processes = {}
        ends = {event["c"]: event for event in events if "c" in event}
        for event in events:
            if event["e"] == "invoke":
                self.note_call(event["op"], Call(event, ends.get(event["n"])))
            elif event["e"] == "info":
                self.note(event)

    def note_call(self, op, call):
        if op == "fault":
            names = (call["kind"], call["target"], call.t0, call.t1, call["settings"])
            self.faults.append(Fault(call.begun["n"], *names))
            return
        if op == "ask":
            self.answers[call["a"]] = Answer(call)
            return
        answer = self.answers[call["a"]]
        kinds = {"poll": "polls", "delete": "deletes", "look": "looks", "pry": "pries", "stored": "stored"}
        if op == "read":
            self.note_visit(answer, call)
        else:
            getattr(answer, kinds[op]).append(call)

    def note_visit(self, answer, call):
        """A visit goes on with its reader's last reading, or begins another one."""
        answer.visits.append(call)
        if call.status != 200 or not call.ended:
            return
        r = call["r"]
        own = [reading for reading in answer.readings if reading.r == r]
        if call["place"] is None or not own:
            answer.readings.append(Reading(r))
            own = answer.readings[-1:]
        own[-1].visits.append(call)
        own[-1].text = own[-1].text[:call["chars"]] + call["text"]

    def note(self, event):
        op = event["op"]
        if op == "phase":
            self.phases[event["phase"]] = event["t"]
        elif op == "start":
            self.processes[event["name"]] = Process(event["replica"], event["settings"], event["t"])
        elif op == "exit":
            self.exits.append(event)
            for process in self.processes.values():
                if process.replica == event["replica"] and process.t1 == float("inf"):
                    process.t1 = event["t"]
        elif op == "rest":
            self.rests.append(event)
        elif op == "left":
            self.answers[event["a"]].left = event
        elif op in ("owner", "reader"):
            answer = self.answers[event["a"]]
            (answer.owners if op == "owner" else answer.readers).append(event)

    def owner_at(self, answer, t):
        """The process that owns an answer at a time, as far as the store has told; at first, the one that was asked."""
        told = [event["owner"] for event in answer.owners if event["t"] <= t and event["owner"]]
        if told:
            return self.processes.get(told[-1])
        return self.asked_of(answer)

    def asked_of(self, answer):
        """The process that began an answer: that of its first fence, else the one that was asked; nothing if a proxy
        has chosen it, and the store has never told.
        """
        first = next((event["owner"] for event in answer.owners if event["owner"] and event["fence"] == "1"), None)
        if first in self.processes:
            return self.processes[first]
        asked, t = answer.asked["replica"], answer.asked.t0
        running = [one for one in self.processes.values() if one.replica == asked and one.t0 <= t <= one.t1]
        return running[0] if running else None

    def owners_of(self, answer, t):
        """The replicas that have owned an answer until a time; None stands for one that is not known."""
        found = {event["owner"] for event in answer.owners if event["owner"] and event["t"] <= t}
        processes = [self.processes.get(name) for name in found] + [self.asked_of(answer)]
        return {process.replica for process in processes if process} or {None}

    def during(self, kinds, t0, t1, targets=None):
        """Faults of some kinds that last at any time from `t0` to `t1`, at some targets or at any."""
        anywhere = targets is None or None in targets
        return [
            fault for fault in self.faults
            if fault.kind in kinds and fault.t0 <= t1 and fault.t1 >= t0 and (anywhere or fault.target in targets)
        ]

    def without_store(self, replicas, t0, t1):
        """Faults from `t0` to `t1` in which one of these replicas does not reach the store."""
        at_store = [fault for fault in self.faults if fault.target == STORE and fault.t0 <= t1 and fault.t1 >= t0]
        return at_store + self.during(APART, t0, t1, replicas)

    def epochs_of(self, answer):
        """The epochs of an answer that anybody has seen but the first, each with the offset where it began: by the
        store's word, else before the first place of it that a reader was told.
        """
        starts = {}
        for visit in answer.visits:
            for place, _ in (visit["places"] or []) if visit.status == 200 else []:
                epoch, offset = divmod(place, EPOCH)
                starts[epoch] = min(offset - 1, starts.get(epoch, offset))
        for event in answer.owners:
            parts = [part.split(":") for part in (event["epochs"] or "").split(",") if part]
            starts.update((int(epoch), int(start)) for epoch, start in parts)
        starts.pop(0, None)
        return starts
