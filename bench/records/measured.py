"""What pages of the documentation show of the records between `<!-- measured: NAME -->` and `<!-- end of measured -->`.

A record of another run changes them. Beside real packets stand the simulator's figures of the same channel.
"""

import json
import pathlib
import textwrap
from statistics import mean

from . import page

SIMULATED = pathlib.Path(__file__).resolve().parents[1] / "sim.json"
#: Pages with such parts.
PAGES = ("README.md", "docs/eloquent.md")
#: bench/delivery.py's name of the channel that has targets; then those on which little can be gained, with that of
#: plans/channels.toml.
DEFAULT = "the default channel"
WEAK = {"80 ms of jitter": "jitter 80 ms", "bursts that lose everything": "default, 100 % loss",
        "16 kbit/s": "16 kbit/s, default"}
TCP = ("cubic", "bbr")
#: A model is called too favourable where its gain is larger by as many percentage points, or its delay is as many
#: times shorter.
POINTS, TIMES = 5, 1.5


def written(text, records):
    """`text` with each part between marks written from the records."""
    here = page.first_machine(records)
    record = here.get(page.in_place_of(here, "delivery"))
    usable = record if record and record["outcome"] != "failed" else None

    def part(match):
        return f"<!-- measured: {match[1]} -->{PARTS[match[1]](usable)}<!-- end of measured -->"
    return page.MEASURED.sub(part, text)


def channel(record, name):
    """The figures of a channel: of each round trip and scheme, those of every seed; the changes are the tables'."""
    of_channel = record["runs"][0].get(name, {})
    return {rtt: {scheme: {key: mean(seed[key] for seed in seeds.values())
                           for key in ("full", "full_205", "model_205", "delay_ms", "kb_per_s")} for scheme, seeds in schemes.items()}
            for rtt, schemes in of_channel.items()}


def better_tcp(schemes):
    return schemes[min((name for name in TCP if name in schemes), key=lambda name: schemes[name]["full"])]


def changes(record, name):
    """Loquent's stalls against the better TCP's and the plain stream's, as the record's table has them."""
    of_channel = [table for caption, table in zip(record["captions"], record["tables"], strict=True)
                  if caption.startswith(f"Real packets over {name};")]
    return [page.tables.cell(of_channel, "100 ms;Loquent", head) or "" for head in ("against the better", "against the plain")]


def simulated(case):
    """Loquent's change of the stall ratio against TCP, and its mean delay in ms."""
    rows = {row["scheme"]: row for row in json.loads(SIMULATED.read_text())["plans"]["channels"]["rows"]
            if row["case"] == case}
    loquent = rows["Loquent"]
    return loquent["full"][0] / rows["TCP"]["full"][0] - 1, loquent["delay-ms"][0]


def weak(record):
    """Where little is gained: real packets beside the model."""
    if not record:
        return "\n\nNo real packets are measured yet.\n\n"
    head = ["round trip 100 ms", "simulated: against TCP", "simulated mean delay, ms", "real packets: against the better TCP",
            "against a plain QUIC stream", "mean delay of the better TCP, the QUIC stream, Loquent, ms",
            "kB/s of these, Loquent padded"]
    rows = [page.row_of(head), f"|{' --- |' * len(head)}"]
    for name, case in WEAK.items():
        schemes = channel(record, name)["100"]
        three = [better_tcp(schemes), schemes["quic-stream"], schemes["loquent"]]
        change, delay = simulated(case)
        rows.append(page.row_of([name, percent(change), f"{delay:,.0f}", *changes(record, name),
                                 ", ".join(f"{one['delay_ms']:,.0f}" for one in three),
                                 ", ".join(f"{one['kb_per_s']:.2f}" for one in three)]))
    return "\n\n" + "\n".join(rows) + "\n\n" + page.filled(verdict(record)) + "\n\n"


def percent(share):
    return f"{100 * share:+.0f} %".replace("-", "−")


def verdict(record):
    """On which channels reality is worse than the model."""
    worse = []
    for name, case in WEAK.items():
        schemes, (gain, delay) = channel(record, name)["100"], simulated(case)
        real, late = schemes["loquent"]["full"] / better_tcp(schemes)["full"] - 1, schemes["loquent"]["delay_ms"]
        what = [f"the gain against TCP is {percent(real)} in place of {percent(gain)}"] * (100 * (real - gain) > POINTS)
        what += [f"the mean delay is {late:,.0f} ms in place of {delay:,.0f} ms"] * (late > TIMES * delay)
        if what:
            worse.append(f"{name} ({' and '.join(what)})")
    if not worse:
        return "On none of these channels are real packets much worse than the model."
    return f"With real packets it is worse than in the model: {'; '.join(worse)}."


def bytes_of_eloquent(record):
    """How many times as many bytes as Eloquent the padded sender takes on the default channel."""
    found = [schemes["loquent"]["kb_per_s"] / schemes["eloquent"]["kb_per_s"]
             for schemes in (channel(record, DEFAULT) if record else {}).values() if "eloquent" in schemes]
    return f"{min(found):.1f} to {max(found):.1f} times as many" if found else "several times as many"


def weak_in_short(record):
    """The sentence of README, below the simulated table."""
    return f"\n\n{page.filled(verdict(record))}\n\n" if record else ""


def missed(record):
    """The targets of the default channel that are missed, and how the stalls are beyond gaps of 205 ms."""
    if not record:
        return "\n\nNo real packets are measured yet.\n\n"
    table = next(table for caption, table in zip(record["captions"], record["tables"], strict=True)
                 if caption.startswith(f"Real packets over {DEFAULT};"))
    items = []
    for rtt, label, _, change, *_, target in table[1:]:
        if not target.endswith(": missed"):
            continue
        text = f"{label} at {rtt}: {f'{change}, wanted ' * bool(change)}{target.removesuffix(': missed')}"
        if change:
            schemes = channel(record, DEFAULT)[rtt.removesuffix(" ms")]
            ours = schemes["loquent-unpadded" if label.endswith("unpadded") else "loquent"]
            of_tcp = ours["full_205"] / better_tcp(schemes)["full_205"] - 1
            text += (f"; from gaps of 205 ms on {percent(of_tcp)}, stall ratio {ours['full_205']:.3f}, "
                     f"in the model {ours['model_205']:.3f}")
        items.append(textwrap.fill(f"- {text}", 120, subsequent_indent="  ", break_long_words=False,
                                        break_on_hyphens=False))
    return "\n\n" + ("\n".join(items) or "All targets are reached.") + "\n\n"


PARTS = {"weak": weak, "missed": missed, "weak-in-short": weak_in_short, "bytes": bytes_of_eloquent}
