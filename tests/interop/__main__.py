"""Runs the independent client against the server and writes docs/interop.md, the table of what held.

    LOQUENT_BIN=target/debug/loquent PYTHONPATH=tests .venv/bin/python -m interop

`--list` prints the table's checks instead, without running them.
"""

import argparse
import contextlib
import io
import sys
from pathlib import Path

import pytest

from .checks import check_of

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parents[1] / "docs" / "interop.md"
HEAD = """# An independent client

`tests/interop/client` is a client in Python, on aioquic, that was written from the text alone, without a look at the
server or at the clients that exist. The tests beside it hold the server to that text, with and after everything that
breaks it. `make test` runs them; this table is written by

```console
{command}
```

Rules `D-n.m` are in [delivery.md](../spec/delivery.md), `S-n.m` in [session.md](../spec/session.md).
{summary}
"""


class Run:
    """Notes of each test that says by which rules it goes: its row, and its result."""

    def __init__(self):
        self.rows = {}
        self.results = {}

    def pytest_collection_modifyitems(self, items):
        for item in items:
            if check := check_of(item):
                self.rows[item.nodeid] = (item.module.__doc__.strip().split(":")[0].rstrip("."), check)

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            departs = getattr(report, "wasxfail", None)
            self.results[report.nodeid] = f"**departs**: {departs}" if departs else "skipped"
        elif report.failed:
            self.results[report.nodeid] = "**fails**"
        elif report.when == "call":
            self.results.setdefault(report.nodeid, "holds")


def table_rows(run):
    """The lines of the table, under a heading for each file of tests."""
    heading = None
    for name, (section, check) in run.rows.items():
        if section != heading:
            heading = section
            yield f"\n## {section}\n\n| check | rules | result |\n| --- | --- | --- |"
        yield f"| {check.says} | {check.rules} | {run.results.get(name, 'not run')} |"


def run_tests(*arguments):
    run = Run()
    code = pytest.main([str(HERE), *arguments], plugins=[run])
    return run, code


def main():
    parser = argparse.ArgumentParser(prog="python -m interop", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the checks and run nothing")
    if parser.parse_args().list:
        with contextlib.redirect_stdout(io.StringIO()):
            run, code = run_tests("--collect-only", "-q")
        for _, check in run.rows.values():
            print(f"| {check.says} | {check.rules} |")
        return code
    # The one check that would hold the table of the last run against this one.
    run, code = run_tests("-q", f"--ignore={HERE / 'test_table.py'}")
    held = sum(run.results.get(name) == "holds" for name in run.rows)
    summary = f"Of {len(run.rows)} checks, {held} hold."
    command = next(line.strip() for line in __doc__.splitlines() if "python -m" in line)
    DOCUMENT.write_text(HEAD.format(command=command, summary=summary) + "\n".join(table_rows(run)) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
