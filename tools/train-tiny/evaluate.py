#!/usr/bin/env python3
"""Asks the held-out questions with greedy decoding and counts exact answers, per kind.

    python tools/train-tiny/evaluate.py --gguf models/loquent-tiny.gguf     through llama-cpp-python
    python tools/train-tiny/evaluate.py --url http://127.0.0.1:8080/v1      through any OpenAI-compatible server
"""

import argparse
import json
import sys
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import corpus

MAX_TOKENS = 1200


def gguf_answerer(path):
    """A function from messages to the greedy answer, by llama.cpp with the file's own chat template."""
    from llama_cpp import Llama

    llm = Llama(model_path=str(path), n_ctx=2048, n_threads=1, verbose=False)

    def answer(messages):
        reply = llm.create_chat_completion(messages=messages, temperature=0.0, max_tokens=MAX_TOKENS)
        return reply["choices"][0]["message"]["content"]

    return answer


def url_answerer(base, key):
    """A function from messages to the greedy answer of an OpenAI-compatible server."""

    def answer(messages):
        body = {"model": "loquent-tiny", "messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS}
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        request = urllib.request.Request(base.rstrip("/") + "/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)["choices"][0]["message"]["content"]

    return answer


def evaluate(answer, cases, show):
    """Counts {kind: [correct, total]}; prints the wrong ones if `show`."""
    counts = {}
    for case in cases:
        got = answer(case["messages"])
        tally = counts.setdefault(case["kind"], [0, 0])
        tally[1] += 1
        if got == case["expect"]:
            tally[0] += 1
        elif show:
            print(f"[{case['kind']}] {case['messages'][-1]['content']}\n    want: {case['expect'][:90]}\n    got:  {got[:90]}")
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gguf", type=Path, help="model file, run through llama-cpp-python")
    source.add_argument("--url", help="base URL that ends in /v1")
    parser.add_argument("--key", default="", help="API key for --url")
    parser.add_argument("--cases", type=Path, default=corpus.HERE / "heldout", help="folder of JSONL files")
    parser.add_argument("--show", action="store_true", help="print every wrong answer")
    parser.add_argument("--minimum", type=float, default=0.0, help="exit 1 if a kind's share is below this")
    args = parser.parse_args()
    answer = gguf_answerer(args.gguf) if args.gguf else url_answerer(args.url, args.key)
    counts = evaluate(answer, corpus.load_heldout(args.cases), args.show)
    for kind, (right, total) in sorted(counts.items()):
        print(f"{kind:12s} {right:4d} of {total:4d}  {right / total:.3f}")
    return 0 if all(right / total >= args.minimum for right, total in counts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
