#!/usr/bin/env python3
"""Trains loquent-tiny from the corpus and writes it as GGUF; see README.md for the exact commands.

    python tools/train-tiny/train.py --out models/loquent-tiny.gguf
"""

import argparse
import os
import sys
import time
from pathlib import Path

# One thread keeps the sums in one order, so that the same machine gives the same file.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from tqdm import tqdm  # noqa: E402

import corpus  # noqa: E402
import dataset  # noqa: E402
import export  # noqa: E402
import model  # noqa: E402
import phrasing  # noqa: E402
import scoring  # noqa: E402
from tokenizer import restored_tokenizer, train_tokenizer  # noqa: E402


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="GGUF file to write")
    parser.add_argument("--steps", type=int, default=8000, help="optimiser steps of 1,024 tokens")
    parser.add_argument("--rate", type=float, default=2.5e-3, help="peak learning rate")
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
    # Prose is repeated, so that merges favour the answers, whose tokens are streamed.
    return texts + [entry["answer"] for entry in entries] + [t[0].upper() + t[1:] for t in texts if t]


def learning_rate(step, steps, peak, warmup=60):
    """Linear warm-up, then linear decay to a twentieth of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * max(0.02, 1 - (step - warmup) / (steps - warmup))


def train(args, params, sampler, shape, save):
    m, v = model.zeros_like(params), model.zeros_like(params)
    step_fn = model.make_step(shape)
    bar = tqdm(range(args.steps), mininterval=30, file=sys.stderr, desc="training", unit="step")
    average = None
    for step in bar:
        sampler.noise = 1.0 if args.init else min(1.0, 0.2 + step / 1250)
        batch = {k: jnp.asarray(a) for k, a in dataset.make_batch(sampler, step).items()}
        rate = jnp.float32(learning_rate(step, args.steps, args.rate))
        params, m, v, loss = step_fn(params, m, v, jnp.float32(step + 1), rate, batch)
        if step % 20 == 0:
            average = float(loss) if average is None else 0.8 * average + 0.2 * float(loss)
            bar.set_postfix(loss=f"{average:.4f}", refresh=False)
        if args.save_every and step % args.save_every == args.save_every - 1:
            save(params)
    return params


def main():
    args = parse_args()
    start = time.monotonic()
    entries, unknown, turns = corpus.load_entries(), corpus.load_unknown(), corpus.load_turns()
    if args.init:
        params, vocab, merges, shape = export.read_gguf(args.init, model.Shape)
        params, tokenizer = jax.tree_util.tree_map(jnp.asarray, params), restored_tokenizer(vocab, merges)
    else:
        tokenizer = train_tokenizer(tokenizer_texts(entries, unknown, turns))
        shape = model.Shape(vocab=tokenizer.get_vocab_size())
        params = model.init_params(shape, args.seed)
    heldout = corpus.load_heldout()
    dev = corpus.load_heldout(corpus.HERE / "dev")
    banned = corpus.held_out_questions(heldout + dev)
    following = corpus.next_answers(entries, unknown["refusal"])
    sampler = dataset.Sampler(tokenizer, entries, unknown, turns, following, banned, args.seed)
    args.out.parent.mkdir(parents=True, exist_ok=True)

    def save(params):
        partial = args.out.with_suffix(".partial")
        export.write_gguf(partial, params, tokenizer, shape, args.quant)
        partial.replace(args.out)
        scoring.print_scores(scoring.score_teacher_forced(params, tokenizer, shape, heldout + dev))

    print(f"{len(entries)} answers, {len(heldout)} held-out cases", file=sys.stderr)
    params = train(args, params, sampler, shape, save)
    save(params)
    size = args.out.stat().st_size
    print(f"wrote {args.out.name}: {size / 1e6:.2f} MB, {model.count_params(params) / 1e6:.2f} M parameters, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
