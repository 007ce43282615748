"""bench/simulated.py: tables in the documents are those of its records, and these are the simulator's."""

import importlib.util
import json
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("simulated", ROOT / "bench/simulated.py")
simulated = importlib.util.module_from_spec(spec)
spec.loader.exec_module(simulated)
LOQUENT = os.environ.get("LOQUENT_BIN")


@pytest.mark.parametrize("name", simulated.TABLES)
def test_a_documents_table_is_the_records(name):
    text = (ROOT / simulated.TABLES[name][0]).read_text()
    record = simulated.read(name)
    assert simulated.with_table(text, name, record) == text, "run bench/simulated.py"
    assert simulated.as_json(name, record) == (simulated.RECORDS / f"{name}.json").read_text()
    # A planted figure is not the record's.
    table = text.partition(f"simulated: {name} -->")[2]
    row = next(line for line in table.splitlines() if re.match(r"\| (none|16)", line))
    planted = text.replace(row, re.sub(r"\d( \|)$", lambda last: "x" + last[1], row))
    assert planted != text
    assert simulated.with_table(planted, name, record) == text


@pytest.mark.skipif(not LOQUENT, reason="LOQUENT_BIN names no binary")
def test_the_record_of_bursts_is_the_simulators():
    assert simulated.run(LOQUENT, "burst") == simulated.read("burst"), "run bench/simulated.py --loquent"


@pytest.mark.skipif(not LOQUENT, reason="LOQUENT_BIN names no binary")
def test_the_record_of_padding_is_the_simulators(tmp_path):
    # The step that ships: what a scheme meets does not depend on the others of its plan.
    plan = (ROOT / "plans/padding.toml").read_text()
    schemes = re.search(r"^scheme = \[\n(.*?)^\]\n", plan, re.DOTALL | re.MULTILINE)
    (shipped,) = [line for line in schemes[1].splitlines() if f'name = "{simulated.DEFAULT_STEP}", ' in line]
    plan = plan[: plan.index("[[claim]]")].replace(schemes[1], shipped + "\n")
    file = tmp_path / "padding.toml"
    file.write_text(plan)
    now = simulated.run(LOQUENT, str(file))
    step = simulated.DEFAULT_STEP
    assert list(now) == [step] and len(now[step]) == 10
    assert now[step] == simulated.read("padding")[step], "run bench/simulated.py --loquent"


def test_a_record_keeps_what_the_table_needs():
    policies = {"first_come": {"readers": 2}, "by_need": {"readers": 3}}
    row = {"machine": "m", "prompt_tokens": 16, "ratio": 1.5, "bound": 4, **policies}
    record = simulated.burst_record({"rows": [row]})
    assert json.loads(simulated.as_json("burst", record))["figures"] == record
    assert list(simulated.burst_table(record))[1] == ["16", "2", "3", "1.50", "4"]
