"""bench/formats.py: both sides take turns, and the table has the ratio of each turn."""

import importlib.util
import pathlib
import stat
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("formats", ROOT / "bench/formats.py")
formats = importlib.util.module_from_spec(spec)
spec.loader.exec_module(formats)

# In place of the programs: what was asked of each is noted; ours is twice as fast.
LOQUENT = """#!{python}
import json, pathlib, sys
told = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(told[told.index("--kernels") + 1] + "\\n")
rate = 20.0 if "loquent-avx2" in told else 10.0
runs = lambda rate: {{"runs": [{{"metrics": {{"output_throughput": rate}}}}]}}
pathlib.Path(told[told.index("--json") + 1]).write_text(json.dumps({{"groups": [runs(rate), runs(4 * rate)]}}))
"""
SHAPE_MODEL = """#!{python}
import pathlib, sys
pathlib.Path(sys.argv[sys.argv.index("--out") + 1]).write_text(" ".join(sys.argv[1:4]))
"""


def program(path, text, **values):
    path.write_text(text.format(python=sys.executable, **values))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_sides_take_turns_and_models_are_made_and_removed(tmp_path, monkeypatch, capsys):
    log = tmp_path / "log"
    loquent = program(tmp_path / "loquent", LOQUENT, log=str(log))
    program(tmp_path / "shape-model", SHAPE_MODEL)
    models = tmp_path / "models"
    arguments = ["--models", models, "--loquent", loquent, "--kernels", "loquent-avx2", "--only", "MXFP4",
                 "--rounds", "2", "--remove"]
    monkeypatch.setattr(sys, "argv", ["formats.py", *map(str, arguments)])
    assert formats.main() == 0
    assert log.read_text().split() == ["llama.cpp", "loquent-avx2"] * 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[2].endswith(
        "| 10.0 | 20.0 | 2.00 [2.00, 2.00] | >= 1.0 | 40.0 | 80.0 | 2.00 [2.00, 2.00] | >= 1.5 |")
    assert lines[3].startswith("runs: ") and "[[10.0, 40.0], [20.0, 80.0]]" in lines[3]
    assert list(models.iterdir()) == []


def test_every_format_has_a_name_of_the_quantiser():
    known = (ROOT / "crates/engine/src/llama/quantize.rs").read_text()
    for _, _, _, names in formats.MODELS:
        assert all(f'"{name}"' in known for name in names)
