"""Draws training conversations from the corpus, with a loss weight per token, and packs them into rows.

Four kinds of sequence:
- opening: one question and the first tokens of its answer. Answers are distinct within a few tokens, so this teaches
  telling questions apart at a quarter of the cost of whole answers;
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

QUESTION_WEIGHT = 0.03
OPENING_TOKENS = 5
OPENING_SHARE = 0.7
RUN_ON_WEIGHT = 0.03
MAX_POSITION = 2047


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

    def __init__(self, tokenizer, entries, unknown, turns, following, banned, seed):
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self.rng = random.Random(seed)
        self.short = [e for e in entries if e["section"] != "long"]
        self.long = [e for e in entries if e["section"] == "long"]
        self.unknown, self.turns, self.following, self.banned = unknown, turns, following, banned
        self.refusal = unknown["refusal"]
        self.end = self.encode("<|im_end|>\n")
        # The share of known questions that get noise: clean wordings are learned sooner, so training raises it.
        self.noise = 1.0
        self.cache = {}
        self.deck = []
        # Openings drawn that had no room in the last batch.
        self.waiting = []

    def answer_ids(self, text):
        if text not in self.cache:
            self.cache[text] = self.encode(text)
        return self.cache[text]

    # -- questions ---------------------------------------------------------------------------------------------

    def fresh(self, make):
        """Draws until the question is none of the held-out ones."""
        while True:
            text = make()
            if phrasing.normalised(text) not in self.banned:
                return text

    def deal(self):
        """The next entry of a shuffled deck: every entry comes equally often."""
        if not self.deck:
            self.deck = list(self.short) + self.long
            self.rng.shuffle(self.deck)
        return self.deck.pop()

    def known(self, entry=None):
        entry = entry or self.deal()
        return self.fresh(lambda: phrasing.question(entry, self.rng, self.noise)), entry["answer"]

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

    def turn(self, previous=None, follow=0.15, unknown=0.26):
        """A question and the whole answer to it; `previous` is the last answer of the conversation."""
        draw = self.rng.random()
        if previous and draw < follow:
            kind = self.rng.choice(["more", "more", "repeat"])
            text = self.fresh(lambda: phrasing.add_noise(self.rng.choice(self.turns[kind]), self.rng))
            answer = self.following[previous] if kind == "more" else previous
            if len(self.answer_ids(answer)) < 250:
                return text, answer
        if draw > 1 - unknown:
            return self.fresh(self.unknown_question), self.refusal
        return self.known()

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
        weights = [2.0 if i < OPENING_TOKENS else 1.0 for i in range(len(body))]
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

    def talk(self, limit):
        """Turns with whole answers up to about `limit` tokens; the last answer may be cut to its opening."""
        seq, previous = self.begin(), None
        turns = self.rng.choice([2, 3, 3, 4, 5, 6])
        for index in range(turns):
            question, answer = self.turn(previous)
            length = len(self.answer_ids(answer)) + len(question) // 3 + 20
            room = limit - len(seq.ids)
            last = index == turns - 1 or length + 60 > room
            self.add_message(seq, "user", question, self.gap(seq))
            cut = OPENING_TOKENS if (last and self.rng.random() < 0.5) or length > room else None
            self.add_answer(seq, answer, cut)
            previous = answer
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


def opening_rows(sampler, count=32, length=96):
    """Rows full of openings; one that does not fit any more waits for the next batch."""
    rows, refused = Rows(count, length), []
    while len(refused) < 6:
        seq = sampler.waiting.pop() if sampler.waiting else sampler.opening()
        if len(seq.ids) <= length and not rows.add(seq):
            refused.append(seq)
    sampler.waiting = refused
    return rows


def filled_row(length, make, least):
    """One row of sequences from `make(room)`, the last one cut off where the row ends."""
    rows = Rows(1, length)
    while length - rows.used[0] > least:
        room = length - rows.used[0]
        seq = make(room)
        for values in (seq.ids, seq.weights, seq.positions):
            del values[room + 1 :]
        rows.add(seq)
    return rows


def whole_row(sampler, step):
    """A row of whole answers: talks, and in every fourth step long answers and lectures."""

    def long(room):
        return sampler.long_answer() if sampler.rng.random() < 0.7 else sampler.lecture(min(room, 700))

    if step % 4 == 3:
        return filled_row(1024, long, 300)
    return filled_row(512, sampler.talk, 150)


def make_batch(sampler, step):
    """The parts of a step's batch, [(share of the loss, tensors)]: many openings and one row of whole answers."""
    return [(OPENING_SHARE, opening_rows(sampler).arrays()), (1 - OPENING_SHARE, whole_row(sampler, step).arrays())]
