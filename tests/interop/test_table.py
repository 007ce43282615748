"""The table in the docs is of these tests."""

import subprocess
import sys

from .__main__ import DOCUMENT, HERE


def test_the_table_has_every_check():
    command = [sys.executable, "-m", "interop", "--list"]
    listed = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=True).stdout.splitlines()
    assert listed
    written = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ") and "---" not in line]
    rows = [line.rsplit(" |", 2)[0] + " |" for line in written if line != "| check | rules | result |"]
    assert rows == listed, "run: " + " ".join(command)
