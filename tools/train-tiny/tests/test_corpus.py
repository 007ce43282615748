"""Invariants of the corpus, the held-out files and the committed GGUF; needs only the standard library, pytest and gguf."""

import hashlib
import random
import re
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[1]
MODEL = TOOL.parents[1] / "models" / "loquent-tiny.gguf"
sys.path.insert(0, str(TOOL))

import corpus  # noqa: E402
import heldout  # noqa: E402
import phrasing  # noqa: E402


@pytest.fixture(scope="module")
def entries():
    return corpus.load_entries()


@pytest.fixture(scope="module")
def cases():
    return corpus.load_heldout()


def test_there_are_at_least_200_answers_with_unique_ids_and_texts(entries):
    assert len(entries) >= 200
    assert len({e["id"] for e in entries}) == len(entries)
    assert len({e["answer"] for e in entries}) == len(entries)


def test_every_answer_has_20_to_many_phrasings(entries):
    for entry in entries:
        rng = random.Random(entry["id"])
        seen = {phrasing.normalised(phrasing.question(entry, rng)) for _ in range(400)}
        assert len(seen) >= 20, entry["id"]


def test_no_two_entries_share_a_hand_written_question(entries):
    owner = {}
    for entry in entries:
        for text in entry.get("ask", []):
            key = phrasing.normalised(text)
            assert owner.setdefault(key, entry["id"]) == entry["id"], f"{text!r}: {owner[key]} and {entry['id']}"


def test_no_hand_written_question_is_also_an_unknown_one(entries):
    unknown = corpus.load_unknown()
    strange = {phrasing.normalised(t) for t in unknown["questions"] + unknown["near"]}
    for entry in entries:
        assert not strange & {phrasing.normalised(t) for t in entry.get("ask", [])}, entry["id"]


def test_six_answers_are_long(entries):
    # A token is less than 4 characters here, so 1,300 characters are more than 300 tokens.
    assert sum(len(e["answer"]) >= 1300 for e in entries) >= 6


def test_the_same_seed_gives_the_same_questions(entries):
    draws = [[phrasing.question(e, rng) for e in entries] for rng in (random.Random(3), random.Random(3))]
    assert draws[0] == draws[1]


def test_held_out_files_are_large_enough_and_up_to_date(cases):
    kinds = [case["kind"] for case in cases]
    assert (kinds.count("paraphrase"), kinds.count("unknown"), kinds.count("third_turn")) == (100, 50, 50)
    texts = heldout.answers_by_id()
    for case in cases:
        assert heldout.filled(case, texts) == case, case["messages"][-1]["content"]


def test_held_out_and_development_cases_cover_most_answers(entries, cases):
    dev = corpus.load_heldout(corpus.HERE / "dev")
    asked = {i for case in cases + dev for i in case["answers"]}
    assert len(asked & {e["id"] for e in entries}) >= 0.7 * len(entries)


def test_no_held_out_question_is_in_the_corpus(entries, cases):
    unknown = corpus.load_unknown()
    written = {phrasing.normalised(t) for e in entries for t in e.get("ask", [])}
    written |= {phrasing.normalised(t) for t in unknown["questions"] + unknown["near"]}
    for case in cases:
        if case["kind"] != "third_turn":
            text = case["messages"][-1]["content"]
            assert phrasing.normalised(text) not in written, text


def test_no_held_out_question_is_drawn_in_training(entries, cases):
    pytest.importorskip("numpy")
    import dataset

    banned = corpus.held_out_questions(cases)
    sampler = dataset.Sampler(FakeTokenizer(), entries, corpus.load_unknown(), corpus.load_turns(), {}, banned, seed=1)
    drawn = [sampler.turn()[0] for _ in range(20000)]
    assert not banned & {phrasing.normalised(text) for text in drawn}


def talks_sampler(entries, cases, seed=2):
    pytest.importorskip("numpy")
    import dataset

    banned, unknown = corpus.held_out_questions(cases), corpus.load_unknown()
    following = corpus.next_answers(entries, unknown["refusal"])
    return dataset.Sampler(
        FakeTokenizer(), entries, unknown, corpus.load_turns(), following, banned, seed, followups=corpus.load_followups()
    )


def test_follow_ups_name_known_answers_and_are_all_drawn(entries, cases):
    sampler, texts = talks_sampler(entries, cases), heldout.answers_by_id()
    for followup in sampler.talks.followups:
        assert followup.answer in texts
        for ids in followup.sources:
            assert set(sampler.talks.members(ids)) <= set(texts), followup
    scenes = [sampler.talks.scene() for _ in range(200)]
    assert all(2 <= len(scene) <= 4 and scene[-1][1] in texts.values() for scene in scenes)


def test_no_held_out_question_is_drawn_in_a_talk(entries, cases):
    sampler = talks_sampler(entries, cases)
    talks = [sampler.talks.conversation(3) for _ in range(3000)]
    assert not sampler.banned & {phrasing.normalised(question) for talk in talks for question, _ in talk}


def test_a_return_to_the_first_answer_brings_the_first_answer(entries, cases):
    sampler = talks_sampler(entries, cases)
    first, second, third = entries[0]["answer"], entries[1]["answer"], entries[2]["answer"]
    returned = [sampler.talks.back([("a", first), ("b", second), ("c", third)])[1] for _ in range(200)]
    assert {first, second} == set(returned)


def test_an_abridged_talk_scores_the_first_tokens_of_its_answers_only(entries, cases):
    import dataset

    sampler = talks_sampler(entries, cases)
    # The end of a message has two tokens in the real vocabulary.
    sampler.end = [0, 0]
    for _ in range(50):
        seq = sampler.abridged(192)
        assert len(seq.ids) == len(seq.weights) == len(seq.positions) <= 192
        assert seq.positions == sorted(set(seq.positions)) and seq.positions[-1] <= dataset.MAX_POSITION
        assert dataset.OPENING_WEIGHT in seq.weights


class FakeTokenizer:
    """Stands in for the real one where only texts matter."""

    def encode(self, text, add_special_tokens=False):
        return type("Encoding", (), {"ids": [0] * len(text.split())})


# -- the committed model ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader():
    gguf = pytest.importorskip("gguf")
    return gguf.GGUFReader(MODEL)


def field(reader, name):
    return reader.fields[name].contents()


def test_the_file_is_small_and_names_itself(reader):
    assert MODEL.stat().st_size <= 12_000_000
    assert field(reader, "general.architecture") == "llama"
    assert field(reader, "general.name") == "loquent-tiny"
    assert field(reader, "general.license") == "MIT OR Apache-2.0"
    assert field(reader, "llama.context_length") >= 2048


def test_the_card_names_the_committed_file():
    card = (MODEL.parent / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(MODEL.read_bytes()).hexdigest() in card


def test_the_tokenizer_metadata_is_what_llama_cpp_expects(reader):
    tokens, kinds = field(reader, "tokenizer.ggml.tokens"), field(reader, "tokenizer.ggml.token_type")
    assert field(reader, "tokenizer.ggml.model") == "gpt2"
    assert field(reader, "tokenizer.ggml.pre") == "qwen2"
    assert tokens[field(reader, "tokenizer.ggml.eos_token_id")] == "<|im_end|>"
    assert field(reader, "tokenizer.ggml.add_bos_token") is False
    assert "<|im_start|>" in field(reader, "tokenizer.chat_template")
    control = {text for text, kind in zip(tokens, kinds) if kind == 3}
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= control
    assert len(set(tokens)) == len(tokens) == field(reader, "llama.vocab_size")


def byte_alphabet():
    """Maps each byte to the printable character that stands for it in a byte-level vocabulary (GPT-2's convention)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


def bpe(word, ranks):
    """Byte pair encoding of one pre-token, by the merge ranks."""
    parts = list(word)
    while len(parts) > 1:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get((parts[i], parts[i + 1]), 1 << 30))
        if (parts[best], parts[best + 1]) not in ranks:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def test_every_answer_survives_a_round_trip_through_the_file_s_vocabulary(reader, entries):
    tokens = field(reader, "tokenizer.ggml.tokens")
    ids = {text: i for i, text in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(field(reader, "tokenizer.ggml.merges"))}
    alphabet = byte_alphabet()
    back = {char: byte for byte, char in alphabet.items()}
    for text in [e["answer"] for e in entries] + ["naïve 🙂 日本語\n\n  tabs\t"]:
        # A coarser split than the real one is enough here: what counts is that ids lead back to the same bytes.
        coded = []
        for word in re.findall(r"\s*\S+|\s+", text):
            coded += [ids[part] for part in bpe("".join(alphabet[b] for b in word.encode()), ranks)]
        decoded = bytes(back[char] for i in coded for char in tokens[i])
        assert decoded.decode() == text
