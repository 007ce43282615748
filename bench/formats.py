#!/usr/bin/env python3
r"""Loquent's kernels against llama.cpp's in the same program, by shape of model and format of weights.

    bench/formats.py --models DIR --loquent target/release/loquent
    bench/formats.py --models DIR --loquent PORTABLE --shape-model target/release/shape-model \
        --kernels loquent-avx2 --only Q4_0

Each process loads one model with one side's kernels and generates text in one stream, then in sixteen;
the sides take turns, and the ratio is that of successive processes, as median [least, most]. Models have
random weights of real shapes, with fewer layers where a whole one would be large, and are made where
they are missing. Prints a Markdown table. On a quiet machine of 2 cores it takes 45 minutes with
making the models.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from records.printed import runs

SMALL = ["--vocab-size", "32000"]
# A name, the shape, what it is made with, its formats.
MODELS = [
    ("qwen3-0.6b", "qwen3-0.6b", [], [
        "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "Q3_K_M", "Q2_K", "IQ3_S",
        "F16", "BF16"]),
    ("experts (a layer of qwen3-30b-a3b)", "qwen3-30b-a3b", ["--layers", "1", *SMALL], ["Q4_K_M", "Q4_0", "MXFP4"]),
    ("window (six layers of gemma3-1b)", "gemma3-1b", ["--layers", "6", *SMALL], ["Q4_K_M"]),
]
#: The least ratio, by the number of streams.
TARGETS = {1: 1.0, 16: 1.5}
# Without drafts: random weights may repeat themselves, in one format or with one side's rounding and not another's.
LOAD = ["-n", "16", "-c", ",".join(map(str, TARGETS)), "--max-tokens", "24", "--ignore-eos", "--temperature", "0",
        "--warmup-runs", "1", "--draft-tokens", "off"]


def main():
    options = arguments()
    print("| model | format | " + " | ".join(
        f"{n} stream{'s' * (n > 1)}: llama.cpp's, tokens/s | ours | "
        f"ratio, {n} stream{'s' * (n > 1)} | target" for n in TARGETS) + " |")
    print("|" + " --- |" * (2 + 4 * len(TARGETS)), flush=True)
    kept = {}
    for name, shape, how, formats in MODELS:
        for quant in formats:
            if options.only and quant not in options.only.split(","):
                continue
            model = made(options, shape, how, quant)
            rounds = [[tokens_per_s(options, model, kernels) for kernels in ("llama.cpp", options.kernels)]
                      for _ in range(options.rounds)]
            cells = [cell for i, target in enumerate(TARGETS.values())
                     for cell in summary([(a[i], b[i]) for a, b in rounds], target)]
            print(f"| {name} | {quant} | {' | '.join(cells)} |", flush=True)
            kept[f"{name}, {quant}"] = rounds
            if options.remove:
                model.unlink()
    runs(kept)
    return 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, required=True, help="folder of the models' files")
    parser.add_argument("--loquent", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--shape-model", type=pathlib.Path, metavar="FILE", help="the program's [beside loquent]")
    parser.add_argument("--kernels", default="loquent", help="ours: loquent, loquent-avx2, … [loquent]")
    parser.add_argument("--only", default="", metavar="FORMATS", help="these formats, separated by commas")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side [3]")
    parser.add_argument("--remove", action="store_true", help="remove each model after it was measured")
    return parser.parse_args()


def made(options, shape, how, quant):
    """The file of a model, which is made if it is not there."""
    path = options.models / "-".join([shape, *how[1::2], f"{quant}.gguf"])
    if not path.exists():
        options.models.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        maker = options.shape_model or options.loquent.with_name("shape-model")
        subprocess.run([maker, shape, *how, "--quant", quant, "--out", part],
                       check=True, stdout=subprocess.DEVNULL)
        part.rename(path)
    return path


def tokens_per_s(options, model, kernels):
    """Tokens per second of one process, for each number of streams."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [options.loquent, "bench", "engine", "--model", model, "--kernels", kernels, "--context", "512",
                   "--max-batch-size", str(max(TARGETS)), *LOAD, "--quiet", "--json", out.name]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"formats: {model.name} with {kernels} ended with {done.returncode}: {done.stderr[-500:]}")
        groups = json.load(out)["groups"]
    return [group["runs"][0]["metrics"]["output_throughput"] for group in groups]


def summary(pairs, target):
    """Cells of pairs of theirs and ours: both medians, the ratio of each pair, and its target."""
    theirs, ours = (statistics.median(side) for side in zip(*pairs))
    quotients = [b / a for a, b in pairs]
    ratio = f"{statistics.median(quotients):.2f} [{min(quotients):.2f}, {max(quotients):.2f}]"
    return [f"{theirs:.1f}", f"{ours:.1f}", ratio, f">= {target}"]


if __name__ == "__main__":
    sys.exit(main())
