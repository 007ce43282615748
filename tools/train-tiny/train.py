#!/usr/bin/env python3
"""Trains loquent-tiny from the corpus and writes it as GGUF; see README.md for the exact commands.

    python tools/train-tiny/train.py --out models/loquent-tiny.gguf
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from tqdm import tqdm

import corpus
import dataset
import export
import model
import phrasing
import scoring
from tokenizer import restored_tokenizer, train_tokenizer


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="GGUF file to write")
    parser.add_argument("--steps", type=int, default=3900, help="optimiser steps of some 3,500 tokens")
    parser.add_argument("--rate", type=float, default=2.5e-3, help="peak learning rate")
    parser.add_argument("--cooldown", type=float, default=0.4, help="last share of the steps, in which the rate falls to nothing")
    parser.add_argument("--warmup", type=int, default=60, help="first steps, in which the rate rises to its peak")
    parser.add_argument("--seed", type=int, default=7, help="seed of weights and data")
    parser.add_argument("--quant", choices=["q8_0", "f16", "f32"], default="q8_0", help="type of the matrices in the file")
    parser.add_argument("--save-every", type=int, default=0, help="also write the file every so many steps")
    parser.add_argument("--init", type=Path, help="start from this GGUF, its tokenizer included, instead of from random weights")
    return parser.parse_args()


def tokenizer_texts(entries, unknown, turns):
    """What the tokenizer learns from: every answer and question text of the corpus, in order."""
    texts = []
    for entry in entries:
        texts.append(entry["answer"])
        for family in corpus.FAMILIES:
            for item in entry.get(family, []):
                texts.append(" or ".join(item) if isinstance(item, list) else item)
    for values in [*unknown.values(), *turns.values()]:
        texts.extend([values] if isinstance(values, str) else values)
    texts.extend(t.format("this", "that") for family in phrasing.TEMPLATES.values() for t in family)
    # The words of the chat template become single tokens.
    texts.extend(["user\n", "assistant\n", "system\n"] * 50)
    # Prose is repeated, so that merges favour the answers, whose tokens are streamed.
    return texts + [entry["answer"] for entry in entries] + [t[0].upper() + t[1:] for t in texts if t]


def learning_rate(step, steps, peak, cooldown, warmup):
    """Linear warm-up, a plateau, and a linear decay to nothing over the last `cooldown` of the steps."""
    return peak * min((step + 1) / warmup, 1.0, (steps - step) / (cooldown * steps))


def train(args, params, sampler, shape, save):
    optimiser = model.Optimiser(params)
    bar = tqdm(range(args.steps), mininterval=30, file=sys.stderr, desc="training", unit="step")
    averages = [0.0, 0.0, 0.0]
    for step in bar:
        sampler.noise = 0.8 if args.init else min(0.8, 0.2 + step / 1250)
        for part, (share, batch) in enumerate(dataset.make_batch(sampler, step)):
            loss = model.weighted_loss(params, batch, shape)
            (share * loss).backward()
            averages[part] += (loss.item() - averages[part]) * max(0.01, 1 / (step + 1))
        optimiser.step(learning_rate(step, args.steps, args.rate, args.cooldown, args.warmup))
        bar.set_postfix(opening=f"{averages[0]:.4f}", abridged=f"{averages[1]:.4f}", whole=f"{averages[2]:.4f}", refresh=False)
        if args.save_every and step % args.save_every == args.save_every - 1:
            save(params)
    return params


def main():
    args = parse_args()
    # One thread keeps the sums in one order, so that the same machine gives the same file.
    torch.set_num_threads(1)
    start = time.monotonic()
    entries, unknown, turns = corpus.load_entries(), corpus.load_unknown(), corpus.load_turns()
    if args.init:
        params, vocab, merges, shape = export.read_gguf(args.init, model.Shape)
        tokenizer = restored_tokenizer(vocab, merges)
    else:
        tokenizer = train_tokenizer(tokenizer_texts(entries, unknown, turns))
        shape = model.Shape(vocab=tokenizer.get_vocab_size())
        params = model.init_params(shape, args.seed)
    heldout = corpus.load_heldout()
    dev = corpus.load_heldout(corpus.HERE / "dev")
    banned = corpus.held_out_questions(heldout + dev)
    following = corpus.next_answers(entries, unknown["refusal"])
    near = corpus.Nearness(banned)
    sampler = dataset.Sampler(tokenizer, entries, unknown, turns, following, banned, args.seed, near, corpus.load_followups())
    args.out.parent.mkdir(parents=True, exist_ok=True)

    def save(params):
        partial = args.out.with_suffix(".partial")
        export.write_gguf(partial, params, tokenizer, shape, args.quant)
        partial.replace(args.out)
        # The held-out cases are left to evaluate.py, so that no decision in training knows them.
        scoring.print_scores(scoring.score_teacher_forced(params, tokenizer, shape, dev))

    print(f"{len(entries)} answers, {len(heldout)} held-out cases", file=sys.stderr)
    params = train(args, params, sampler, shape, save)
    save(params)
    size = args.out.stat().st_size
    print(f"wrote {args.out.name}: {size / 1e6:.2f} MB, {model.count_params(params) / 1e6:.2f} M parameters, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
