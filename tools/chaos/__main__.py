"""Tries replicas that share a store: real processes, faults drawn from a seed, and laws for what readers saw.

Starts three replicas of LOQUENT_BIN with the bundled model, Redis with a copy, and two `loquent connect`, all on
loopback. For some time it kills, stops and cuts them off, while clients ask and read on at random replicas. Then it
waits for every reader to come to its end, and checks the history.
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import shutil
import sys

from . import checker, history, plan, record
from .processes import Failed
from .run import Run

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
EXAMPLES = """examples:
  make chaos SECONDS=60                          a minute of faults, with a new seed
  make chaos SECONDS=60 SEED=7                   the faults and questions of seed 7 again
  make chaos SECONDS=60 ARGS='--faults kill,term'
  make chaos SECONDS=600 ARGS=--record           keeps what it showed in docs/chaos.md
  python -m chaos --check target/chaos/7         checks a history once more
  python -m chaos --plan --seed 7 --seconds 60   prints the faults, and runs nothing

faults:
""" + "\n".join(f"  {name:15}{kind.about}" for name, kind in plan.KINDS.items())


def arguments(words=None):
    parser = argparse.ArgumentParser("chaos", description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    binary = os.environ.get("LOQUENT_BIN") or TARGET / "release/loquent"
    parser.add_argument("--binary", type=pathlib.Path, default=pathlib.Path(binary),
                        help="default: $LOQUENT_BIN, else target/release/loquent")
    parser.add_argument("--seconds", type=float, default=60, help="how long there are faults (60)")
    parser.add_argument("--seed", type=int, help="what faults and questions are drawn from; default: a new one")
    parser.add_argument("--faults", default="all", metavar="KINDS",
                        help="some of the faults below, separated by commas (all)")
    parser.add_argument("--clients", type=int, default=6, help="clients that ask at the same time (6)")
    parser.add_argument("--bound", type=float, default=120,
                        help="seconds within which every reader has its whole answer once faults are over (120)")
    parser.add_argument("--check", type=pathlib.Path, metavar="FOLDER",
                        help="check the history of a run, and run nothing")
    parser.add_argument("--record", action="store_true",
                        help="keep the run in tools/chaos/record.json, and its row in docs/chaos.md")
    parser.add_argument("--plan", action="store_true", help="print the faults, and run nothing")
    options = parser.parse_args(words)
    try:
        options.faults = plan.kinds_of(options.faults)
    except ValueError as error:
        parser.error(str(error))
    if options.seed is None:
        options.seed = random.randrange(1_000_000)
    return options


def check(folder, options):
    """Checks the history in the folder of a run, named by its seed; prints what it shows, and returns the status."""
    events = history.read(folder / "history.jsonl")
    report = checker.check(events)
    print(report.text())
    (folder / "summary.json").write_text(json.dumps(report.summary(), indent=1) + "\n")
    if options.record:
        record.keep(record.entry(int(folder.name), options.binary, report.summary()))
    if not report.broken:
        return 0
    print(f"chaos: {len(report.broken)} laws broken; the history is {folder / 'history.jsonl'}", file=sys.stderr)
    return 1


def main():
    options = arguments()
    if options.check:
        return check(options.check, options)
    if options.plan:
        for fault in plan.plan(options.seed, options.seconds, options.faults):
            print(f"{fault.at_s:8.2f}  {fault.kind:14} {fault.target!s:6} {fault.lasts_s:5.2f} s  {fault.settings}")
        return 0
    for program in ("redis-server", options.binary):
        if not shutil.which(program):
            sys.exit(f"chaos: there is no {program} (tools/setup e2e; cargo build --release -p loquent)")
    folder = TARGET / "chaos" / str(options.seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"chaos: seed {options.seed}, {options.seconds:g} s of {', '.join(options.faults)}; {folder}", flush=True)
    written = history.History(folder / "history.jsonl")
    failure = None
    try:
        asyncio.run(Run(options, folder, written).go())
    except (Failed, asyncio.CancelledError, KeyboardInterrupt) as error:
        failure = str(error) or type(error).__name__
    finally:
        written.close()
    status = check(folder, options)
    if failure:
        print(f"chaos: seed {options.seed} did not come to its end: {failure}", file=sys.stderr)
    return status or (2 if failure else 0)


if __name__ == "__main__":
    sys.exit(main())
