#!/usr/bin/env python3
"""Asks the held-out questions with greedy decoding and counts exact answers, per kind.

    python tools/train-tiny/evaluate.py --gguf models/loquent-tiny.gguf     through llama-cpp-python
    python tools/train-tiny/evaluate.py --url http://127.0.0.1:8080/v1      through any OpenAI-compatible server

With --record FILE the development cases are asked too, and the figures are written with what they are of: checksums of
the model and of the questions, and the processor. The model's card quotes models/evaluation.json.
"""

import argparse
import datetime
import hashlib
import json
import platform
import sys
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import corpus

MAX_TOKENS = 1200
MODEL = corpus.HERE.parents[1] / "models" / "loquent-tiny.gguf"


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


def shares(counts):
    return {kind: {"right": right, "of": total, "share": round(right / total, 3)} for kind, (right, total) in counts.items()}


def processor():
    """The processor's name, and which instruction sets of those that kernels are chosen by it has."""
    lines = dict(line.partition(":")[::2] for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    facts = {name.strip(): value.strip() for name, value in lines.items()}
    sets = {"avx2", "avx512_vnni", "amx_int8"} & set(facts.get("flags", "").split())
    return {"name": facts.get("model name", platform.processor()), "family": facts.get("cpu family"),
            "model": facts.get("model"), "instructions": sorted(sets)}


def checksum(*paths):
    """The SHA-256 of files, one behind the other."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def record(answer, command):
    """The figures of the model's card, and what they are of."""
    figures = {"command": command, "model": checksum(MODEL), "date": datetime.date.today().isoformat()}
    figures["processor"] = processor()
    for kind, folder in (("held out", corpus.HERE / "heldout"), ("development", corpus.HERE / "dev")):
        questions = checksum(*sorted(folder.glob("*.jsonl")))
        cases = [case | {"kind": asked(case["kind"])} for case in corpus.load_heldout(folder)]
        figures[kind] = {"questions": questions, **shares(evaluate(answer, cases, False))}
    return figures


def asked(kind):
    """The kind of a held-out question that a development case is like."""
    return next((name for name in ("unknown", "third_turn") if kind.endswith(name)), "paraphrase")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gguf", type=Path, help="model file, run through llama-cpp-python")
    source.add_argument("--url", help="base URL that ends in /v1")
    parser.add_argument("--key", default="", help="API key for --url")
    parser.add_argument("--cases", type=Path, default=corpus.HERE / "heldout", help="folder of JSONL files")
    parser.add_argument("--show", action="store_true", help="print every wrong answer")
    parser.add_argument("--minimum", type=float, default=0.0, help="exit 1 if a kind's share is below this")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the figures of the model's card to FILE")
    args = parser.parse_args()
    answer = gguf_answerer(args.gguf) if args.gguf else url_answerer(args.url, args.key)
    if args.record:
        figures = record(answer, f"python tools/train-tiny/evaluate.py --url URL --record models/{args.record.name}")
        args.record.write_text(json.dumps(figures, indent=1) + "\n")
        return 0
    counts = evaluate(answer, corpus.load_heldout(args.cases), args.show)
    for kind, (right, total) in sorted(counts.items()):
        print(f"{kind:12s} {right:4d} of {total:4d}  {right / total:.3f}")
    return 0 if all(right / total >= args.minimum for right, total in counts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
