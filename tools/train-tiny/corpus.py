"""Loads the corpus: the entries (corpus/*.toml), the unknown topics and the system prompts."""

import json
from dataclasses import dataclass
from pathlib import Path

import tomllib

import phrasing

HERE = Path(__file__).resolve().parent
FAMILIES = ("what", "how", "why", "do", "vs", "yes", "ask", "varied", "frames")
# The order of the files is the order in which "tell me more" walks through the answers.
SECTIONS = ("streaming", "network", "serving", "models", "loquent", "smalltalk", "firsts", "long")


def load_entries(folder=HERE / "corpus"):
    """All question-and-answer entries in order; each gains the key `section`."""
    entries, more, varied = [], load_wordings(folder), load_strangers(folder)
    varied.pop("refusal", None)
    for section in SECTIONS:
        path = folder / f"{section}.toml"
        if not path.exists():
            continue
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["qa"]:
            entry["section"] = section
            entry["answer"] = entry["answer"].strip()
            entry["ask"] = entry.get("ask", []) + more.pop(entry["id"], [])
            entry["varied"] = varied.pop(entry["id"], [])
            entries.append(entry)
    assert not more and not varied, f"wordings for unknown answers: {sorted(more | varied)}"
    return entries


def load_wordings(folder, names=("wordings.txt", "sentences.txt")):
    """Further hand-written questions: a map from answer id to its list, over the named files."""
    wordings = {}
    for name in names:
        for line in (folder / name).read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                answer, *questions = [part.strip() for part in line.split("|")]
                wordings.setdefault(answer, []).extend(questions)
    return wordings


def load_strangers(folder=HERE / "corpus"):
    """What strangers ask, with alternatives in brackets: a map from answer id (or "refusal") to its list."""
    return load_wordings(folder, ("strangers.txt",))


def load_unknown(folder=HERE / "corpus"):
    """The table of unknown.toml: `refusal`, `names`, `deeds`, `pairs`, `questions`, `near`; and `varied` ones."""
    unknown = tomllib.loads((folder / "unknown.toml").read_text(encoding="utf-8"))
    return unknown | {"varied": load_strangers(folder)["refusal"]}


def load_turns(folder=HERE / "corpus"):
    """The table of turns.toml: `system` prompts and the wordings of follow-ups (`more`, `repeat`)."""
    return tomllib.loads((folder / "turns.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class FollowUp:
    """Questions that refer to earlier answers: ids of `sources` in the order said (any order for a pair), and the
    id of the `answer` to each of the `patterns`."""

    sources: tuple
    answer: str
    patterns: tuple


def load_followups(folder=HERE / "corpus"):
    """All follow-ups; a line that names several alternatives gives one with all of them, as a tuple of tuples."""
    shared, found = {}, []
    for line in (folder / "followups.txt").read_text(encoding="utf-8").splitlines():
        head, *rest = [part.strip() for part in line.split("|")]
        if head.startswith("@"):
            shared[head] = rest
        elif head and not head.startswith("#"):
            sources = tuple(tuple(ids.strip().split(", ")) for ids in head.split("+"))
            patterns = tuple(text for part in rest[1:] for text in shared.get(part, [part]))
            assert not any(text.startswith("@") for text in patterns), line
            found.append(FollowUp(sources, rest[0], patterns))
    return found


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


COMMON_WORDS = set("a an the is are do does i you to of in for it this that me my please can what how".split())


def content_words(text):
    """The words of a normalised text that say what it is about; all of them if none does."""
    words = text.split()
    return {word for word in words if word not in COMMON_WORDS} or set(words)


class Nearness:
    """Finds questions that share at least six of ten content words with one of the given ones, or equal one."""

    def __init__(self, questions):
        self.exact = set(questions)
        self.sizes, self.places = [], {}
        for place, text in enumerate(sorted(self.exact)):
            words = content_words(text)
            self.sizes.append(len(words))
            for word in words:
                self.places.setdefault(word, []).append(place)

    def __call__(self, text):
        text = phrasing.normalised(text)
        if text in self.exact:
            return True
        if len(text.split()) <= 3:
            return False
        words, shared = content_words(text), {}
        for word in words:
            for place in self.places.get(word, ()):
                shared[place] = shared.get(place, 0) + 1
        return any(count >= 0.6 * (len(words) + self.sizes[place] - count) for place, count in shared.items())
