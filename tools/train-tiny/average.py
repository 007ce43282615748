#!/usr/bin/env python3
"""Averages the weights of two models, the second trained on from the first: the mean answers more than either.

    python tools/train-tiny/average.py first.gguf second.gguf models/loquent-tiny.gguf
"""

import sys
from pathlib import Path

import torch

import export
import model
from tokenizer import restored_tokenizer

# Part of the second model; chosen on the cases in dev/ among .25, .35, .5 and .65.
SHARE = 0.3


def main():
    first, second, out = (Path(name) for name in sys.argv[1:])
    params, vocab, merges, shape = export.read_gguf(first, model.Shape)
    other, other_vocab, _, other_shape = export.read_gguf(second, model.Shape)
    assert (vocab, shape) == (other_vocab, other_shape), "the models differ in vocabulary or shape"
    for mine, theirs in zip(model.leaves(params), model.leaves(other)):
        torch.lerp(mine, theirs, SHARE, out=mine)
    export.write_gguf(out, params, restored_tokenizer(vocab, merges), shape)


if __name__ == "__main__":
    main()
