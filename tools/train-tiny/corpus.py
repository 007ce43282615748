"""Loads the corpus: the entries (corpus/*.toml), the unknown topics and the system prompts."""

import json
import tomllib
from pathlib import Path

import phrasing

HERE = Path(__file__).resolve().parent
FAMILIES = ("what", "how", "why", "do", "vs", "yes", "ask")
# The order of the files is the order in which "tell me more" walks through the answers.
SECTIONS = ("streaming", "network", "serving", "models", "loquent", "smalltalk", "long")


def load_entries(folder=HERE / "corpus"):
    """All question-and-answer entries in order; each gains the key `section`."""
    entries, more = [], load_wordings(folder)
    for section in SECTIONS:
        path = folder / f"{section}.toml"
        if not path.exists():
            continue
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["qa"]:
            entry["section"] = section
            entry["answer"] = entry["answer"].strip()
            entry["ask"] = entry.get("ask", []) + more.pop(entry["id"], [])
            entries.append(entry)
    assert not more, f"wordings for unknown answers: {sorted(more)}"
    return entries


def load_wordings(folder):
    """Further hand-written questions: a map from answer id to its list, over wordings.txt and sentences.txt."""
    wordings = {}
    for name in ("wordings.txt", "sentences.txt"):
        for line in (folder / name).read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                answer, *questions = [part.strip() for part in line.split("|")]
                wordings.setdefault(answer, []).extend(questions)
    return wordings


def load_unknown(folder=HERE / "corpus"):
    """The table of unknown.toml: `refusal`, `names`, `deeds`, `pairs`, `questions`, `near`."""
    return tomllib.loads((folder / "unknown.toml").read_text(encoding="utf-8"))


def load_turns(folder=HERE / "corpus"):
    """The table of turns.toml: `system` prompts and the wordings of follow-ups (`more`, `repeat`)."""
    return tomllib.loads((folder / "turns.toml").read_text(encoding="utf-8"))


def load_heldout(folder=HERE / "heldout"):
    """All held-out cases, {"messages", "expect", "kind"}, over the files of the folder."""
    cases = []
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text(encoding="utf-8").splitlines()
        cases.extend(json.loads(line) for line in lines if line.strip())
    return cases


def next_answers(entries, refusal):
    """Maps an answer's text to the one that "tell me more" brings: the next entry of the same section, in a ring."""
    following = {refusal: refusal}
    for section in SECTIONS:
        ring = [e for e in entries if e["section"] == section]
        for entry, after in zip(ring, ring[1:] + ring[:1]):
            following[entry["answer"]] = after["answer"]
    return following


def held_out_questions(cases):
    """The normalised questions of the cases, which training must never draw.

    Follow-ups such as "go on" are left out: they have few wordings, and their answers depend on the turn before.
    """
    turns = load_turns()
    follow = {phrasing.normalised(text) for kind in ("more", "repeat") for text in turns[kind]}
    asked = {phrasing.normalised(case["messages"][-1]["content"]) for case in cases}
    return asked - follow
