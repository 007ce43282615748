#!/usr/bin/env python3
"""Runs the benches, keeps their figures as records, and writes RESULTS.md and README's figures from them.

    bench/results.py --models DIR                  every bench that has no record of this tree yet
    bench/results.py --models DIR --only stage15,portable
    bench/results.py --models DIR --minutes 40     as many of them as fit, the most valuable first
    bench/results.py --list                        what there is, and how long each takes
    bench/results.py --render                      write what is generated from the records, and run nothing
    bench/results.py --check                       whether all that is generated is that of the records, and whether
                                                   the history has their commits

`make results` builds one release binary first, so that what it measures is of one build; a record that is kept from
before is of its own, and names the commit. The record of a bench is bench/results/NAME.json: the tables that it
printed, the values of its runs, its command, the commit and the tree, the machine, the versions, how busy the machine
was, and whether it failed or missed a target. A record replaces the one before it, whatever came of the bench. RESULTS.md, README's section "How fast", the picture, and the parts of README and
docs/eloquent.md between `<!-- measured: NAME -->` marks are written from the records alone, but for simulated figures
beside real ones, which are bench/sim.json's.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parent
ROOT = BENCH.parent
sys.path[:0] = [str(BENCH), str(BENCH / "peers")]
import plot  # noqa: E402
from records import history, machine, measured, page, peer_runs, tables  # noqa: E402
from records.benches import BENCHES, CLIENT, SHAPES, TRAINED  # noqa: E402

RECORDS = BENCH / "results"
GENERATED = {"bench/RESULTS.md": lambda old, records: page.results_md(records),
             "README.md": lambda old, records: measured.written(page.readme(old, records), records),
             "docs/eloquent.md": measured.written,
             history.PICTURE: lambda old, records: plot.svg(page.succeeded(records))}
#: What a record must have.
FIELDS = {"name", "about", "engine", "command", "commit", "tree", "date", "seconds", "outcome", "cause", "machine",
          "versions", "binary", "models", "load", "tables", "captions", "notes", "runs"}
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "loquent"
#: The simulator's figures, which bench/sim-record.py keeps.
SIMULATED = BENCH / "sim.json"
OUTCOMES = {"reached", "missed", "measured", "failed"}
FASTAPI = ["fastapi==0.116.2", "uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0"]


def main(words=None):
    options = arguments(words)
    if options.list:
        print("\n".join(f"{name:18} {minutes_of(bench, options):3.0f} min  {bench.about}" for name, bench in BENCHES.items()))
        return 0
    if options.render:
        write_generated()
        return 0
    if options.check:
        problems = check()
        print("\n".join(problems) or "All that is generated is that of the records.")
        return 1 if problems else 0
    return measure(options)


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the benches")
    parser.add_argument("--render", action="store_true", help="write what is generated from the records, run nothing")
    parser.add_argument("--check", action="store_true", help="compare what is generated with the records, run nothing")
    parser.add_argument("--only", default="", metavar="NAMES", help="these benches, separated by commas")
    parser.add_argument("--minutes", type=float, help="as many benches as fit, in the order of --list")
    parser.add_argument("--force", action="store_true", help="run again what has a record of this tree")
    parser.add_argument("--busy", action="store_true", help="run though the machine is busy, which the record says")
    parser.add_argument("--machine", default="", metavar="NAME", help="keep the records apart, as those of a further "
                        "machine: bench/results/NAME")
    folder = pathlib.Path
    parser.add_argument("--models", type=folder, default=CACHE / "models", help="folder of the models' files [that of "
                        "tools/models in the user's cache]")
    parser.add_argument("--peers", type=folder, default=folder(os.environ.get("PEERS") or CACHE / "peers"), help="folder "
                        "of the servers to compare with, all of which are [that of bench/peers/build.sh]")
    parser.add_argument("--llama", type=folder, help="folder of a llama-server [bench/peers/build.sh builds one]")
    parser.add_argument("--tune-minutes", type=float, default=2, help="time to search each peer's settings in [2]")
    parser.add_argument("--loquent", type=folder, default=ROOT / "target/release/loquent")
    parser.add_argument("--fastapi", type=folder, metavar="PYTHON", help="an interpreter that has FastAPI, uvicorn, "
                        "uvloop and httptools [one is set up]")
    parser.add_argument("--portable", type=folder, help="binary of tools/portable", default=next(
        iter(sorted((ROOT / "target/dist/bin").glob("*-linux-gnu/loquent"), reverse=True)), None))
    parser.add_argument("--against", default="", metavar="NAMES", help="compare with these servers alone, separated by "
                        "commas")
    options = parser.parse_args(words)
    if not re.fullmatch(r"[\w-]*", options.machine):
        parser.error("--machine is a name of letters, digits and hyphens")
    for key in ("loquent", "models", "peers", "llama", "portable"):
        if path := getattr(options, key):
            setattr(options, key, path.absolute())
    return options


def measure(options):
    refuse_dirty()
    names = chosen(options)
    minutes = {name: minutes_of(BENCHES[name], options) for name in names}
    begun, left, not_run, failed = time.monotonic(), sum(minutes.values()), [], []
    for at, name in enumerate(names, 1):
        bench = BENCHES[name]
        tell(f"[{at} of {len(names)}] {name}: {bench.about}, about {minutes[name]:g} min; {left:g} min to go")
        left -= minutes[name]
        if why := prerequisite(bench, options):
            tell(f"{name} is not run: {why}")
            not_run.append(f"{name} ({why})")
            continue
        if record(name, options) == "failed":
            failed.append(name)
        write_generated()
    tell(f"{len(names) - len(not_run)} benches in {(time.monotonic() - begun) / 60:.0f} min")
    if not_run:
        tell(f"not run: {'; '.join(not_run)}")
    for line in page.missed(read_all()):
        tell(f"missed: {line}")
    return 1 if failed else 0


def tell(text):
    print(f"results: {text}", file=sys.stderr, flush=True)


def refuse_dirty():
    """Ends the program where the tree is not that of its commit: nobody could build what is measured."""
    if changed := history.dirty(ROOT):
        shown = ", ".join(changed[:5]) + (" …" if len(changed) > 5 else "")
        raise SystemExit(f"results: the tree has changes that are in no commit: {shown}; commit them first")


def chosen(options):
    """The names of the benches to run, in their order."""
    names = [name for name in options.only.split(",") if name]
    if unknown := [name for name in names if name not in BENCHES]:
        raise SystemExit(f"results: no bench is called {', '.join(unknown)}; --list names them")
    found, minutes = [], 0
    for name, bench in BENCHES.items():
        if names and name not in names:
            continue
        earlier = read(name, options.machine)
        if not options.force and earlier.get("outcome") not in (None, "failed") \
                and (options.busy or not earlier["load"]["busy"]) \
                and history.measures_the_same(ROOT, earlier["tree"]):
            tell(f"{name} has a record of this tree; --force runs it again")
            continue
        of_bench = minutes_of(bench, options)
        if options.minutes is None or (minutes + of_bench <= options.minutes and not prerequisite(bench, options)):
            minutes += of_bench
            found.append(name)
    return found


def peers(options):
    """What bench/peers/build.sh wrote down of each server to compare with: names, each with its builds' files."""
    found, wanted = {}, options.against.split(",") if options.against else None
    for path in sorted([*options.peers.glob("*/version"), *options.peers.glob("*/*/version")]):
        folder = path.relative_to(options.peers).parts[0]
        name = "llama-server" if folder == "bin" else folder
        if name not in ("source", "build") and (wanted is None or name in wanted):
            found.setdefault(name, []).append(path)
    return found


def not_paths(options):
    """What commands name beside the paths of this machine."""
    return {"tune": f"{options.tune_minutes:g}", "against": f" --only {options.against}" if options.against else ""}


def minutes_of(bench, options):
    """How long a bench takes here."""
    if "{peers}" not in bench.command:
        return bench.minutes
    return max(len(peers(options)), 1) * (bench.minutes + (options.tune_minutes if "{tune}" in bench.command else 0))


def prerequisite(bench, options):
    """What this machine lacks for a bench, or nothing."""
    if bench.root and os.geteuid() != 0:
        return "it needs root"
    for module in bench.modules:
        if machine.output(python(), "-c", f"import {module}") != "":
            return f"it needs {module}: make setup installs it"
    for program in bench.programs:
        if not shutil.which(program.split()[0]):
            return f"it needs {program.split()[0]}"
    for file in TRAINED:
        if file in bench.command and not (options.models / file).exists():
            return f"there is no {file} in the folder of the models: tools/models fetches it"
    if "{peers}" in bench.command and not peers(options):
        return "there is no server to compare with: bench/peers/build.sh builds some"
    if "{vllm}" in bench.command and not (options.peers / "vllm/version").exists():
        return "there is no vLLM: bench/peers/build.sh vllm installs it"
    if CLIENT in bench.command and not (ROOT / CLIENT).exists():
        return "there is no Python client: make test-python-client builds it"
    if "{portable}" in bench.command and not (options.portable and options.portable.exists()):
        return "there is no portable binary: tools/portable builds one"
    return None


def record(name, options):
    """Runs one bench and keeps what came of it; the outcome."""
    bench = BENCHES[name]
    others = machine.others_percent(0.2) if options.busy else machine.wait_for_quiet()
    places = prepared(bench.command, options)
    binary = fresh_binary(options.loquent)
    load, begun = machine.Load(others), time.monotonic()
    quoted = {key: shlex.quote(str(place)) for key, place in places.items()}
    done = run(bench.command.format(**quoted, **not_paths(options)), options)
    load, seconds = load.end(options.busy), round(time.monotonic() - begun)
    kept = {"name": name, "about": bench.about, "engine": bench.engine, "command": shown(bench.command, options),
            "commit": history.commit(ROOT), "tree": history.tree(ROOT),
            "date": datetime.date.today().isoformat(), "seconds": seconds,
            **outcome(done, bench, places), "machine": machine.facts(ROOT), "versions": versions(bench, places, options),
            "binary": {key: binary[key] for key in ("version", "sha256", "built")},
            "models": {path.name: machine.sha256(path) for path in models(bench.command, options) if path.exists()},
            "load": load}
    path = record_path(name, options.machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    tell(f"{name}: {kept['outcome']} after {seconds} s{': ' + kept['cause'][-300:] if kept['cause'] else ''}")
    return kept["outcome"]


def fresh_binary(path):
    """What is known of the binary. Ends the program where it is not that of the sources."""
    binary = machine.binary(path)
    if binary["version"] is None:
        raise SystemExit(f"results: there is no {path.name} that runs: `make results` builds it")
    if binary["newer"] is None:
        raise SystemExit(f"results: {path.name} has no {path.name}.d beside it, which says what it was built from")
    # The book inside is written from pages which change with each record.
    if newer := [source for source in binary["newer"] if not history.is_prose(source)]:
        raise SystemExit(f"results: {path.name} is older than {newer[0]}: build it first")
    return binary


def run(command, options):
    machine.adopt_orphans()
    with tempfile.TemporaryDirectory() as no_profiles:
        # Defaults are measured, not what somebody tuned.
        own = {"LOQUENT": str(options.loquent), "LOQUENT_PROFILES": no_profiles, "PYTHON": str(python()),
               "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, errors="replace",
                              env={**os.environ, **own})
    machine.reap_orphans()
    return done


def outcome(done, bench, places):
    """What a bench printed, and what came of it: measured, a target reached or missed, or failed with the cause."""
    found = tables.captioned_tables(done.stdout)
    kept = {"outcome": "measured", "cause": None, "tables": [rows for _, rows in found],
            "captions": [anonymous(caption, places) for caption, _ in found],
            "notes": [anonymous(line, places) for line in tables.notes(done.stdout)], "runs": []}
    try:
        kept["runs"] = tables.runs(done.stdout)
    except ValueError as error:
        return {**kept, "outcome": "failed", "cause": f"a line `runs: ` is no JSON: {error}"}
    verdicts = [well for *_, well in tables.judged(peer_runs.read(kept)["tables"])]
    if verdicts:
        kept["outcome"] = "reached" if all(verdicts) else "missed"
    said = anonymous((done.stderr or done.stdout).strip()[-600:], places)
    told_of_a_miss = bench.fails_on_miss and done.returncode == 1 and kept["outcome"] == "missed"
    if done.returncode != 0 and not told_of_a_miss:
        return {**kept, "outcome": "failed", "cause": f"exit status {done.returncode}: {said}"}
    if not found:
        return {**kept, "outcome": "failed", "cause": f"it printed no table: {said}"}
    return kept


def prepared(command, options):
    """The places that `command` names, with what is missing built or made."""
    if "{llama}" in command and not options.llama:
        built = subprocess.run([BENCH / "peers/build.sh"], check=True, stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PEERS": str(options.peers)})
        options.llama = pathlib.Path(built.stdout.strip().splitlines()[-1])
    if "{fastapi}" in command and not options.fastapi:
        options.fastapi = fastapi_python()
    make_models(command, options)
    places = {key: getattr(options, key) for key in ("llama", "models", "peers", "loquent", "portable", "fastapi")}
    return {**places, "vllm": options.peers / "vllm"}


def python():
    """The interpreter of the benches, with what the tests need beside it if `make setup` has installed that."""
    ours = ROOT / ".venv/bin/python"
    return ours if ours.exists() else pathlib.Path(sys.executable)


def fastapi_python():
    """An interpreter of its own that has FastAPI and what it is usually served with."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    python = cache / "loquent/peers/fastapi/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        subprocess.run([python, "-m", "pip", "--quiet", "install", *FASTAPI], check=True, stdout=sys.stderr)
    return python


def models(command, options):
    """The models' files that `command` names."""
    return [options.models / file for file in re.findall(r"\{models\}/([\w.-]+\.gguf)", command)]


def make_models(command, options):
    """Makes the models of `command` that are not there."""
    for path in models(command, options):
        if path.name in SHAPES and not path.exists():
            options.models.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            subprocess.run([options.loquent.with_name("shape-model"), *SHAPES[path.name], "--out", part], check=True,
                           stdout=sys.stderr)
            part.rename(path)


def versions(bench, places, options):
    """The versions of both llama.cpps, of every peer and of the programs that a bench uses."""
    lock = (ROOT / "Cargo.lock").read_text() if (ROOT / "Cargo.lock").exists() else ""
    ours = re.search(r'name = "llama-cpp-sys-2"\nversion = "([^"]+)"', lock)
    found = {"Loquent's llama.cpp": f"llama-cpp-sys-2 {ours[1]}" if ours else None}
    if "{llama}" in bench.command:
        found["llama-server"] = machine.read(places["llama"] / "version") or \
            machine.output(places["llama"] / "llama-server", "--version")
    if "{vllm}" in bench.command:
        found["vLLM"] = machine.read(places["vllm"] / "version")
    if "{peers}" in bench.command:
        found |= {str(path.parent.relative_to(options.peers)): machine.read(path)
                  for files in peers(options).values() for path in files}
    if "{fastapi}" in bench.command:
        found["FastAPI"] = packages(places["fastapi"], [package.partition("==")[0] for package in FASTAPI])
    if CLIENT in bench.command:
        found["Python client"] = packages(ROOT / CLIENT, ["loquent-client", "openai", "httpx2"])
    for program in bench.programs:
        found[program.split()[0]] = machine.first_line(*program.split())
    return {name: version and anonymous(version, places) for name, version in found.items()}


def packages(interpreter, names):
    """The versions of an interpreter's packages."""
    code = f"import importlib.metadata as m; print(*(n + '==' + m.version(n) for n in {names!r}))"
    return machine.first_line(interpreter, "-c", code)


def shown(command, options):
    """The command without the paths of this machine."""
    names = {"loquent": "loquent", "models": "MODELS", "peers": "PEERS", "llama": "LLAMA", "portable": "PORTABLE",
             "fastapi": "FASTAPI", "vllm": "VLLM"}
    return command.format(**names, **not_paths(options))


def anonymous(text, places):
    """`text` without the paths of this machine."""
    # The longest first: one may lie in another.
    for key, place in sorted(places.items(), key=lambda item: -len(str(item[1] or ""))):
        if place is not None and str(place) not in ("", "."):
            text = text.replace(str(place), "loquent" if key == "loquent" else key.upper())
    return text.replace(f"{ROOT}/", "").replace(str(pathlib.Path.home()), "~")


def record_path(name, of_machine=""):
    return RECORDS / of_machine / f"{name}.json"


def read(name, of_machine=""):
    """The record of the bench `name`; nothing if it was never run."""
    path = record_path(name, of_machine)
    return json.loads(path.read_text()) if path.exists() else {}


def read_all():
    """All records as they are read, by machine and bench; the first machine has no name."""
    paths = sorted([*RECORDS.glob("*.json"), *RECORDS.glob("*/*.json")])
    return {("" if path.parent == RECORDS else path.parent.name, path.stem): peer_runs.read(json.loads(path.read_text()))
            for path in paths if path.stem in BENCHES}


def generated():
    """What is written from the records: each file's text as it is, and as it should be."""
    records = read_all()
    for name, make in GENERATED.items():
        path = ROOT / name
        old = path.read_text() if path.exists() else ""
        yield path, old, make(old, records)


def write_generated():
    for path, old, new in generated():
        if new != old:
            path.write_text(new)


def check():
    """What is wrong with the records and with what is written from them."""
    problems = []
    known = {record_path(name, of_machine) for of_machine, name in read_all()}
    problems += [f"{path.relative_to(ROOT)} is the record of no bench: remove it"
                 for path in sorted(RECORDS.glob("**/*.json")) if path not in known]
    for key, kept in read_all().items():
        path = record_path(key[1], key[0]).relative_to(ROOT)
        if lacking := FIELDS - set(kept):
            problems.append(f"{path} lacks {', '.join(sorted(lacking))}: measure it again")
        elif kept["outcome"] not in OUTCOMES or (kept["outcome"] == "failed" and not kept["cause"]):
            problems.append(f"{path}: its outcome is {kept['outcome']!r}, its cause {kept['cause']!r}")
    # Records that lack something cannot be shown.
    problems += [f"{path.relative_to(ROOT)} is not what the records say: `make results-tables` writes it"
                 for path, old, new in (generated() if not problems else []) if new != old]
    return problems + check_history()


def check_history():
    """Records of commits that are not in this history; all of them where the history is not all here."""
    kept = {f"{of_machine}/{name}".lstrip("/"): one for (of_machine, name), one in read_all().items()}
    if SIMULATED.exists():
        kept["sim"] = json.loads(SIMULATED.read_text())
    if history.is_shallow(ROOT):
        return ["the history is not all here, so that the records' commits cannot be looked for"] if kept else []
    return [f"{name}: its commit {str(kept[name].get('commit'))[:9]} is no ancestor of HEAD, and no commit has its tree "
            f"{str(kept[name].get('tree'))[:9]}: measure it again" for name in history.unknown(ROOT, kept)]


if __name__ == "__main__":
    sys.exit(main())
