"""Prompts of real length for a model: sentences of bench/corpora in a seeded order, cut to so many of its tokens."""

import json
import pathlib
import random
import re
import urllib.request

CORPORA = pathlib.Path(__file__).resolve().parent.parent / "corpora"
SEED = 29


def sentences():
    """The sentences of the corpora, without line ends."""
    lines = [json.loads(line)["prompt"] for line in (CORPORA / "chat.jsonl").read_text().splitlines() if line.strip()]
    text = [sentence for line in lines for sentence in re.split(r"(?<=[.?!:;]) +", " ".join(line.split()))]
    return [sentence for sentence in text if len(sentence) > 20]


def made(count, least, most, tokens_of, seed=SEED):
    """`count` texts of `least` to `most` tokens each, and how many tokens each has.

    `tokens_of(text)` counts the model's tokens. The generator puts the number of the run and of the request before
    each (`--unique-prompts`), so that no prompt begins as another does.
    """
    chance = random.Random(seed)
    pool = sentences()
    texts, lengths = [], []
    for _ in range(count):
        wanted = chance.randint(least, most)
        chance.shuffle(pool)
        words = " ".join(pool * (1 + most // 500)).split()
        texts.append(cut(words, wanted, tokens_of))
        lengths.append(tokens_of(texts[-1]))
    return texts, lengths


def cut(words, wanted, tokens_of):
    """The longest beginning of `words` that has at most `wanted` tokens; one word where even that has more."""
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        if tokens_of(" ".join(words[:middle])) <= wanted:
            low = middle
        else:
            high = middle - 1
    return " ".join(words[:low])


def counter(url):
    """Counts the tokens of a text by the server's /tokenize."""
    def tokens_of(text):
        body = json.dumps({"prompt": text}).encode()
        request = urllib.request.Request(url + "/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["count"]
    return tokens_of
