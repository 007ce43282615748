"""Draws conversations in which later questions refer to earlier answers: "how do the two differ?", "why?", "shorter".

A scene asks for the answers that a follow-up refers to, and then the follow-up itself. Between scenes come questions
on other subjects, returns to a former subject, and further unknown topics after a refusal.
"""

import math

import phrasing

TOPICS = ("streaming", "network", "serving", "models", "loquent")
CANNOT = ("code", "math", "translate", "write-text", "draw", "weather-live", "reasoning")
ASIDES = ("thanks", "yes-ok", "praise", "joke", "fact", "how-are-you", "hello", "sorry")
# A former answer with more tokens is not given once more.
LONGEST = 250


class Talks:
    """An endless supply of conversations over the questions of a `dataset.Sampler`."""

    def __init__(self, sampler, entries, followups):
        self.sampler, self.rng, self.turns = sampler, sampler.rng, sampler.turns
        self.entries = {entry["id"]: entry for entry in entries}
        self.by_answer = {entry["answer"]: entry for entry in entries}
        self.groups = {
            "topics": [entry["id"] for entry in entries if entry["section"] in TOPICS],
            "cannot": list(CANNOT),
        }
        self.followups = followups
        self.shares = [self.share(followup) for followup in followups]

    def share(self, followup):
        """How often the follow-up is drawn: the more, the more answers and patterns it has."""
        sources = math.prod(len(self.members(ids)) for ids in followup.sources)
        return (1 + math.log2(sources)) * (1 + math.log2(len(followup.patterns)))

    def members(self, ids):
        return [member for name in ids for member in self.groups.get(name, [name])]

    def conversation(self, count):
        """At least `count` turns, (question, answer)."""
        turns = []
        while len(turns) < count:
            draw, previous = self.rng.random(), turns[-1][1] if turns else None
            if draw < 0.5 and self.followups:
                turns += self.scene()
            elif draw < 0.6 and previous == self.sampler.refusal:
                text = self.drawn(self.turns["strange"], self.sampler.unknown_subject)
                turns.append((text, previous) if text else self.sampler.turn(previous))
            elif draw < 0.7 and len(turns) > 1:
                turns.append(self.back(turns))
            else:
                turns.append(self.sampler.turn(previous))
        return turns

    def scene(self):
        """The questions that a follow-up refers to, and the follow-up."""
        followup = self.rng.choices(self.followups, self.shares)[0]
        sources = [self.rng.choice(self.members(ids)) for ids in followup.sources]
        self.rng.shuffle(sources)
        turns = [self.asked(source) for source in sources]
        if len(turns) > 1 and self.rng.random() < 0.2:
            turns.insert(self.rng.randrange(1, 3), self.asked(self.rng.choice(ASIDES)))
        text = self.drawn(followup.patterns)
        return turns + [(text, self.entries[followup.answer]["answer"])] if text else turns

    def asked(self, source):
        """A question for the answer with this id ("refusal" for an unknown topic), and the answer."""
        if source == "refusal":
            return self.sampler.fresh(self.sampler.unknown_question, self.sampler.refusal), self.sampler.refusal
        return self.sampler.known(self.entries[source])

    def back(self, turns):
        """A question that returns to a former answer: to its subject, or merely to the first or the last but one."""
        draw = self.rng.random()
        if draw < 0.5:
            text, answer = self.rng.choice(turns[:-1])
            if answer in self.by_answer:
                text, answer = self.sampler.known(self.by_answer[answer])
            make = lambda: text[0].lower() + text[1:].rstrip("?.! ")
            returning = self.drawn(self.turns["back"], make)
        else:
            kind, place = ("first", 0) if draw < 0.85 else ("before", -2)
            answer, returning = turns[place][1], self.drawn(self.turns[kind])
        if returning is None or len(self.sampler.answer_ids(answer)) > LONGEST:
            return self.sampler.turn(turns[-1][1])
        return returning, answer

    def drawn(self, patterns, make=lambda: ""):
        """One of the patterns with its alternatives chosen, a `make()` for {}, and often noise.

        Never one that equals a held-out question or is near to one: None if thirty in a row were.
        """
        for _ in range(30):
            text = phrasing.varied_question(patterns, self.rng).replace("{}", make())
            if self.sampler.allowed(text):
                if self.rng.random() < 0.5:
                    return phrasing.add_case(phrasing.add_ending(text, self.rng), self.rng)
                return phrasing.add_noise(text, self.rng)
        return None
