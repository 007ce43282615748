"""bench/delivery-table.py: each limit of a report is a row with its target, and the values of all streams are kept."""

import importlib.util
import json
import pathlib

from records import tables

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("delivery_table", ROOT / "bench/delivery-table.py")
delivery_table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(delivery_table)


def scheme(name, label, full, last_us=2_000_000):
    figure = {"mean": full, "half": 0.01}
    return {"scheme": name, "label": label, "first_token_ms": [5.0], "server_cpu_us_per_token": 10.0,
            "measured": dict.fromkeys(("full", "down_kb_s", "packets_per_s"), figure),
            "sessions": [{"figures": {"ready": {"full": full}, "down_kb_s": 3.7}, "trace": {"ready_us": [1, last_us]}}]}


def report(kind, verdicts, schemes):
    return {"title": "T", "sessions": 1, "seconds": 2.0, "tokens_per_s": 1.0, "channel": {"kind": kind},
            "cases": [{"rtt_ms": 400.0, "schemes": schemes}],
            "verdicts": [{"text": text, "holds": holds} for text, holds in verdicts]}


def printed(tmp_path, capsys, **given):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report(**given)))
    kept_up = delivery_table.table(path)
    return kept_up, capsys.readouterr().out


def test_limits_are_rows_with_their_targets(tmp_path, capsys):
    verdicts = [("RTT 400 ms: Loquent, QUIC stalls 81.8 % less than SSE, BBR; at least 75 %", True),
                ("RTT 400 ms: Loquent, QUIC takes 4.90 kB/s per stream; at most 4.8", False),
                ("RTT 400 ms: the model of SSE, BBR stalls -12.0 %; at most 10 % off", False),
                ("a limit of a kind to come", False)]
    _, out = printed(tmp_path, capsys, kind="default", verdicts=verdicts,
                     schemes=[scheme("bbr", "SSE, BBR", 0.5), scheme("loquent", "Loquent, QUIC", 0.1)])
    found = tables.captioned_tables(out)
    assert [well for *_, well in tables.judged(rows for _, rows in found)] == [True, False, False, False]
    assert tables.cell([rows for _, rows in found], "400 ms;Loquent", "against") == "-80.0 %"
    assert tables.runs(out)[0]["T"]["Loquent, QUIC, RTT 400 ms"] == {"stall ratio": [0.1], "kB/s": [3.7]}


def test_throughput_on_a_clean_link_is_a_limit(tmp_path, capsys):
    for last_us, kept_up in ((2_050_000, True), (2_500_000, False)):
        seen, out = printed(tmp_path, capsys, kind="clean", verdicts=[], schemes=[
            scheme("serve-bbr", "SSE, BBR", 0.0), scheme("loquent", "Loquent, QUIC", 0.0, last_us)])
        assert seen == kept_up
        assert [well for *_, well in tables.judged(rows for _, rows in tables.captioned_tables(out))] == [kept_up]
