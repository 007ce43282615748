#!/usr/bin/env python3
"""Steps of a model beside what the machine can do: `loquent bench engine --roofline`, several times over.

    bench/roofline.py --model q.gguf --loquent target/release/loquent

Prints Markdown tables of medians [least, most]: the machine's limits, the steps, and where prompts spend their time.
On a quiet machine of 2 cores it takes two minutes.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

from records.printed import runs as print_runs

# A step of 16 rows is to take 1.5 times the time of one row.
ROWS_GAIN = {16: 10.6}
# Percent of what the machine's limit allows: of steps by rows, and of prompts by tokens.
REACHED = {("decode", 1): 70, ("decode", 16): 45, ("prompt", 512): 60, ("prompt", 4000): 62}
# Percent of the peaks, of a prompt.
PRODUCTS, ATTENTION = 60, 50


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--loquent", default="loquent", help="the binary")
    parser.add_argument("--runs", type=int, default=3, help="how often all is measured [3]")
    options = parser.parse_args()
    runs = [measured(options) for _ in range(options.runs)]
    first = runs[0]
    print(f"{first['model']}, {first['kernels']}, {first['threads']} threads; {len(runs)} runs\n")
    print_limits([run["limits"] for run in runs])
    print_steps([run["steps"] for run in runs])
    print_operations([run["steps"] for run in runs])
    print_runs(runs)


def measured(options):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "roofline.json"
        command = [options.loquent, "bench", "engine", "--model", options.model, "--roofline", "--json", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(out.read_text())
    if found["incomplete"]:
        raise SystemExit("roofline: the measurement was cut short; is the machine busy?")
    return found


def spread(values, form, unit=""):
    """The median, and the least and the most where they differ from it as shown."""
    median, least, most = (f"{value:{form}}" for value in (statistics.median(values), min(values), max(values)))
    return f"{median}{unit}" if least == most else f"{median}{unit} [{least}, {most}]"


def print_limits(runs):
    print("| the machine | at most |\n| --- | --- |")
    print(f"| reads memory, GB/s | {spread([run['read_bytes_per_s'] / 1e9 for run in runs], '.1f')} |")
    for at, (name, _) in enumerate(runs[0]["int8_per_s"]):
        rates = [run["int8_per_s"][at][1] / 1e9 for run in runs]
        print(f"| 8-bit products with {name}, billion/s | {spread(rates, '.0f')} |")
    if runs[0]["float_per_s"]:
        rates = [run["float_per_s"][1] / 1e9 for run in runs]
        print(f"| float products with {runs[0]['float_per_s'][0]}, billion/s | {spread(rates, '.0f')} |")
    print()


def print_steps(runs):
    print("| step | ms | limit, ms | limited by | reached | target | tokens/s | ÷ one row | target |\n|" + " --- |" * 9)
    one = statistics.median(step["ms"] for steps in runs for step in steps if step.get("rows") == 1)
    for same in zip(*runs, strict=True):
        times, step = [step["ms"] for step in same], same[0]
        tokens = step.get("rows") or step["tokens"]
        rates = [tokens / ms * 1e3 for ms in times]
        gain = f"{tokens / statistics.median(times) * one:.2f}" if step["kind"] == "decode" else ""
        of_gain = f">= {ROWS_GAIN[tokens]}" if gain and tokens in ROWS_GAIN else ""
        of_limit = f">= {REACHED[step['kind'], tokens]}" if (step["kind"], tokens) in REACHED else ""
        print(f"| {name_of(step)} | {spread(times, '.2f')} | {step['limit_ms']:.2f} | {step['limited_by']} "
              f"| {spread([100 * step['reached'] for step in same], '.0f', ' %')} | {of_limit} "
              f"| {spread(rates, '.0f')} | {gain} | {of_gain} |")
    print()


def print_operations(runs):
    rows = [same for same in zip(*runs, strict=True) if same[0].get("operations")]
    if not rows:
        return
    print("| prompt | products, ms | of the 8-bit peak | target | attention, ms | of the float peak | target "
          "| the rest, ms |\n|" + " --- |" * 8)
    for same in rows:
        spent = [step["operations"] for step in same]
        rest = [step["ms"] - each["products_ms"] - each["attention_ms"] for step, each in zip(same, spent)]
        of = lambda key, scale=1: [scale * each[key] for each in spent]
        print(f"| {name_of(same[0])} | {spread(of('products_ms'), '.0f')} | {spread(of('products_reached', 100), '.0f', ' %')} "
              f"| >= {PRODUCTS} | {spread(of('attention_ms'), '.0f')} "
              f"| {spread(of('attention_reached', 100), '.0f', ' %')} | >= {ATTENTION} "
              f"| {spread(rest, '.0f')} |")


def name_of(step):
    if step["kind"] == "decode":
        return f"decode, {step['rows']} row{'s' * (step['rows'] > 1)}"
    return f"prompt of {step['tokens']}"


if __name__ == "__main__":
    main()
