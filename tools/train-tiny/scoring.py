"""Scores answers: exact match per kind of held-out case.

`score_teacher_forced` needs one forward pass per case: greedy decoding gives exactly the expected text if and only if
the most likely token is the expected one at every place of it.
"""

import torch

import model


def render(messages):
    """The ChatML prompt of a conversation, up to where the answer begins; the same as the GGUF's chat template."""
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return turns + "<|im_start|>assistant\n"


@torch.no_grad()
def score_teacher_forced(params, tokenizer, shape, cases):
    """A list of (kind, correct, case, place of the first wrong token or None)."""
    results = []
    for case in cases:
        prompt = tokenizer.encode(render(case["messages"]), add_special_tokens=False).ids
        answer = tokenizer.encode(case["expect"] + "<|im_end|>", add_special_tokens=False).ids
        ids = torch.tensor([prompt + answer])
        places = torch.arange(ids.shape[1])[None]
        logits = model.forward(params, ids, places, torch.ones_like(ids), shape, kind=torch.float32)
        guess = logits[0].argmax(-1)[len(prompt) - 1 : -1]
        wrong = (guess != torch.tensor(answer)).nonzero()
        results.append((case["kind"], len(wrong) == 0, case, int(wrong[0]) if len(wrong) else None))
    return results


def print_scores(results):
    """One line per kind: correct, total, share."""
    for kind in sorted({r[0] for r in results}):
        marks = [r[1] for r in results if r[0] == kind]
        print(f"{kind:12s} {sum(marks):4d} of {len(marks):4d}  {sum(marks) / len(marks):.3f}", flush=True)
