"""Prints how long the tokens of the corpus's answers are in UTF-8: tokens of each length from one byte on.

The simulator draws the lengths of its tokens from these counts where a plan says `text = "model"`. With
--words a token is a whole word or number with what stands before it, as in a vocabulary without end.
"""

import argparse
import collections
import re
from pathlib import Path

import gguf

from corpus import load_entries
from tokenizer import restored_tokenizer

MODEL = Path(__file__).resolve().parents[2] / "models/loquent-tiny.gguf"


def tokenizer_of(path):
    fields = gguf.GGUFReader(path).fields
    entries = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    return restored_tokenizer({entry: number for number, entry in enumerate(entries)}, merges)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", action="store_true")
    words = parser.parse_args().words
    tokenizer = tokenizer_of(MODEL)
    counts = collections.Counter()
    for entry in load_entries():
        answer = entry["answer"]
        if words:
            counts.update(len(word.encode()) for word in re.findall(r"\s*\S+", answer))
        else:
            tokens = tokenizer.encode(answer)
            counts.update(len(answer[start:end].encode()) for start, end in tokens.offsets)
    print([counts[length] for length in range(1, max(counts) + 1)])


if __name__ == "__main__":
    main()
