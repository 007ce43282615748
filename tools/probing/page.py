"""The record of the last run of each tool, and the page that is made from it."""

import json
from pathlib import Path

from .report import Finding, explanations, judge

HERE = Path(__file__).resolve().parent
RECORD = HERE / "record.json"
PAGE = HERE.parents[1] / "docs/probes.md"

HEAD = """# Outside eyes

Third-party tools that look for faults in servers, run against the real binary on loopback. `make probe` installs them
(as root on Debian or Ubuntu; elsewhere it names what is missing), runs each with bounds on its time and requests, and
writes this page. It fails if a tool finds something that is not explained below, if the server ends, answers with a
status from 500 on, panics, or still computes for a tool that is gone.

```console
make probe                      # all tools: about twenty minutes
make probe ONLY=h2spec,aioquic  # two of them
make probe ONLY=libfuzzer       # an hour of fuzzing, which the first does not have
tools/probe --help
```

A check is what the tool counts as one: a frame sequence, a request, an entry of its report, a kind of fault. What is
*explained* is what a tool takes for a fault and is none; the reasons are below the table. *Open* findings fail the run.
"""


def read(path=RECORD):
    """The record: by the name of each tool its last run. Empty where there is none."""
    return json.loads(path.read_text()) if path.exists() else {}


def entry(module, version, report, binary, date):
    """What the record keeps of a tool's run."""
    return {
        "version": version,
        "checks": report.checks,
        "passed": report.passed,
        "findings": [{"id": it.id, "what": it.what} for it in sorted(report.findings, key=lambda it: it.id)],
        "of": module.CHECKS,
        "binary": binary,
        "date": date,
    }


def write(record, modules, path=RECORD, page=PAGE):
    """Keeps the record, in the order of the tools, and makes the page."""
    ordered = {it.NAME: record[it.NAME] for it in modules if it.NAME in record}
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    page.write_text(render(ordered, explanations()))


def findings_of(run):
    return [Finding(it["id"], it["what"]) for it in run["findings"]]


def cell(text):
    return text.replace("|", "\\|")


def render(record, explained):
    """The page's text."""
    rows, used, unknown = [], {}, []
    for tool, run in record.items():
        known, others = judge(findings_of(run), explained)
        unknown += others
        for finding, reason in known:
            used.setdefault(reason, []).append(finding)
        made = f"{run['checks']:,} | {run['passed']:,} | {len(known)} | {len(others)}"
        rows.append(f"| {tool} | {run['version']} | {run['of']} | {made} | {run['date']}, {run['binary']} |")
    lines = [HEAD, "| tool | version | looks at | checks | passed | explained | open | run |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |", *rows]
    if unknown:
        lines += ["\n## Open\n", "| finding | what the tool saw |", "| --- | --- |"]
        lines += [f"| {cell(it.id)} | {cell(it.what)} |" for it in unknown]
    lines += ["\n## Explained\n", "| finding | times | why it is no fault |", "| --- | --- | --- |"]
    lines += [f"| `{cell(it.pattern)}` | {len(found)} | {cell(it.why)} |" for it, found in used.items()]
    return "\n".join(lines) + "\n"


def stale(record, explained, tools):
    """Explanations that none of the findings of these tools needs any more."""
    found = [finding for run in record.values() for finding in findings_of(run)]
    mine = [it for it in explained if it.pattern.split("/")[0] in tools]
    return [it for it in mine if not it.may_be_absent and not any(it.covers(finding) for finding in found)]
