"""bench/sim-record.py: the documentation's tables are those of the record, and a wrong figure is found."""

import importlib.util
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("sim_record", ROOT / "bench/sim-record.py")
sim_record = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sim_record)
RECORD = json.loads(sim_record.RECORD.read_text())


@pytest.mark.parametrize("page", sim_record.PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_record(page):
    text = page.read_text()
    assert sim_record.BLOCK.search(text), "no table is left on this page"
    assert sim_record.with_tables(text, RECORD) == text, "run bench/sim-record.py --render"


def test_every_table_is_on_a_page():
    found = {name for page in sim_record.PAGES for name in sim_record.BLOCK.findall(page.read_text())}
    assert found == set(sim_record.TABLES)


def test_a_wrong_figure_is_found():
    text = sim_record.PAGES[0].read_text()
    figure = sim_record.interval(RECORD["plans"], "fig5", "RTT 400 ms", "TCP")[3]
    planted = text.replace(figure, "−99.9 % [−99.9, −99.9]")
    assert planted != text and sim_record.with_tables(planted, RECORD) == text


def test_the_record_has_every_plan_that_draws_something():
    plans = {path.stem for path in (ROOT / "plans").glob("*.toml")} - {"burst", "campaign"}
    assert plans == set(RECORD["plans"]) == set(sim_record.PLANS)
    assert len({row["case"] for row in RECORD["plans"]["channels"]["rows"]}) == 18


def test_the_record_is_written_as_it_is_read():
    assert json.loads(sim_record.written(RECORD)) == RECORD
