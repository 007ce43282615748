#!/usr/bin/env python3
"""Runs the simulator's plans, keeps their figures, and writes what the documentation shows of them.

    bench/sim-record.py [--loquent BINARY]    run every plan, redraw docs/img, write the record and the tables
    bench/sim-record.py --render              write the tables from the record; nothing is run
    bench/sim-record.py --check               exit with 1 if a table is not what the record says

The record is bench/sim.json. The tables stand between `<!-- sim: NAME -->` and `<!-- end of sim -->`
in README.md, in some chapters of docs/ and in spec/delivery.md. The simulator's figures do not depend on the machine: the same
commit gives the same record.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "bench/sim.json"
PAGES = [ROOT / name for name in ("docs/eloquent.md", "docs/demo.md", "docs/scheduling.md", "spec/delivery.md", "README.md")]
PLANS = ["bad-weather", "channels", "fast-generators", "fig5", "fig6", "fig7", "hidden-tab", "narrow-links",
         "outages", "pacing", "padding", "pareto", "burst", "qoe"]
KEPT = ["full", "late", "delay-ms", "shown-full", "hold-ms", "added-ms", "wire-kb", "text-bits", "change-bits"]
BLOCK = re.compile(r"<!-- sim: ([\w-]+) -->\n.*?<!-- end of sim -->", re.DOTALL)
DEFAULTS = [("RTT 400 ms", "default, RTT 400"), ("RTT 100 ms", "default, RTT 100"), ("RTT 50 ms", "default, RTT 50")]
#: The plan's name of each step of padding, and what the table calls it.
STEPS = {**{step: step for step in ("none", "16", "20", "24", "32", "48", "64", "128", "256", "largest")},
         "24, no memory": "24, each frame only as long as it needs"}
SHIPPED_STEP = "24"
#: The plan's name of Loquent's scheduler, and of those that it is compared with.
NEED, OTHERS = "by need", ["first come, TCP", "first come", "Andes"]
WEAK = [("80 ms of jitter, RTT 100 ms", "channels", "jitter 80 ms"),
        ("bursts that lose everything, RTT 100 ms", "channels", "default, 100 % loss"),
        ("longer bursts that lose everything, RTT 100 ms", "channels", "p .9 q .8, 100 % loss"),
        ("outages of .5 to 5 s", "channels", "outages .5 to 5 s"),
        ("our recording, 10 % loss, RTT 400 ms", "fig7", "recorded, 10 % loss"),
        ("our recording, 23 % loss, RTT 400 ms", "fig7", "recorded, 23 % loss"),
        ("16 kbit/s, 15 % loss", "channels", "16 kbit/s, default"),
        ("16 kbit/s, no loss", "channels", "16 kbit/s"),
        ("60 % loss, 30 tokens/s, RTT 200 ms, padded", "bad-weather", "60 % loss")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loquent", default=os.environ.get("LOQUENT", ROOT / "target/release/loquent"))
    parser.add_argument("--only", default="", metavar="PLANS", help="run these plans, separated by commas")
    parser.add_argument("--render", action="store_true", help="write the tables, run nothing")
    parser.add_argument("--check", action="store_true", help="compare the tables with the record, write nothing")
    options = parser.parse_args()
    if not options.render and not options.check:
        plans = options.only.split(",") if options.only else PLANS
        RECORD.write_text(written(run(options.loquent, plans)))
    record = json.loads(RECORD.read_text())
    wrong = []
    for page in PAGES:
        text = page.read_text()
        if (new := with_tables(text, record)) != text:
            wrong.append(page.relative_to(ROOT))
            if not options.check:
                page.write_text(new)
    if options.check and wrong:
        sys.exit(f"sim-record: not what bench/sim.json says: {', '.join(map(str, wrong))}; see --render")


def run(loquent, names):
    """Runs plans, with their pictures, and returns the record; a claim that fails ends the program."""
    def revision(name):
        return subprocess.run(["git", "rev-parse", name], cwd=ROOT, check=True, stdout=subprocess.PIPE,
                              text=True).stdout.strip()
    plans = json.loads(RECORD.read_text())["plans"] if names != PLANS else {}
    for name in names:
        print(f"sim-record: {name}", file=sys.stderr, flush=True)
        done = subprocess.run([loquent, "sim", f"plans/{name}.toml", "--json", "--svg", "docs/img"], cwd=ROOT,
                              check=True, stdout=subprocess.PIPE, text=True)
        plans[name] = kept(json.loads(done.stdout))
    return {"name": "sim", "about": "the simulator's plans", "command": "bench/sim-record.py",
            "commit": revision("HEAD"), "tree": revision("HEAD^{tree}"),
            "date": datetime.date.today().isoformat(), "tables": [], "failure": None, "plans": plans}


def written(record):
    """The record as JSON, a line for each row, so that a change of one figure is a change of one line."""
    plans = record["plans"]
    head = json.dumps({**record, "plans": None}, indent=1)
    parts = []
    for name, plan in plans.items():
        inner = [f'   "{key}": {json.dumps(value)}' for key, value in plan.items() if not isinstance(value, list)]
        for key in ("rows", "changes"):
            lines = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in plan[key])
            inner.append(f'   "{key}": [\n{lines}\n   ]' if lines else f'   "{key}": []')
        parts.append(f'  "{name}": {{\n' + ",\n".join(inner) + "\n  }")
    return head.replace('"plans": null', '"plans": {\n' + ",\n".join(parts) + "\n }") + "\n"


def kept(report):
    """What the documentation uses of a report, rounded to what it means."""
    plan = report["plan"]
    if "contender" in plan:
        return kept_qoe(report)
    if "machine" in plan:
        return kept_bursts(report)
    rows = [{"case": row["case"], "scheme": row["scheme"],
             **{key: [round(row[key]["mean"], 5), round(row[key]["ci95"], 5)] for key in KEPT if key in row}}
            for row in report["rows"]]
    # There is no change to what hardly ever stalls.
    changes = [{**{key: change[key] for key in ("case", "of", "over", "metric")},
                "change": [round(change["change"][key], 5) for key in ("mean", "low", "high")]}
               for change in report["changes"] if None not in change["change"].values()]
    return {"seed": plan["seed"], "sessions": plan["sessions"], "seconds": plan["seconds"],
            "claims": len(report["claims"]), "rows": rows, "changes": changes}


def kept_bursts(report):
    """The same of the plan of bursts, whose report is of another form: the largest bursts by machine and prompt."""
    rows = [{"machine": row["machine"], "prompt_tokens": row["prompt_tokens"],
             "first_come": row["first_come"]["readers"], "by_need": row["by_need"]["readers"],
             "ratio": round(row["ratio"], 5), "bound": row["bound"]} for row in report["rows"]]
    return {"rows": rows, "changes": []}


def kept_qoe(report):
    """The same of the plan of QoE: each contender's bursts, and the largest of the plan's QoE."""
    def rounded(point):
        return point and {key: round(value, 5) for key, value in point.items()}
    rows = [{"case": row["case"], "contender": row["contender"], "largest": rounded(row["largest"]),
             "points": [rounded(point) for point in row["points"]]} for row in report["rows"]]
    return {"seed": report["plan"]["seed"], "qoe": report["plan"]["qoe"], "rows": rows, "changes": []}


def with_tables(text, record):
    """`text` with each table between markers written from `record`."""
    def block(match):
        return f"<!-- sim: {match[1]} -->\n\n{TABLES[match[1]](record['plans'])}\n\n<!-- end of sim -->"
    return BLOCK.sub(block, text)


def value(plans, plan, case, scheme, key):
    rows = plans[plan]["rows"]
    return next(row[key][0] for row in rows if row["case"] == case and row["scheme"] == scheme)


def ratio(number):
    """A stall ratio as the documentation writes it: .151."""
    return "0" if number == 0 else f"{number:.3f}".removeprefix("0")


def percent(number, digits=1):
    return f"{100 * number:+.{digits}f} %".replace("-", "−")


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def kilobytes(plans, plan, case, schemes):
    return ", ".join(f"{value(plans, plan, case, scheme, 'wire-kb'):.2f}" for scheme in schemes)


def interval(plans, plan, case, over):
    found = plans[plan]["changes"]
    mean, low, high = next(c["change"] for c in found if c["case"] == case and c["over"] == over)
    return mean, low, high, f"{percent(mean)} [{percent(low)[:-2]}, {percent(high)[:-2]}]"


def fig5(plans):
    """The paper's reductions beside ours, and on which side of the interval the paper's value lies."""
    paper = {("TCP", "400"): -.710, ("TCP", "100"): -.600, ("Duplication x5", "400"): -.316,
             ("Duplication x5", "100"): -.313}
    names = {"TCP": "TCP (CUBIC)", "Duplication x5": "fivefold duplication"}
    rows = []
    for over in ("TCP", "TCP without a window", "Duplication x5"):
        for rtt in ("400", "100"):
            _mean, low, high, text = interval(plans, "fig5", f"RTT {rtt} ms", over)
            said = paper.get((over.removesuffix(" without a window"), rtt))
            inside = "inside" if low <= said <= high else "outside"
            rows.append([f"{names.get(over, over)}, RTT {rtt} ms", percent(said), text, inside])
    head = ["Eloquent's stall ratio against", "the paper", "simulated, 180 sessions [95 % interval]",
            "the paper's value is"]
    return table(head, rows)


def fig6(plans):
    left, right = "more often: p = 0.5, q = 0.5", "longer: p = 0.9, q = 0.8"
    rows = [[name, interval(plans, "fig6", left, over)[3], interval(plans, "fig6", right, over)[3]]
            for name, over in (("TCP", "TCP"), ("fivefold duplication", "Duplication x5"))]
    return table(["Eloquent's stall ratio against (simulated)", "p = 0.5, q = 0.5", "p = 0.9, q = 0.8"], rows)


def fig7(plans):
    cases = ["recorded, 10 % loss", "recorded, 23 % loss"]
    names = [("TCP", "TCP"), ("duplication ×5", "Duplication x5"), ("Eloquent", "Eloquent"), ("Loquent", "Loquent"),
             ("bound at 25 ms", "Oracle 25 ms")]
    rows = [[name, *(f"{ratio(value(plans, 'fig7', case, scheme, 'full'))} "
                     f"({100 * value(plans, 'fig7', case, scheme, 'late'):.1f} %)" for case in cases)]
            for name, scheme in names]
    return table(["simulated stall ratio (late tokens)", *cases], rows)


def channels(plans):
    """Every channel, with everybody's bytes."""
    senders = ["TCP", "Duplication x5", "Eloquent", "Loquent behind CUBIC", "Loquent"]
    rows = []
    for case in dict.fromkeys(row["case"] for row in plans["channels"]["rows"]):
        full = [value(plans, "channels", case, scheme, "full") for scheme in [*senders, "Oracle 25 ms"]]
        gain = percent(full[4] / full[2] - 1, 0) if full[2] >= 0.005 else ""
        delay = [value(plans, "channels", case, scheme, "delay-ms") for scheme in ("Eloquent", "Loquent")]
        wire = [value(plans, "channels", case, scheme, "wire-kb") for scheme in ("Eloquent", "Loquent")]
        rows.append([case, *map(ratio, full), gain, ", ".join(f"{ms:,.0f}" for ms in delay),
                     kilobytes(plans, "channels", case, ["TCP", "Duplication x5", "Eloquent", "Loquent"]),
                     f"{wire[1] / wire[0]:.1f}"])
    return table(["simulated stall ratio, 360 sessions", "TCP", "duplication ×5", "Eloquent", "Loquent behind CUBIC",
                  "Loquent", "bound at 25 ms", "Loquent against Eloquent", "mean delay of Eloquent, Loquent, ms",
                  "kB/s of TCP, duplication, Eloquent, Loquent (unpadded)", "bytes, of Eloquent's"], rows)


def copies(plans):
    """What the gap between copies costs and saves."""
    def cells(case, scheme):
        wire, eloquent = (value(plans, "pareto", case, of, "wire-kb") for of in (scheme, "Eloquent"))
        return [f"{wire:.2f}", f"{wire / eloquent:.2f}", ratio(value(plans, "pareto", case, scheme, "full"))]

    cases = ["RTT 400 ms", "RTT 100 ms"]
    gaps = [f"Loquent, copies every {ms} ms" for ms in (12, 18, 35, 50, 100)]
    rows = [[scheme.removeprefix("Loquent, ") if scheme in gaps else f"{scheme}'s default" if scheme == "Loquent" else scheme,
             *(cell for case in cases for cell in cells(case, scheme))] for scheme in ["Eloquent", "Loquent", *gaps]]
    return table(["simulated, unpadded", *(f"{case}: {head}" for case in cases for head in
                                           ("kB/s", "bytes, of Eloquent's", "stall ratio"))], rows)


def weak(plans):
    """Where the gain is small, absent or bought with delay."""
    rows = []
    for name, plan, case in WEAK:
        three = ["TCP", "Eloquent", "Loquent"]
        full = [value(plans, plan, case, scheme, "full") for scheme in three]
        delay = [value(plans, plan, case, scheme, "delay-ms") for scheme in three]
        gain = [percent(full[2] / other - 1, 0) if other else "no stalls" for other in full[:2]]
        bound = ratio(value(plans, plan, case, "Oracle 25 ms", "full"))
        rows.append([name, ", ".join(map(ratio, full)), bound, *gain, ", ".join(f"{ms:,.0f}" for ms in delay),
                     kilobytes(plans, plan, case, three)])
    return table(["simulated; each: TCP, Eloquent, Loquent", "stall ratio", "bound at 25 ms", "against TCP",
                  "against Eloquent", "mean delay, ms", "kB/s, unpadded"], rows)


def readme(plans):
    """The short form of `weak`."""
    names = ["80 ms of jitter", "bursts that lose everything", "a recorded link, 23 % loss",
             "16 kbit/s, 15 % loss", "60 % loss, padded"]
    chosen = [WEAK[0], WEAK[1], WEAK[5], WEAK[6], WEAK[8]]
    rows = []
    for name, (_, plan, case) in zip(names, chosen, strict=True):
        three = ["TCP", "Eloquent", "Loquent"]
        full = [value(plans, plan, case, scheme, "full") for scheme in three]
        rows.append([name, *(percent(full[2] / other - 1, 0) for other in full[:2]),
                     kilobytes(plans, plan, case, three)])
    return table(["simulated channel", "stalls against TCP", "stalls against Eloquent",
                  "kB/s of TCP, Eloquent, Loquent (unpadded)"], rows)


def demo(plans):
    rows = []
    for loss in (15, 30, 45, 60):
        case = f"{loss} % loss"
        three = ["TCP", "Eloquent", "Loquent"]
        rows.append([case, *(ratio(value(plans, "bad-weather", case, scheme, "full")) for scheme in three),
                     kilobytes(plans, "bad-weather", case, three)])
    return table(["simulated, RTT 200 ms, 30 tokens/s", "TCP", "Eloquent", "Loquent",
                  "kB/s of TCP, Eloquent, Loquent (padded)"], rows)


def narrow(plans):
    three = ["TCP", "Eloquent", "Loquent"]
    cases = ["16 kbit/s, no loss", "16 kbit/s", "24 kbit/s", "32 kbit/s", "64 kbit/s", "16 kbit/s, 20 tokens/s"]
    rows = [[case, *(f"{value(plans, 'narrow-links', case, scheme, 'delay-ms'):,.0f}" for scheme in three),
             kilobytes(plans, "narrow-links", case, three)] for case in cases]
    return table(["simulated mean delay, ms", *three, "kB/s of TCP, Eloquent, Loquent (unpadded)"], rows)


def padding(plans):
    """What each step of padding costs and tells: the largest of all channels, and some channels."""
    rows = []
    for scheme, name in STEPS.items():
        channels = {row["case"]: row for row in plans["padding"]["rows"] if row["scheme"] == scheme}

        def most(key, channels=channels):
            return f"{max(row[key][0] for row in channels.values()):.3f}"

        def by_rtt(key, decimals, channels=channels):
            return " / ".join(f"{channels[case][key][0]:.{decimals}f}" for _, case in DEFAULTS)

        rows.append([f"**{name}**" if scheme == SHIPPED_STEP else name, most("text-bits"), most("change-bits"),
                     f"{channels['clean']['wire-kb'][0]:.2f}", by_rtt("wire-kb", 2), by_rtt("full", 3),
                     f"{channels['24 kbit/s']['delay-ms'][0]:.0f}"])
    return table(["step", "bits, by length", "bits, by change", "kB/s, no loss", "kB/s, RTT 400 / 100 / 50 ms",
                  "stall ratio, RTT 400 / 100 / 50 ms", "delay on 24 kbit/s, ms"], rows)


def padding_channels(plans):
    """What the step that ships costs and hides on each channel."""
    def both(case, key, form):
        return " → ".join(form(value(plans, "padding", case, step, key)) for step in ("none", SHIPPED_STEP))

    rows = []
    for case in dict.fromkeys(row["case"] for row in plans["padding"]["rows"]):
        name = {"24 kbit/s": "24 kbit/s, default losses", "whole words": "whole words as tokens"}.get(case, case)
        rows.append([name, both(case, "text-bits", lambda bits: f"{bits:.3f}"),
                     both(case, "change-bits", lambda bits: f"{bits:.3f}"),
                     both(case, "wire-kb", lambda kilobytes: f"{kilobytes:.2f}"), both(case, "full", ratio),
                     both(case, "delay-ms", lambda ms: f"{ms:.0f}")])
    return table([f"simulated, {plans['padding']['sessions']} sessions: unpadded → step of {SHIPPED_STEP}",
                  "bits, by length", "bits, by change", "kB/s", "stall ratio", "delay, ms"], rows)


def outages(plans):
    """Blackouts: how close to the bound everybody is, and when the text comes."""
    three, rows = ["TCP", "Eloquent", "Loquent"], []
    for case in dict.fromkeys(row["case"] for row in plans["outages"]["rows"]):
        full = [value(plans, "outages", case, scheme, "full") for scheme in [*three, "Oracle 25 ms"]]
        delay = [value(plans, "outages", case, scheme, "delay-ms") for scheme in three]
        rows.append([case, *map(ratio, full), *(percent(one / full[3] - 1) for one in full[1:3]),
                     ", ".join(f"{ms:,.0f}" for ms in delay)])
    return table(["simulated stall ratio, blackouts of", *three, "bound at 25 ms", "Eloquent above the bound",
                  "Loquent above the bound", "mean delay of TCP, Eloquent, Loquent, ms"], rows)


def pacing(plans):
    """Stalls that a reader sees and the delay that he pays, with the least buffers, a large one and the largest."""
    def shown(case, scheme):
        return (f"{100 * value(plans, 'pacing', case, scheme, 'shown-full'):.1f} % at "
                f"{value(plans, 'pacing', case, scheme, 'added-ms'):,.0f} ms")

    rows = [[f"{case}, {buffer or 'no buffer'}",
             *(shown(case, f"{scheme}, {buffer}" if buffer else scheme) for scheme in ("TCP", "Eloquent", "Loquent"))]
            for case in ("RTT 400 ms", "RTT 100 ms") for buffer in ("", "25 ms", "110 ms", "300 ms", "800 ms")]
    return table(["simulated: displayed stalls, at which added delay", "TCP", "Eloquent", "Loquent"], rows)


def burst(plans):
    """The largest bursts of both machines by the length of the prompts."""
    machines = {}
    for row in plans["burst"]["rows"]:
        cells = [str(row["first_come"]), str(row["by_need"]), f"{row['ratio']:.2f}", str(row["bound"])]
        machines.setdefault(row["machine"], {})[row["prompt_tokens"]] = cells
    head = [heading for name in machines for heading in (f"{name}: first come", "by need", "ratio", "bound")]
    rows = [[str(tokens), *(cell for of in machines.values() for cell in of[tokens])]
            for tokens in next(iter(machines.values()))]
    return table(["prompt tokens", *head], rows)


def qoe_rows(plans):
    """The rows of the plan of QoE by case: of each contender its row."""
    cases = {}
    for row in plans["qoe"]["rows"]:
        cases.setdefault(row["case"], {})[row["contender"]] = row
    return cases


def most(row):
    """The readers of the largest burst that a contender serves well, 0 if there is none."""
    return row["largest"]["readers"] if row["largest"] else 0


def qoe(plans):
    """The largest bursts of the plan's mean QoE, and how many times as many readers by need."""
    rows = []
    for case, row in qoe_rows(plans).items():
        ratios = [f"{most(row[NEED]) / max(most(row[over]), 1):.2f}" for over in OTHERS]
        rows.append([case, *(str(most(one)) for one in row.values()), *ratios])
    contenders = next(iter(qoe_rows(plans).values()))
    ratios = [f"{NEED} / {over}" for over in OTHERS]
    return table([f"simulated: most readers at mean QoE {plans['qoe']['qoe']}", *contenders, *ratios], rows)


def qoe_bursts(plans):
    """Every metric of a burst of one size, the largest that all contenders have played."""
    rows = []
    for case, row in qoe_rows(plans).items():
        common = set.intersection(*({point["readers"] for point in one["points"]} for one in row.values()))
        size = max(common)
        for name, one in row.items():
            point = next(point for point in one["points"] if point["readers"] == size)
            rows.append([case, str(size), name, f"{point['mean_qoe']:.3f}", f"{100 * point['good_share']:.0f} %",
                         f"{point['effective_tokens_per_s']:,.0f}", f"{point['ttft_p99_s']:.2f}"])
    return table(["simulated", "readers", "policy", "mean QoE", f"readers of QoE {plans['qoe']['qoe']}",
                  "effective tokens/s", "TTFT P99, s"], rows)


TABLES = {"fig5": fig5, "fig6": fig6, "fig7": fig7, "channels": channels, "copies": copies, "weak": weak, "readme": readme,
          "demo": demo, "narrow": narrow, "padding": padding, "padding-channels": padding_channels, "outages": outages,
          "pacing": pacing, "burst": burst, "qoe": qoe, "qoe-bursts": qoe_bursts}


if __name__ == "__main__":
    main()
