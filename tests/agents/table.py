#!/usr/bin/env python3
"""Writes the table of clients from the last run to target/agents.md, and holds docs/apps.md against it.

UPDATE_DOCS=1 writes it there. A row has the version that ran and a word for each column: yes, no with its cause, or a
dash where the client has no such feature.
"""

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]

from test_agents import CLIENTS  # noqa: E402

from conftest import REPOSITORY, RESULTS  # noqa: E402

COLUMNS = ["connects", "streams", "tools", "structured", "resumes", "cancels", "server killed"]
BEGIN, END = "<!-- agents: written by make test-agents -->\n", "<!-- end of agents -->\n"
PAGE = REPOSITORY / "docs" / "apps.md"


def cell(client, column, results):
    outcome = results.get(client.name, {}).get(column, "-")
    if column == "server killed" and outcome == "yes":
        return "asks again" if client.asks_again else "tells"
    return outcome


def table(results):
    rows = [["client", "version", *COLUMNS], ["---"] * (2 + len(COLUMNS))]
    for client in CLIENTS:
        rows.append([client.name, client.version(), *(cell(client, column, results) for column in COLUMNS)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main():
    written = table(json.loads(RESULTS.read_text()))
    RESULTS.parent.with_suffix(".md").write_text(written)
    print(written)
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    told, after = rest.split(END)
    if told.strip() == written.strip():
        return
    if not os.environ.get("UPDATE_DOCS"):
        sys.exit("docs/apps.md has another table; UPDATE_DOCS=1 make test-agents writes this one")
    PAGE.write_text(f"{before}{BEGIN}\n{written}\n{END}{after}")


if __name__ == "__main__":
    main()
