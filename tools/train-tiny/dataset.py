"""Draws training conversations from the corpus, with a loss weight per token, and packs them into rows.

Five kinds of sequence:
- opening: one question and the first tokens of its answer. Answers are distinct within a few tokens, so this teaches
  telling questions apart at a quarter of the cost of whole answers;
- abridged talk: several turns whose answers are cut after their first tokens, each followed by a jump of the positions
  over the rest: questions that refer to what was said before, at a third of the cost of whole answers;
- talk: several turns with whole answers, follow-ups, unknown topics, often with a system prompt;
- long: an answer of several hundred tokens after a short history;
- lecture: an answer that runs on into the next ones. Its first break is weighted low, so that greedy decoding ends
  the answer; only a client that forbids the end (`ignore_eos`) hears the lecture.
"""

import random
from dataclasses import dataclass, field

import numpy as np
import torch

import phrasing
from talks import Talks

QUESTION_WEIGHT = 0.03
OPENING_TOKENS = 5
# Shares of the loss: openings, abridged talks, whole answers.
SHARES = (0.5, 0.25, 0.25)
# Beside a whole answer its first tokens are few, but they decide which answer it is.
OPENING_WEIGHT = 5.0
RUN_ON_WEIGHT = 0.03
MAX_POSITION = 2047
# How questions begin that follow others.
CONNECTORS = "and |and |ok, |ok then, |ok so |so |then |now |next: |also |but |and now |alright, |good, |fine, |thanks, |i see, |another question: |back to something else: |let's change the topic: |different question: |right, and |cool, and |well then, |one more: |after that, |so tell me, |not that. |all right then, |ah, ".split("|")


def deck_weight(entry):
    """How often the entry lies in the deck: what people ask any chat first comes at least twice."""
    return max(entry.get("weight", 1), 2 if entry["section"] in ("smalltalk", "firsts") else 1)


@dataclass
class Sequence:
    """Token ids, the loss weight of predicting each of them, and their positions."""

    ids: list = field(default_factory=list)
    weights: list = field(default_factory=list)
    positions: list = field(default_factory=list)

    def extend(self, ids, weights, gap=0):
        start = (self.positions[-1] + 1 if self.positions else 0) + gap
        self.ids.extend(ids)
        self.weights.extend(weights)
        self.positions.extend(range(start, start + len(ids)))


class Sampler:
    """Endless supply of training sequences; the same seed gives the same supply."""

    def __init__(self, tokenizer, entries, unknown, turns, following, banned, seed, near=lambda text: False, followups=()):
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self.rng = random.Random(seed)
        self.short = [e for e in entries if e["section"] != "long"]
        self.long = [e for e in entries if e["section"] == "long"]
        self.unknown, self.turns, self.following, self.banned = unknown, turns, following, banned
        # Says whether a question is too near to a held-out or development one.
        self.near = near
        self.refusal = unknown["refusal"]
        # A question with alternatives may turn into one that was written for another answer.
        self.owners = {phrasing.normalised(text): entry["answer"] for entry in entries for text in entry.get("ask", [])}
        self.owners |= {phrasing.normalised(text): self.refusal for text in unknown["questions"] + unknown["near"]}
        self.owners |= {phrasing.normalised(text): None for kind in ("more", "repeat") for text in turns[kind]}
        by_section = {e["section"]: [o for o in self.short if o["section"] == e["section"]] for e in self.short}
        self.near_answers = {e["answer"]: by_section[e["section"]] for e in self.short}
        self.end = self.encode("<|im_end|>\n")
        # The share of known questions that get noise: clean wordings are learned sooner, so training raises it.
        self.noise = 1.0
        self.cache = {}
        self.deck = []
        # Sequences drawn that had no room in the last batch, by their kind.
        self.waiting = {}
        self.talks = Talks(self, entries, followups)

    def answer_ids(self, text):
        if text not in self.cache:
            self.cache[text] = self.encode(text)
        return self.cache[text]

    # -- questions ---------------------------------------------------------------------------------------------

    def fresh(self, make, answer):
        """Draws until the question is none of the held-out ones, and none that was written for another answer."""
        while True:
            text = make()
            key = phrasing.normalised(text)
            if key not in self.banned and self.owners.get(key, answer) == answer:
                return text

    def allowed(self, text):
        """Whether a question that refers to earlier answers may be drawn: it is no held-out one, nor near to one."""
        return phrasing.normalised(text) not in self.banned and not self.near(text)

    def deal(self):
        """The next entry of a shuffled deck: every entry comes as often as its weight says."""
        if not self.deck:
            self.deck = [entry for entry in self.short + self.long for _ in range(deck_weight(entry))]
            self.rng.shuffle(self.deck)
        return self.deck.pop()

    def known(self, entry=None):
        entry = entry or self.deal()
        return self.fresh(lambda: phrasing.question(entry, self.rng, self.noise, self.near), entry["answer"]), entry["answer"]

    def invented_word(self):
        syllables = "ba be bo bra cla cre da di dro el fa fi flo ga gli gor hi ja ka kle lo lu mi mon na nu ob pa pli qua ra ri sha ska ta tor u va ven wo xi ya zan".split()
        return "".join(self.rng.choice(syllables) for _ in range(self.rng.randrange(2, 5)))

    def unknown_subject(self):
        if self.rng.random() < 0.22:
            word = self.invented_word()
            return word if self.rng.random() < 0.6 else f"{self.rng.choice(['a', 'the'])} {word}"
        if self.rng.random() < 0.25:
            frame = self.rng.choice(self.unknown["frames"])
            return frame.format(self.rng.choice(self.unknown["names"]))
        return self.rng.choice(self.unknown["names"])

    def unknown_question(self):
        """A question that no answer fits: written ones, sentences around a strange name, near misses, templates."""
        rng, unknown = self.rng, self.unknown
        if rng.random() < 0.3:
            text = phrasing.varied_question(unknown["varied"], rng)
            return phrasing.add_noise(text if not self.near(text) else self.unknown_subject(), rng)
        draw = rng.random()
        if draw < 0.18:
            text = phrasing.dress(rng.choice(unknown["questions"]), rng)
        elif draw < 0.42:
            text = phrasing.dress(rng.choice(unknown["near"]), rng)
        elif draw < 0.58:
            text = rng.choice(unknown["wild"]).format(self.unknown_subject(), self.unknown_subject())
        elif draw < 0.66:
            text = rng.choice(unknown["near_frames"]).format(word=rng.choice(unknown["words"]), name=self.unknown_subject())
        elif draw < 0.72:
            text = rng.choice(phrasing.TEMPLATES["do"]).format(rng.choice(unknown["deeds"]))
        elif draw < 0.76:
            text = rng.choice(phrasing.TEMPLATES["vs"]).format(self.unknown_subject(), self.unknown_subject())
        elif draw < 0.78:
            text = rng.choice(phrasing.TEMPLATES["yes"]).format(self.unknown_subject())
        elif draw < 0.81:
            text = phrasing.dress(self.unknown_subject(), rng)
        else:
            family = rng.choice(["what", "what", "how", "why"])
            text = rng.choice(phrasing.TEMPLATES[family]).format(self.unknown_subject())
        return phrasing.add_noise(text, rng)

    def related(self, previous):
        """An entry of the same section as the answer `previous`, since people stay with a subject; or any."""
        near = self.near_answers.get(previous)
        return self.rng.choice(near) if near and self.rng.random() < 0.35 else None

    def turn(self, previous=None, follow=0.15, unknown=0.3):
        """A question and the whole answer to it; `previous` is the last answer of the conversation."""
        draw = self.rng.random()
        if previous and draw < follow:
            kind = self.rng.choice(["more", "more", "repeat"])
            answer = self.following[previous] if kind == "more" else previous
            text = phrasing.add_noise(self.rng.choice(self.turns[kind]), self.rng)
            if len(self.answer_ids(answer)) < 250:
                return text, answer
        if draw > 1 - unknown:
            return self.fresh(self.unknown_question, self.refusal), self.refusal
        text, answer = self.known(self.related(previous))
        if previous and self.rng.random() < 0.2:
            text = self.rng.choice(CONNECTORS) + text[0].lower() + text[1:]
        return text, answer

    # -- sequences ---------------------------------------------------------------------------------------------

    def add_message(self, seq, role, text, gap=0):
        head = self.encode(f"<|im_start|>{role}\n")
        body = self.encode(text)
        seq.extend(head, [0.0] * len(head), gap)
        seq.extend(body + self.end, [QUESTION_WEIGHT] * len(body) + [0.0] * len(self.end))

    def add_answer(self, seq, text, limit=None):
        head = self.encode("<|im_start|>assistant\n")
        body = self.answer_ids(text)
        seq.extend(head, [0.0] * len(head))
        weights = [OPENING_WEIGHT if i < OPENING_TOKENS else 1.0 for i in range(len(body))]
        if limit and limit < len(body):
            seq.extend(body[:limit], weights[:limit])
        else:
            seq.extend(body + self.end, weights + [1.0, 0.0])

    def begin(self):
        seq = Sequence()
        if self.rng.random() < 0.25:
            self.add_message(seq, "system", self.rng.choice(self.turns["system"]))
        return seq

    def opening(self):
        """A single question and the first tokens of its answer; the question itself is not scored."""
        seq = self.begin()
        question, answer = self.turn()
        self.add_message(seq, "user", question)
        seq.weights = [0.0] * len(seq.ids)
        self.add_answer(seq, answer, OPENING_TOKENS)
        return seq

    def gap(self, seq):
        """A jump in the positions between turns, so that far history is seen without paying for its tokens."""
        if not seq.ids or self.rng.random() < 0.6:
            return 0
        return self.rng.randrange(0, max(1, min(500, MAX_POSITION - 700 - seq.positions[-1])))

    def abridged(self, limit):
        """A talk whose answers are cut after some tokens, the rest a jump of the positions; openings are scored."""
        seq = self.begin()
        for question, answer in self.talks.conversation(self.rng.choice([2, 2, 3, 3, 4])):
            start = len(seq.ids)
            self.add_message(seq, "user", question, self.gap(seq) if self.rng.random() < 0.3 else 0)
            seq.weights[start:] = [0.0] * (len(seq.ids) - start)
            if len(seq.ids) + 40 > limit:
                return self.shortened(seq, start)
            body, kept = self.answer_ids(answer), self.rng.randrange(OPENING_TOKENS, 24)
            self.add_answer(seq, answer, kept)
            if len(body) > kept:
                seq.weights[-kept:] = [OPENING_WEIGHT] * OPENING_TOKENS + [0.0] * (kept - OPENING_TOKENS)
                room = MAX_POSITION - 400 - seq.positions[-1]
                seq.extend(self.end, [0.0] * len(self.end), gap=max(0, min(len(body) - kept, room)))
        return seq

    def shortened(self, seq, length):
        """The sequence without its tokens from `length` on."""
        for values in (seq.ids, seq.weights, seq.positions):
            del values[length:]
        return seq

    def talk(self, limit):
        """Turns with whole answers up to about `limit` tokens; the last answer may be cut to its opening."""
        seq = self.begin()
        turns = self.talks.conversation(self.rng.choice([2, 3, 3, 4, 5, 6]))
        for index, (question, answer) in enumerate(turns):
            length = len(self.answer_ids(answer)) + len(question) // 3 + 20
            room = limit - len(seq.ids)
            last = index == len(turns) - 1 or length + 60 > room
            self.add_message(seq, "user", question, self.gap(seq))
            cut = OPENING_TOKENS if (last and self.rng.random() < 0.5) or length > room else None
            self.add_answer(seq, answer, cut)
            if last:
                break
        return seq

    def lecture(self, limit):
        """An answer followed by the next ones of its section, as one message without an end."""
        seq = self.begin()
        question, answer = self.known(self.rng.choice(self.short))
        self.add_message(seq, "user", question)
        self.add_answer(seq, answer, limit=10**9)
        seq.ids, seq.weights, seq.positions = seq.ids[:-2], seq.weights[:-2], seq.positions[:-2]
        gap = self.encode("\n\n")
        while len(seq.ids) < limit:
            answer = self.following[answer]
            body = self.answer_ids(answer)
            seq.extend(gap + body, [RUN_ON_WEIGHT] * len(gap) + [1.0] * len(body))
        return seq

    def long_answer(self):
        seq = self.begin()
        if self.rng.random() < 0.3:
            question, answer = self.turn()
            if len(self.answer_ids(answer)) < 120:
                self.add_message(seq, "user", question)
                self.add_answer(seq, answer)
        question, answer = self.known(self.rng.choice(self.long))
        self.add_message(seq, "user", question, self.gap(seq))
        self.add_answer(seq, answer)
        if self.rng.random() < 0.4:
            question, answer = self.turn(unknown=0.2)
            self.add_message(seq, "user", question)
            self.add_answer(seq, answer, OPENING_TOKENS)
        return seq


@dataclass
class Rows:
    """Sequences packed into rows of `length` tokens; `picks` index the scored places of the flattened rows."""

    count: int
    length: int

    def __post_init__(self):
        self.grid = {key: np.zeros((self.count, self.length), np.int64) for key in ("tokens", "positions", "segments")}
        self.used, self.segments = [0] * self.count, [0] * self.count
        self.picks, self.targets, self.weights = [], [], []

    def add(self, seq):
        """Puts the sequence into the first row with room for all of it; false if there is none."""
        need = len(seq.ids) - 1
        row = next((r for r in range(self.count) if self.length - self.used[r] >= need), None)
        if row is None:
            return False
        at = self.used[row]
        self.segments[row] += 1
        self.grid["tokens"][row, at : at + need] = seq.ids[:need]
        self.grid["positions"][row, at : at + need] = seq.positions[:need]
        self.grid["segments"][row, at : at + need] = self.segments[row]
        for place in range(need):
            if seq.weights[place + 1] > 0:
                self.picks.append(row * self.length + at + place)
                self.targets.append(seq.ids[place + 1])
                self.weights.append(seq.weights[place + 1])
        self.used[row] += need
        return True

    def arrays(self):
        """The batch as named tensors."""
        scored = {"picks": np.array(self.picks), "targets": np.array(self.targets), "weights": np.array(self.weights, np.float32)}
        return {key: torch.from_numpy(array) for key, array in (self.grid | scored).items()}


def packed_rows(sampler, kind, make, count, length):
    """Rows full of sequences from `make()`; one that does not fit any more waits for the next batch."""
    rows, refused, waiting = Rows(count, length), [], sampler.waiting.get(kind, [])
    while len(refused) < 6:
        seq = waiting.pop() if waiting else make()
        if 1 < len(seq.ids) <= length and not rows.add(seq):
            refused.append(seq)
    sampler.waiting[kind] = refused
    return rows


def filled_rows(count, length, make, least):
    """Rows of sequences from `make(room)`, the last one of each cut off where the row ends."""
    rows = Rows(count, length)
    while (room := length - min(rows.used)) > least:
        seq = make(room)
        for values in (seq.ids, seq.weights, seq.positions):
            del values[room + 1 :]
        rows.add(seq)
    return rows


def whole_rows(sampler, step):
    """Two rows of talks, or in every fourth step one of long answers and lectures."""

    def long(room):
        return sampler.long_answer() if sampler.rng.random() < 0.7 else sampler.lecture(min(room, 700))

    if step % 4 == 3:
        return filled_rows(1, 1024, long, 300)
    return filled_rows(2, 512, sampler.talk, 150)


def make_batch(sampler, step):
    """The parts of a step's batch, [(share of the loss, tensors)]: openings, abridged talks, and whole answers."""
    openings = packed_rows(sampler, "opening", sampler.opening, 20, 96)
    abridged = packed_rows(sampler, "abridged", lambda: sampler.abridged(192), 10, 192)
    return list(zip(SHARES, (openings.arrays(), abridged.arrays(), whole_rows(sampler, step).arrays())))
