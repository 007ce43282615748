#!/usr/bin/env python3
"""Averages the weights of two models, the second trained on from the first: the mean answers more than either.

    python tools/train-tiny/average.py first.gguf second.gguf models/loquent-tiny.gguf [PART]

PART of the second model, 0.3 if it is left out, is chosen on the cases in dev/.
"""

import sys
from pathlib import Path

import torch

import export
import model
from tokenizer import restored_tokenizer


def main():
    first, second, out = (Path(name) for name in sys.argv[1:4])
    part = float(sys.argv[4]) if len(sys.argv) > 4 else 0.3
    params, vocab, merges, shape = export.read_gguf(first, model.Shape)
    other, other_vocab, _, other_shape = export.read_gguf(second, model.Shape)
    assert (vocab, shape) == (other_vocab, other_shape), "the models differ in vocabulary or shape"
    for mine, theirs in zip(model.leaves(params), model.leaves(other)):
        torch.lerp(mine, theirs, part, out=mine)
    export.write_gguf(out, params, restored_tokenizer(vocab, merges), shape)


if __name__ == "__main__":
    main()
