"""The table in the docs is of these tests."""

import subprocess
import sys

from .__main__ import DOCUMENT, HERE


def test_the_page_is_that_of_these_checks():
    command = [sys.executable, "-m", "interop", "--print"]
    page = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=True).stdout
    assert page.count("\n| ") > 100
    assert page == DOCUMENT.read_text(), "run: " + " ".join(command[:-1])
