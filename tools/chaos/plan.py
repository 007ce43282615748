"""The schedule of faults, drawn from a seed."""

import dataclasses
import random

REPLICAS = 3
STORE = "store"
#: Pauses between the beginnings of two faults, in seconds.
GAP_S = (0.5, 4.0)
#: The most replicas that are not all there at once.
MOST_AWAY = REPLICAS - 1


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault: what it hits, how often it is drawn, and how long it lasts at least and at most, in seconds."""

    target: str
    weight: int
    lasts_s: tuple
    about: str


KINDS = {
    "kill": Kind("replica", 6, (0.1, 3), "SIGKILL; it is started again"),
    "term": Kind("replica", 4, (0, 0), "SIGTERM, as a rolling update sends it; it is started again once it has ended"),
    "pause": Kind("replica", 4, (0.5, 8), "SIGSTOP, then SIGCONT"),
    "cut": Kind("replica", 4, (0.5, 8), "its connections to the store are closed, and new ones too"),
    "stall": Kind("replica", 3, (0.5, 8), "nothing passes between it and the store, and nothing is closed"),
    "settings": Kind("replica", 3, (3, 15), "SIGTERM; for a while another one runs in its place, with other settings"),
    "store-pause": Kind(STORE, 3, (0.5, 6), "SIGSTOP of Redis, then SIGCONT"),
    "client-pause": Kind(STORE, 2, (0.5, 6), "CLIENT PAUSE"),
    "store-restart": Kind(STORE, 2, (0.1, 5), "Redis stops, and starts again with what it had"),
    "store-empty": Kind(STORE, 1, (0.1, 3), "Redis and its copy are killed, and start again empty"),
    "failover": Kind(STORE, 2, (0, 2), "Redis is killed, and a sentinel makes its copy the store, which lags behind"),
}
#: Other settings. Those marked refused compute other answers, or shorter ones: a takeover from, or by, them is refused.
SETTINGS = {
    "interval": ("--stream-interval", "4"),
    "sampler": ("--temperature", "0.9", "--top-k", "20"),
    "threads": ("--threads", "2"),
    "context": ("--context", "1024"),
    "kv-type": ("--kv-type", "q8_0"),
}
#: Settings whose answers no replica with the usual ones can continue (docs/replicas.md, "What a replica takes over").
REFUSED = {"kv-type"}


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault: when it begins and how long it lasts, in seconds; its target is a replica's number, or the store."""

    at_s: float
    kind: str
    target: object
    lasts_s: float
    settings: str = ""


def kinds_of(words):
    """The kinds that a user names, separated by commas; "all" stands for all."""
    names = list(KINDS) if words == "all" else [word for word in words.split(",") if word]
    unknown = [name for name in names if name not in KINDS]
    if unknown or not names:
        raise ValueError(f"there is no fault {', '.join(unknown) or 'named'}; there are {', '.join(KINDS)}")
    return names


def plan(seed, seconds, kinds=tuple(KINDS)):
    """The faults of a run, in their order. All have ended when `seconds` are over.

    A target has one fault at a time, and one replica at least is untouched.
    """
    draw = random.Random(f"{seed}/faults")
    weights = [KINDS[kind].weight for kind in kinds]
    faults, free_at, now = [], {STORE: 0.0}, draw.uniform(*GAP_S)
    while now < seconds:
        kind = draw.choices(kinds, weights)[0]
        least, most = KINDS[kind].lasts_s
        lasts = round(draw.uniform(least, most), 2)
        target = STORE if KINDS[kind].target == STORE else draw.randrange(REPLICAS)
        settings = draw.choice(list(SETTINGS)) if kind == "settings" else ""
        away = sum(until > now for name, until in free_at.items() if name not in (STORE, target))
        is_free = free_at.get(target, 0.0) <= now and (target == STORE or away < MOST_AWAY)
        if is_free and now + lasts <= seconds:
            faults.append(Fault(round(now, 2), kind, target, lasts, settings))
            # What starts again takes a moment.
            free_at[target] = now + lasts + 1.0
        now += draw.uniform(*GAP_S)
    return faults
