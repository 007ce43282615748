"""Checks a history by the laws, and says what it shows."""

import collections
import dataclasses

from .laws import LAWS, LIMITS
from .seen import Seen

#: How many broken laws are printed.
MOST_PRINTED = 20


@dataclasses.dataclass
class Report:
    """What a history shows: what breaks a law, what the documents name as a limit, and how much there was."""

    seen: Seen
    broken: list
    limits: list

    def summary(self):
        answers = self.seen.answers.values()
        asked = [answer for answer in answers if answer.asked.status == 200]
        takeovers = [{event["epochs"] for event in answer.owners if event["epochs"]} for answer in asked]
        return {
            "answers": len(asked),
            "by api": dict(collections.Counter(answer.asked["api"] for answer in asked)),
            "readers": dict(collections.Counter(event["end"] for answer in asked for event in answer.readers)),
            "moves": sum(max(0, len(answer.visits) + len(answer.polls) - 1) for answer in asked),
            "takeovers": sum(map(len, takeovers)),
            "faults": dict(collections.Counter(fault.kind for fault in self.seen.faults)),
            "fault seconds": round(self.seen.phases.get("calm", 0) - self.seen.phases.get("faults", 0)),
            "seconds": max((event["t"] for event in self.seen.events), default=0),
            "limits": dict(collections.Counter(one.limit for one in self.limits)),
            "violations": dict(collections.Counter(one.law for one in self.broken)),
        }

    def text(self):
        told = self.summary()
        lines = [f"{name + ':':15}{words(value)}" for name, value in told.items() if name not in ("by api", "limits")]
        lines += [f"  {count} times: {limit} ({LIMITS[limit]})" for limit, count in told["limits"].items()]
        groups = collections.defaultdict(list)
        for one in self.broken:
            groups[one.law, one.answer].append(one)
        for first, *more in list(groups.values())[:MOST_PRINTED]:
            where = f"{first.answer}: " if first.answer else ""
            again = f" (and {len(more)} times more)" if more else ""
            lines.append(f"BROKEN {first.law}: {where}{first.what}; lines {', '.join(map(str, first.lines))}{again}")
        if len(groups) > MOST_PRINTED:
            lines.append(f"and {len(groups) - MOST_PRINTED} answers more")
        return "\n".join(lines)


def words(value):
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items()) or "none"
    return f"{value:g}"


def check(events):
    """The report on a history."""
    seen = Seen(events)
    found = [one for law in LAWS for one in law(seen)]
    return Report(seen, [one for one in found if not one.limit], [one for one in found if one.limit])
