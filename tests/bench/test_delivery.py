"""bench/delivery.py: seeds are put together, and a missed target is said and fails."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("delivery", ROOT / "bench/delivery.py")
delivery = importlib.util.module_from_spec(spec)
spec.loader.exec_module(delivery)


def seeds(label, full, kb_per_s, model):
    one = {"label": label, "full": full, "full_205": full, "model_205": model, "delay_ms": 90.0, "kb_per_s": kb_per_s,
           "late_p99_ms": .2}
    return {"1": one, "2": {**one, "full": full * 1.1}}


def channel(ours, kb_per_s=4.1, model=.3):
    return {"100": {"cubic": seeds("SSE, TCP CUBIC", .32, 2.6, model), "bbr": seeds("SSE, TCP BBR", .30, 2.7, .3),
                    "quic-stream": seeds("plain QUIC stream", .28, 2.9, .3),
                    "loquent": seeds("Loquent, QUIC", ours, kb_per_s, ours)}}


def test_reached_targets_miss_nothing(capsys):
    assert delivery.report(delivery.DEFAULT, channel(.06), 15) == []
    text = capsys.readouterr().out
    assert "| 100 ms | Loquent, QUIC | 0.063 [0.060, 0.066] | −80.0 % [−80.0, −80.0] |" in text
    assert "−75 %, 4.8 kB/s: reached" in text and "model −6.2 %".replace("−", "-") in text


def test_each_target_can_be_missed(capsys):
    too_many_stalls, = delivery.report(delivery.DEFAULT, channel(.12), 15)
    assert "at least 75 % wanted" in too_many_stalls
    too_many_bytes, = delivery.report(delivery.DEFAULT, channel(.06, kb_per_s=5.0), 15)
    assert "at most 4.8 wanted" in too_many_bytes
    wrong_model, = delivery.report(delivery.DEFAULT, channel(.06, model=.4), 15)
    assert "its model stalls +25.0 %" in wrong_model
    assert capsys.readouterr().out.count("missed") == 3


def test_channels_without_targets_miss_nothing():
    assert delivery.report("80 ms of jitter", channel(.29), 15) == []
