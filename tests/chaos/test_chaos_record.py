"""The record of tools/chaos: what it keeps, and the page that is made from it."""

from chaos import checker, history, record

RUN = {"seed": 7, "binary": "loquent 1", "date": "2026-01-01", "fault seconds": 60, "faults": {"kill": 2, "cut": 1},
       "answers": 9, "takeovers": 3, "moves": 40, "readers": {"whole": 8, "stopped": 1}, "violations": {}}


def test_the_page_is_that_of_the_record():
    page = record.PAGE.read_text()
    assert record.with_table(page, record.read()) == page


def test_a_run_is_kept_once_for_a_binary(tmp_path):
    path, page = tmp_path / "record.json", tmp_path / "page.md"
    page.write_text(f"# Title\n\n{record.TITLE}\nold\n\n{record.NEXT}\nEnd.\n")
    record.keep(RUN, path, page)
    record.keep({**RUN, "violations": {"one text": 2}}, path, page)
    record.keep({**RUN, "binary": "loquent 2"}, path, page)
    assert [run["binary"] for run in record.read(path)] == ["loquent 1", "loquent 2"]
    text = page.read_text()
    assert "| 7 | loquent 1 | 2026-01-01 | 60 | 3 | 9 | 3 | 40 | 8 whole, 1 stopped | 2 one text |\n" in text
    assert text.startswith("# Title\n") and text.endswith(f"\n{record.NEXT}\nEnd.\n") and "old" not in text


def test_a_summary_has_what_the_record_shows(tmp_path):
    written = history.History(tmp_path / "history.jsonl")
    for phase in ("faults", "calm", "rest", "end"):
        written.info("phase", phase=phase)
    written.close()
    program = tmp_path / "loquent"
    program.write_text("#!/bin/sh\necho loquent 3\n")
    program.chmod(0o755)
    kept = record.entry(5, program, checker.check(history.read(tmp_path / "history.jsonl")).summary())
    assert kept["binary"] == "loquent 3" and record.row(kept).count("|") == record.HEAD.splitlines()[3].count("|")
