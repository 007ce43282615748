"""bench/results.py: the tables of RESULTS.md are those of the recorded figures, and failures are said."""

import importlib.util
import json
import pathlib
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("results", ROOT / "bench/results.py")
results = importlib.util.module_from_spec(spec)
spec.loader.exec_module(results)

FIGURES = {
    "name": "stage15", "command": "loquent bench", "commit": "abc", "date": "2026-01-01", "cores": 2,
    "processor": "P", "instructions": ["avx2"], "llama.cpp": {"Loquent's": "1", "llama-server's": None},
    "tables": [[["measure", "ratio"], ["tokens/s", "2.4 [2.3, 2.5]"]]], "captions": ["5 runs."], "failure": None,
}


def options(**given):
    usual = {"models": "/m", "llama": "/l", "loquent": "/b/loquent", "portable": "/p", "fastapi": "/f", "busy": True, "only": ""}
    return types.SimpleNamespace(**{"force": False, **usual, **given})


def with_bench(monkeypatch, tmp_path, command):
    monkeypatch.setattr(results, "RECORDS", tmp_path)
    monkeypatch.setitem(results.BENCHES, "stage15", ("a bench", 1, command))
    return lambda: json.loads((tmp_path / "stage15.json").read_text())


def test_results_md_has_the_recorded_figures():
    text = results.RESULTS.read_text()
    records = {path.stem: json.loads(path.read_text()) for path in results.RECORDS.glob("*.json")}
    assert set(records) <= set(results.BENCHES)
    for name in records:
        assert f"<!-- results: {name} -->" in text, f"RESULTS.md has no block for {name}"
    assert results.with_tables(text, records) == text, "bench/results.py --render writes the tables anew"
    assert results.PICTURE.read_text() == results.plot.svg(records), "bench/results.py --render draws it anew"


def tables_of(text):
    return [rows for _, rows in results.captioned_tables(text)]


def captions_of(text):
    return [caption for caption, _ in results.captioned_tables(text)]


def test_tables_are_found_among_other_lines():
    text = "Warming up\n| a | b |\n| --- | ---: |\n| 1 | |\n\nmore\n| c |\n|---|\n| 2 |"
    assert tables_of(text) == [[["a", "b"], ["1", ""]], [["c"], ["2"]]]
    assert tables_of("no table | here") == []


def test_a_caption_is_the_line_before_its_table():
    text = "### head\n\nfive runs of `x`\n\n| a |\n| --- |\n| 1 |\n\n## next\n| b |\n| --- |\n| c |\n"
    assert captions_of(text) == ["five runs of `x`", ""]
    assert captions_of("| a |\n| b |") == [""]


def test_a_block_is_written_and_the_rest_kept():
    text = "before\n<!-- results: stage15 -->\nold\n<!-- end of results -->\nafter | x |"
    once = results.with_tables(text, {"stage15": FIGURES})
    assert once.startswith("before\n") and once.endswith("\nafter | x |") and "old" not in once
    assert "| tokens/s | 2.4 [2.3, 2.5] |" in once and "commit abc" in once and "2 cores of P (avx2)" in once
    assert "\n\n5 runs.\n\n| measure" in once
    assert results.with_tables(once, {"stage15": FIGURES}) == once
    assert "| tokens/s | 2.4 [2.3, 2.5] |" in results.with_tables("new", {"stage15": FIGURES})


def test_what_a_bench_prints_is_kept_with_its_commit(monkeypatch, tmp_path):
    read = with_bench(monkeypatch, tmp_path, "printf '| a |\\n| --- |\\n| {loquent} |\\n'")
    assert results.record("stage15", options())
    assert read()["tables"] == [[["a"], ["/b/loquent"]]]
    assert read()["commit"] == results.commit_here() and "/b/" not in read()["command"]
    # It has figures of this commit now.
    assert results.chosen(options(only="stage15")) == []
    assert results.chosen(options(only="stage15", force=True)) == ["stage15"]


def test_a_model_that_is_missing_is_made_once(monkeypatch, tmp_path):
    maker = tmp_path / "shape-model"
    maker.write_text('#!/bin/sh\necho "$*" >>"$0.log"\nfor out; do :; done\necho weights >"$out"\n')
    maker.chmod(0o755)
    given = options(models=tmp_path / "models", loquent=tmp_path / "loquent")
    for _ in range(2):
        results.make_models("bench {models}/gpt2.gguf", given)
    assert (tmp_path / "models/gpt2.gguf").read_text() == "weights\n"
    assert [line.split()[:3] for line in (tmp_path / "shape-model.log").open()] == [["gpt2", "--quant", "Q8_0"]]


def test_a_failure_is_kept_with_its_cause_but_never_replaces_figures(monkeypatch, tmp_path):
    read = with_bench(monkeypatch, tmp_path, "echo 'no such model' >&2; exit 3")
    assert not results.record("stage15", options())
    assert read()["failure"] == "no such model"
    assert "**Failed**" in results.rendered(read()) and "no such model" in results.rendered(read())
    assert results.chosen(options(only="stage15")) == ["stage15"]
    (tmp_path / "stage15.json").write_text(json.dumps(FIGURES))
    assert not results.record("stage15", options())
    assert read() == FIGURES
