"""tools/worlds.py: what it adds up, what it stops at, and the page that is made from its record."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import worlds  # noqa: E402


def stand_in(folder, code):
    binary = folder / "replica-world"
    binary.write_text(f"#!/bin/sh\n{code}\n")
    binary.chmod(0o755)
    return binary


def test_the_page_is_that_of_the_record():
    page = worlds.PAGE.read_text()
    assert worlds.with_table(page, json.loads(worlds.RECORD.read_text())) == page


def test_the_parts_of_a_run_are_added_up(tmp_path):
    said = "$2 worlds from seed $1: 3 readers whole, 1 excused, 2 takeovers, 5 clients of responses, 1.0 s"
    total = worlds.run(stand_in(tmp_path, f'echo "{said}"'), 7, 2 * worlds.PART + 1, 2)
    assert total == {"worlds": 2 * worlds.PART + 1, "whole": 9, "excused": 3, "takeovers": 6, "clients": 15}
    assert worlds.sessions(total) == 27


@pytest.mark.parametrize("code", ["echo history; exit 1", "echo nothing"])
def test_a_broken_law_ends_the_run_with_its_history(tmp_path, code):
    binary = stand_in(tmp_path, code)
    ended = subprocess.run([worlds.__file__, binary, "0", "9"], capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stdout.strip() in ("history", "nothing")


def test_a_run_is_kept_with_its_row(tmp_path):
    path, page = tmp_path / "record.json", tmp_path / "page.md"
    page.write_text(f"# Title\n\n{worlds.TITLE}\nold\n\n{worlds.NEXT}\nEnd.\n")
    run = {"first": 7, "worlds": 2000, "whole": 1, "excused": 2, "takeovers": 3, "clients": 4, "sessions": 7,
           "tree": "abc", "date": "2026-01-01"}
    worlds.keep(run, path, page)
    assert json.loads(path.read_text()) == [run]
    text = page.read_text()
    assert "| 7 | 2,000 | 7 | 1 | 2 | 4 | 3 | none | abc | 2026-01-01 |\n" in text and "old" not in text
