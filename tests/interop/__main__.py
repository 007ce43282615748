"""Writes docs/interop.md, the table of what the independent client checks. `make test` runs the checks.

    PYTHONPATH=tests .venv/bin/python -m interop

`--print` prints the page instead.
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
breaks it. `make test` runs them, and fails where the server departs from the text, unless the check is marked here as
**departs**; it fails as well once such a check holds. This table is written by

```console
{command}
```

Rules `D-n.m` are in [delivery.md](../spec/delivery.md), `S-n.m` in [session.md](../spec/session.md).
There are {checks} checks; the server departs from {departing} of them.
"""


class Collected:
    """The row of each test that says by which rules it goes, under the heading of its file."""

    def __init__(self):
        self.rows = []

    def pytest_collection_modifyitems(self, items):
        for item in items:
            if check := check_of(item):
                self.rows.append((item.module.__doc__.strip().split(":")[0].rstrip("."), check))


def table_rows(rows):
    """The lines of the table, under a heading for each file of tests."""
    heading = None
    for section, check in rows:
        if section != heading:
            heading = section
            yield f"\n## {section}\n\n| check | rules |\n| --- | --- |"
        departs = f"; **departs**: {check.departs}" if check.departs else ""
        yield f"| {check.says}{departs} | {check.rules} |"


def page():
    """The page's text."""
    collected = Collected()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main([str(HERE), "--collect-only", "-q"], plugins=[collected])
    if code != pytest.ExitCode.OK:
        sys.exit(said.getvalue())
    departing = sum(bool(check.departs) for _, check in collected.rows)
    command = next(line.strip() for line in __doc__.splitlines() if "python -m" in line)
    head = HEAD.format(command=command, checks=len(collected.rows), departing=departing or "none")
    return head + "\n".join(table_rows(collected.rows)) + "\n"


def main():
    parser = argparse.ArgumentParser(prog="python -m interop", description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the page and write nothing")
    if parser.parse_args().print:
        print(page(), end="")
    else:
        DOCUMENT.write_text(page())


if __name__ == "__main__":
    main()
