#!/usr/bin/env python3
"""Runs the simulator's plans whose figures stand in tables of the documents, and writes records and tables.

    bench/simulated.py --loquent target/release/loquent     runs them: plans/records, then the tables
    bench/simulated.py                                      writes the tables from the records

A plan's seed decides everything, so a record names no machine: every build of the same simulator gives these figures.
"""

import argparse
import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "plans/records"

#: Metrics of `loquent sim padding` that the table has.
PADDING_METRICS = ("text-bits", "change-bits", "wire-kb", "full", "delay-ms")
#: The plan's name of each scheme in the table, and what the table calls it.
PADDING_STEPS = {
    **{step: step for step in ("none", "16", "20", "24", "32", "48", "64", "128", "256", "largest")},
    "24, no memory": "24, each frame only as long as it needs",
}
DEFAULT_STEP = "24"
ROUND_TRIPS = ("default, RTT 400", "default, RTT 100", "default, RTT 50")


def padding_record(report):
    """Scheme to channel to means."""
    kept = {}
    for row in report["rows"]:
        if row["scheme"] in PADDING_STEPS:
            means = {metric: round(row[metric]["mean"], 6) for metric in PADDING_METRICS}
            kept.setdefault(row["scheme"], {})[row["case"]] = means
    return kept


def padding_table(record):
    yield ["step", "bits, by length", "bits, by change", "kB/s, no loss", "kB/s, RTT 400 / 100 / 50 ms",
           "stall ratio, RTT 400 / 100 / 50 ms", "delay on 24 kbit/s, ms"]
    for scheme, name in PADDING_STEPS.items():
        channels = record[scheme]

        def most(metric, channels=channels):
            return max(channel[metric] for channel in channels.values())

        def at_round_trips(metric, decimals, channels=channels):
            return " / ".join(f"{channels[case][metric]:.{decimals}f}" for case in ROUND_TRIPS)

        yield [f"**{name}**" if scheme == DEFAULT_STEP else name, f"{most('text-bits'):.3f}",
               f"{most('change-bits'):.3f}", f"{channels['clean']['wire-kb']:.2f}", at_round_trips("wire-kb", 2),
               at_round_trips("full", 3), f"{channels['24 kbit/s']['delay-ms']:.0f}"]


def burst_record(report):
    """Machine to length of the prompt to the largest bursts."""
    kept = {}
    for row in report["rows"]:
        policies = {policy: row[policy]["readers"] for policy in ("first_come", "by_need")}
        figures = {**policies, "ratio": round(row["ratio"], 6), "bound": row["bound"]}
        kept.setdefault(row["machine"], {})[str(row["prompt_tokens"])] = figures
    return kept


def burst_table(record):
    columns = ("first come", "by need", "ratio", "bound")
    first = [f"{machine}: {columns[0]}" for machine in record]
    yield ["prompt tokens", *(heading for name in first for heading in (name, *columns[1:]))]
    for tokens in next(iter(record.values())):
        rows = (machine[tokens] for machine in record.values())
        cells = ((row["first_come"], row["by_need"], f"{row['ratio']:.2f}", row["bound"]) for row in rows)
        yield [tokens, *(str(cell) for row in cells for cell in row)]


#: Plan to the document with its table, what the record keeps of a report, and the table's rows.
TABLES = {
    "padding": ("spec/delivery.md", padding_record, padding_table),
    "burst": ("docs/scheduling.md", burst_record, burst_table),
}


def run(loquent, plan):
    """The record of a plan's figures by the simulator of this binary. `plan`: a built-in one, or a file."""
    keep = TABLES[Path(plan).stem][1]
    # The exit status says that a claim fails; the figures are good in any case.
    output = subprocess.run([loquent, "sim", plan, "--json"], capture_output=True, text=True).stdout
    return keep(json.loads(output))


def read(name):
    return json.loads((RECORDS / f"{name}.json").read_text())["figures"]


def as_json(name, figures):
    """A record's text: a line for each row."""
    lines = []
    for group, rows in figures.items():
        inner = ",\n".join(f"   {json.dumps(row)}: {json.dumps(values)}" for row, values in rows.items())
        lines.append(f"  {json.dumps(group)}: {{\n{inner}\n  }}")
    return f'{{\n "command": "loquent sim {name} --json",\n "figures": {{\n' + ",\n".join(lines) + "\n }\n}\n"


def with_table(text, name, figures):
    """A document's text with the table of these figures between its marks."""
    rows = list(TABLES[name][2](figures))
    lines = ["| " + " | ".join(cells) + " |" for cells in (rows[0], ["---"] * len(rows[0]), *rows[1:])]
    begin, end = f"<!-- simulated: {name} -->\n", "<!-- end of simulated -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    written, count = pattern.subn(lambda _: begin + "\n" + "\n".join(lines) + "\n\n" + end, text)
    assert count == 1, f"no marks for {name}"
    return written


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loquent", help="binary whose simulator runs the plans")
    arguments = parser.parse_args()
    for name, (document, _, _) in TABLES.items():
        if arguments.loquent:
            RECORDS.mkdir(exist_ok=True)
            (RECORDS / f"{name}.json").write_text(as_json(name, run(arguments.loquent, name)))
        path = ROOT / document
        path.write_text(with_table(path.read_text(), name, read(name)))


if __name__ == "__main__":
    main()
