"""Scores answers: exact match per kind of held-out case.

`score_teacher_forced` needs one forward pass per case: greedy decoding gives exactly the expected text if and only if
the most likely token is the expected one at every place of it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import model

BUCKETS = (128, 256, 512, 1024, 2048)


def render(messages):
    """The ChatML prompt of a conversation, up to where the answer begins; the same as the GGUF's chat template."""
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return turns + "<|im_start|>assistant\n"


@functools.lru_cache(maxsize=None)
def predictor(shape):
    return jax.jit(lambda params, tokens, positions, segments: jnp.argmax(model.forward(params, tokens, positions, segments, shape), axis=-1))


def score_teacher_forced(params, tokenizer, shape, cases):
    """A list of (kind, correct, case, place of the first wrong token or None)."""
    results = []
    for case in cases:
        prompt = tokenizer.encode(render(case["messages"]), add_special_tokens=False).ids
        answer = tokenizer.encode(case["expect"] + "<|im_end|>", add_special_tokens=False).ids
        ids = prompt + answer
        size = next(b for b in BUCKETS if b >= len(ids))
        tokens = np.zeros((1, size), np.int32)
        tokens[0, : len(ids)] = ids
        guess = predictor(shape)(params, tokens, np.arange(size)[None], np.ones((1, size), np.int32))
        guess = np.asarray(guess)[0, len(prompt) - 1 : len(ids) - 1]
        wrong = np.nonzero(guess != np.array(answer))[0]
        results.append((case["kind"], len(wrong) == 0, case, int(wrong[0]) if len(wrong) else None))
    return results


def print_scores(results):
    """One line per kind: correct, total, share."""
    for kind in sorted({r[0] for r in results}):
        marks = [r[1] for r in results if r[0] == kind]
        print(f"{kind:12s} {sum(marks):4d} of {len(marks):4d}  {sum(marks) / len(marks):.3f}", flush=True)
