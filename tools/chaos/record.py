"""The record of runs that were kept, and the table in docs/chaos.md that is made from it."""

import json
import pathlib
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
RECORD = HERE / "record.json"
PAGE = HERE.parents[1] / "docs/chaos.md"
#: The headings of the section, and of the one behind it.
TITLE, NEXT = "## Recorded runs\n", "## What is not tried\n"
HEAD = """
`--record` keeps a run in `tools/chaos/record.json`, from which this table is made.

| seed | binary | date | seconds of faults | faults | answers | takeovers | moves | readers | broken laws |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def read(path=RECORD):
    """The record, a run after another. Empty where there is none."""
    return json.loads(path.read_text()) if path.exists() else []


def entry(seed, binary, summary):
    """What the record keeps of a run."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return {"seed": seed, "binary": said, "date": time.strftime("%Y-%m-%d"), **summary}


def keep(run, path=RECORD, page=PAGE):
    """Adds a run, in the place of an earlier one of its seed with the same binary, and makes the table again."""
    same = {name: run[name] for name in ("seed", "binary")}
    record = [one for one in read(path) if {name: one[name] for name in same} != same] + [run]
    path.write_text(json.dumps(record, indent=1) + "\n")
    page.write_text(with_table(page.read_text(), record))


def with_table(text, record):
    """The page's text with the section of the record."""
    return with_section(text, TITLE, HEAD + "".join(map(row, record)), NEXT)


def with_section(text, title, body, behind):
    """The text of a page with another body between the headings `title` and `behind`."""
    before, _, rest = text.partition(title)
    return before + title + body + "\n" + rest[rest.index(behind):]


def row(run):
    readers = ", ".join(f"{count} {end}" for end, count in run["readers"].items())
    broken = ", ".join(f"{count} {law}" for law, count in run["violations"].items()) or "none"
    cells = (run["seed"], run["binary"], run["date"], f"{run['fault seconds']:.0f}", sum(run["faults"].values()),
             run["answers"], run["takeovers"], run["moves"], readers, broken)
    return f"| {' | '.join(map(str, cells))} |\n"
