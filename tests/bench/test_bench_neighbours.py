"""bench/neighbours.py: what is judged, and what is said where no quota can be set."""

import importlib
import sys

import pytest

from records import tables

path_before = list(sys.path)
neighbours = importlib.import_module("neighbours")
sys.path[:] = path_before

MEASURED = {"tokens/s": [50.0, 60.0], "ttft": [0.2, 0.1]}


class Stopped:
    """A server that is never started."""

    def __init__(self):
        self.command = ["loquent", "serve"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    monkeypatch.setattr(neighbours, "measure", lambda *_: MEASURED)


def test_where_no_group_can_be_made_the_quota_is_left_out_and_that_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(neighbours, "CGROUPS", tmp_path / "missing")
    found = neighbours.contest(Stopped(), 2)
    assert all(list(parts) == list(neighbours.PARTS) for parts in found.values())
    assert len(tables.notes(capsys.readouterr().out)) == 1


@pytest.mark.parametrize("old, files", [(True, {"cpu.cfs_period_us", "cpu.cfs_quota_us"}), (False, {"cpu.max"})])
def test_the_server_starts_in_a_group_of_its_own(monkeypatch, tmp_path, old, files):
    monkeypatch.setattr(neighbours, "CGROUPS", tmp_path)
    root = tmp_path / "cpu" if old else tmp_path
    root.mkdir(exist_ok=True)
    # A folder of control files can be removed as if it were empty.
    written = {}
    monkeypatch.setattr("pathlib.Path.write_text", lambda path, text: written.update({path.name: text}))
    server = Stopped()
    found = neighbours.contest(server, 2)
    assert all(neighbours.QUOTA in parts for parts in found.values())
    assert set(written) == files and server.command[-2:] == ["loquent", "serve"]
    assert server.command[3].startswith(f"{root}/loquent-neighbours-") and not list(root.glob("loquent-*"))


def test_only_ours_is_judged_by_speed_and_first_token():
    quiet = {"tokens/s": [100.0], "ttft": [0.04]}
    row = neighbours.row("loquent", 16, "two busy programs", MEASURED, quiet)
    assert row == ["loquent, 16 streams", "two busy programs", "55.0 [50.0, 60.0]", "0.55", ">= 0.4", "150 [100, 200]",
                   "3.75", "<= 3"]
    assert "" == neighbours.row("loquent", 1, "quiet", quiet, quiet)[4]
    assert [neighbours.row("peer", 1, "quiet again", quiet, quiet)[at] for at in (4, 7)] == ["", ""]
