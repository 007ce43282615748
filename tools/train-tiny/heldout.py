#!/usr/bin/env python3
"""Fills the expected texts of the held-out cases from the corpus, after an answer has been edited.

Each case of heldout/*.jsonl and dev/*.jsonl names its answers by id: `answers` has one id per assistant turn, the last for `expect`.
"refusal" stands for the answer to unknown topics. The questions themselves are written by hand and never touched.

    python tools/train-tiny/heldout.py            rewrite the files
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import corpus


def answers_by_id():
    """Maps every answer id, and "refusal", to its text."""
    texts = {entry["id"]: entry["answer"] for entry in corpus.load_entries()}
    return texts | {"refusal": corpus.load_unknown()["refusal"]}


def filled(case, texts):
    """The case with its assistant turns and `expect` taken from `texts`."""
    ids = iter(case["answers"])
    messages = [m if m["role"] != "assistant" else m | {"content": texts[next(ids)]} for m in case["messages"]]
    return case | {"messages": messages, "expect": texts[next(ids)]}


def main():
    texts = answers_by_id()
    for path in sorted([*corpus.HERE.glob("heldout/*.jsonl"), *corpus.HERE.glob("dev/*.jsonl")]):
        cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        lines = [json.dumps(filled(case, texts), ensure_ascii=False) for case in cases]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{path.name}: {len(lines)} cases")


if __name__ == "__main__":
    main()
