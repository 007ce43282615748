"""What a tool reported, and what of it is explained."""

import fnmatch
from dataclasses import dataclass, field
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10: the tests of this are skipped
    tomllib = None

HERE = Path(__file__).resolve().parent
EXPLAINED = HERE / "explained.toml"


@dataclass(frozen=True)
class Finding:
    """Something that a tool takes for a fault.

    `id` is TOOL/CHECK and the same in each run, `what` is one line with what the tool saw.
    """

    id: str
    what: str


@dataclass
class Report:
    """The outcome of one tool: it made `checks` checks, of which `passed` held, and the others are `findings`."""

    checks: int
    passed: int
    findings: list[Finding] = field(default_factory=list)


class Unreadable(Exception):
    """A tool ended without a report, or with one that shows no checks: nothing is known about the server."""


@dataclass(frozen=True)
class Explanation:
    """The reason why findings whose id matches a shell pattern are no fault."""

    pattern: str
    why: str
    #: Seen in some runs only: what it depends on, its reason says.
    may_be_absent: bool = False

    def covers(self, finding):
        # Patterns are written by hand, and ids have brackets: only * is special.
        return fnmatch.fnmatchcase(finding.id, self.pattern.replace("[", "[[]"))


def explanations(path=EXPLAINED):
    """The list of explained findings.

    Raises ValueError for an entry without a reason, or one that covers a whole tool.
    """
    with open(path, "rb") as file:
        entries = tomllib.load(file).get("finding", [])
    for entry in entries:
        if len(entry.get("why", "").split()) < 3:
            raise ValueError(f"{path}: {entry.get('id')} has no reason")
        if entry["id"].count("/") < 1 or entry["id"].split("/", 1)[1].strip("*/") == "":
            raise ValueError(f"{path}: {entry['id']} covers every finding of a tool")
    return [Explanation(it["id"], " ".join(it["why"].split()), it.get("sometimes", False)) for it in entries]


def judge(findings, explained):
    """Splits findings into those that are explained, as pairs with their explanation, and the others."""
    known, unknown = [], []
    for finding in findings:
        reason = next((it for it in explained if it.covers(finding)), None)
        if reason:
            known.append((finding, reason))
        else:
            unknown.append(finding)
    return known, unknown


def one_line(text, limit=160):
    """Text of a tool as one line of at most `limit` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
