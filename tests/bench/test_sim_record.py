"""bench/sim-record.py: the documentation's tables are those of the record, and a wrong figure is found."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("sim_record", ROOT / "bench/sim-record.py")
sim_record = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sim_record)
RECORD = json.loads(sim_record.RECORD.read_text())
LOQUENT = os.environ.get("LOQUENT_BIN")


def plan_now(plan):
    """What a record would keep of this plan's run by the binary under test."""
    # The exit status says that a claim fails; the figures are good in any case.
    output = subprocess.run([LOQUENT, "sim", plan, "--json"], capture_output=True, text=True).stdout
    return sim_record.kept(json.loads(output))["rows"]


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


@pytest.mark.parametrize("page, name", [("spec/delivery.md", "padding"), ("docs/scheduling.md", "burst")])
def test_a_wrong_figure_of_a_table_is_found(page, name):
    text = (ROOT / page).read_text()
    table = text.partition(f"sim: {name} -->")[2]
    row = next(line for line in table.splitlines() if re.match(r"\| (none|16)", line))
    planted = text.replace(row, re.sub(r"\d( \|)$", lambda last: "x" + last[1], row))
    assert planted != text and sim_record.with_tables(planted, RECORD) == text


@pytest.mark.skipif(not LOQUENT, reason="LOQUENT_BIN names no binary")
def test_the_record_of_bursts_is_the_simulators():
    assert plan_now("burst") == RECORD["plans"]["burst"]["rows"], "run bench/sim-record.py"


@pytest.mark.skipif(not LOQUENT, reason="LOQUENT_BIN names no binary")
def test_the_record_of_padding_is_the_simulators(tmp_path):
    # The step that ships: what a scheme meets does not depend on the others of its plan.
    plan = (ROOT / "plans/padding.toml").read_text()
    schemes = re.search(r"^scheme = \[\n(.*?)^\]\n", plan, re.DOTALL | re.MULTILINE)
    step = sim_record.SHIPPED_STEP
    (shipped,) = [line for line in schemes[1].splitlines() if f'name = "{step}", ' in line]
    file = tmp_path / "padding.toml"
    file.write_text(plan[: plan.index("[[claim]]")].replace(schemes[1], shipped + "\n"))
    now = plan_now(str(file))
    assert len(now) == 10
    recorded = [row for row in RECORD["plans"]["padding"]["rows"] if row["scheme"] == step]
    assert now == recorded, "run bench/sim-record.py"


def test_a_record_of_bursts_keeps_what_the_table_needs():
    policies = {"first_come": {"readers": 2}, "by_need": {"readers": 3}}
    row = {"machine": "m", "prompt_tokens": 16, "ratio": 1.5, "bound": 4, **policies}
    kept = sim_record.kept({"plan": {"machine": []}, "rows": [row]})
    assert sim_record.burst({"burst": kept}).splitlines()[-1] == "| 16 | 2 | 3 | 1.50 | 4 |"


def test_a_record_of_qoe_keeps_what_the_tables_need():
    def row(contender, readers):
        point = {"readers": 8, "batch_size": 4, "mean_qoe": 0.9712345, "good_share": 0.75,
                 "effective_tokens_per_s": 1234.5, "ttft_p99_s": 1.5}
        largest = point | {"readers": readers} if readers else None
        return {"case": "c", "contender": contender, "points": [point], "largest": largest}
    rows = [row("first come, TCP", 5), row("first come", 10), row("Andes", 0), row("by need", 15)]
    plan = {"contender": [], "machine": {}, "seed": 1, "qoe": 0.95}
    kept = {"qoe": sim_record.kept({"plan": plan, "rows": rows})}
    assert sim_record.qoe(kept).splitlines()[-1] == "| c | 5 | 10 | 0 | 15 | 3.00 | 1.50 | 15.00 |"
    last = sim_record.qoe_bursts(kept).splitlines()[-1]
    assert last == "| c | 8 | by need | 0.971 | 75 % | 1,234 | 1.50 |"
    assert json.loads(sim_record.written({"plans": kept})) == {"plans": kept}


@pytest.mark.skipif(not LOQUENT, reason="LOQUENT_BIN names no binary")
def test_the_record_of_qoe_is_the_simulators(tmp_path):
    # One size of burst: what a burst meets does not depend on the others of its plan.
    file = tmp_path / "qoe.toml"
    plan = (ROOT / "plans/qoe.toml").read_text()
    small = re.sub(r"^readers = .*$", "readers = [16]", plan, flags=re.MULTILINE)
    file.write_text(small[: small.index("[[claim]]")])
    recorded = [next(point for point in row["points"] if point["readers"] == 16)
                for row in RECORD["plans"]["qoe"]["rows"]]
    assert [row["points"][0] for row in plan_now(str(file))] == recorded, "run bench/sim-record.py"


def test_the_record_has_every_plan_that_draws_something():
    plans = {path.stem for path in (ROOT / "plans").glob("*.toml")} - {"campaign"}
    assert plans == set(RECORD["plans"]) == set(sim_record.PLANS)
    assert len({row["case"] for row in RECORD["plans"]["channels"]["rows"]}) == 18


def test_the_record_is_written_as_it_is_read():
    assert json.loads(sim_record.written(RECORD)) == RECORD
