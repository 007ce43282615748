#!/usr/bin/env python3
"""Runs the benches, keeps their figures as JSON, and writes the tables of RESULTS.md from it.

    bench/results.py --models DIR                  every bench that has no figures of this commit yet
    bench/results.py --models DIR --only stage15,portable
    bench/results.py --list                        what there is, and how long each takes
    bench/results.py --render                      write the tables anew, and run nothing

`make results` builds one release binary first, so that all figures are of one build. The figures of a
bench are in bench/results/NAME.json: the rows that it printed, its command, the commit, the processor,
the versions of both llama.cpps, and what failed. RESULTS.md has each as a table between the markers
`<!-- results: NAME -->` and `<!-- end of results -->`; the text around them is written by hand.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import time

BENCH = pathlib.Path(__file__).resolve().parent
ROOT = BENCH.parent
sys.path.insert(0, str(BENCH / "peers"))
import plot  # noqa: E402
RECORDS = BENCH / "results"
RESULTS = BENCH / "RESULTS.md"
PICTURE = ROOT / "docs/img/llama-server-ratios.svg"

# A machine that computes anything else gives no figures: load of the last minute.
MOST_LOAD = 0.5

# Random weights of real shapes, made where they are missing: fine for speed, meaningless as text.
MODELS = {
    "q.gguf": ["qwen3-0.6b", "--quant", "Q4_K_M"],
    "q8b.gguf": ["qwen3-8b", "--quant", "Q4_K_M"],
    "gpt2.gguf": ["gpt2", "--quant", "Q8_0"],
    "tiny.gguf": ["tiny", "--quant", "Q4_K_M"],
}

# Each prints Markdown tables.
COMPARE = "python3 bench/peers/compare.py {name} --model {models}/%s --llama {llama} --loquent {loquent}"
BENCHES = {
    "startup": ("start to ready, beside llama-server", 1, COMPARE % "q.gguf"),
    "stage15": ("40 requests, 16 concurrent, beside llama-server", 6, COMPARE % "q.gguf"),
    "one": ("one stream, beside llama-server", 3, COMPARE % "q.gguf"),
    "rose050": ("64 requests at once, GPT-2's shape, beside llama-server", 4, COMPARE % "gpt2.gguf"),
    "tiny16": ("16 concurrent, a tiny shape, beside llama-server", 2, COMPARE % "tiny.gguf"),
    "tiny64": ("64 concurrent, a tiny shape, beside llama-server", 2, COMPARE % "tiny.gguf"),
    "inject": ("a 4,000-token prompt beside four streams, beside llama-server", 8, COMPARE % "q.gguf"),
    "roofline": ("steps beside what the machine can do", 3,
                 "bench/roofline.py --model {models}/q.gguf --loquent {loquent}"),
    "formats": ("our kernels beside llama.cpp's, by shape and format", 18,
                "bench/formats.py --models {models} --loquent {loquent} --remove"),
    "portable": ("the portable binary beside the native one", 8,
                 "bench/portable.sh {models}/q.gguf {loquent} {portable}"),
    "stages": ("a model in stages, batched and in lanes", 15, "bench/stages.sh {models}/q.gguf"),
    "seed": ("the Skippy pull request's setting: a shape of 8B in 2 and 4 stages", 12,
             "TOKENS=16 bench/stages.sh {models}/q8b.gguf seed"),
    "readers": ("500 readers of one answer", 2, "bench/readers.sh"),
    "upstreams": ("three upstream servers behind Loquent, and routing by prompt", 3,
                  "python3 bench/upstreams.py --loquent {loquent}"),
    "process": ("the engine in a process of its own", 3, "bench/engine-process.sh {models}/q.gguf {loquent}"),
    "replicas": ("200 streams while parts of a cluster are killed", 3, "bench/replicas.py --loquent {loquent}"),
    "burst": ("bursts of readers, by need and first come, first served", 5, "bench/burst.py --loquent {loquent}"),
    "cpu": ("processor time per delivered token, beside FastAPI", 2,
            "bench/peers/delivery.py --python {fastapi} --loquent {loquent} --runs 5 --only-fastapi"),
    "delivery": ("lossy links: Loquent, TCP and a plain QUIC stream; needs root", 8, "bench/delivery-all.sh --quick"),
}


def main():
    options = arguments()
    if options.list:
        for name, (about, minutes, _) in BENCHES.items():
            print(f"{name:10} {minutes:3} min  {about}")
        return 0
    if options.render:
        write_tables()
        return 0
    failed = [name for name in chosen(options) if not record(name, options)]
    write_tables()
    if failed:
        print(f"results: {', '.join(failed)} failed; the cause is in bench/results", file=sys.stderr)
    return 1 if failed else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the benches")
    parser.add_argument("--render", action="store_true", help="write the tables of RESULTS.md, run nothing")
    parser.add_argument("--only", default="", metavar="NAMES", help="these benches, separated by commas")
    parser.add_argument("--force", action="store_true", help="run again what has figures of this commit")
    parser.add_argument("--busy", action="store_true", help="run though the machine is busy")
    folder = pathlib.Path
    parser.add_argument("--models", type=folder, default=ROOT / "bench/out", help="folder of the models' files")
    parser.add_argument("--llama", type=folder, help="folder of a llama-server [bench/peers/build.sh builds one]")
    parser.add_argument("--loquent", type=folder, default=ROOT / "target/release/loquent")
    parser.add_argument("--fastapi", type=folder, metavar="PYTHON", help="an interpreter that has FastAPI, uvicorn, "
                        "uvloop and httptools [one is set up]")
    parser.add_argument("--portable", type=folder, help="binary of tools/portable", default=next(
        iter(sorted((ROOT / "target/dist/bin").glob("*-linux-gnu/loquent"), reverse=True)), ""))
    return parser.parse_args()


def chosen(options):
    """The names of the benches to run, in their order."""
    names = [name for name in options.only.split(",") if name]
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        raise SystemExit(f"results: no bench is called {', '.join(unknown)}; --list names them")
    commit = commit_here()
    has_figures = [name for name in BENCHES if not options.force and read(name).get("commit") == commit
                   and not read(name).get("failure")]
    for name in has_figures:
        if not names or name in names:
            print(f"results: {name} has figures of {commit}; --force runs it again", file=sys.stderr)
    return [name for name in BENCHES if name not in has_figures and (not names or name in names)]


def record(name, options):
    """Runs one bench and keeps what it printed; whether it succeeded."""
    about, minutes, command = BENCHES[name]
    if not options.busy:
        wait_for_quiet()
    if "{llama}" in command and not options.llama:
        built = subprocess.run([BENCH / "peers/build.sh"], check=True, stdout=subprocess.PIPE, text=True)
        options.llama = pathlib.Path(built.stdout.strip())
    if "{fastapi}" in command and not options.fastapi:
        options.fastapi = fastapi_python()
    make_models(command, options)
    places = {key: getattr(options, key) for key in ("models", "llama", "loquent", "portable", "fastapi")}
    command = command.format(name=name, **places)
    print(f"results: {name}: {about}, about {minutes} min", file=sys.stderr, flush=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as no_profiles:
        # Defaults are measured, not what somebody tuned.
        done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, errors="replace",
                              env={**os.environ, "LOQUENT": str(options.loquent), "LOQUENT_PROFILES": no_profiles})
    found = captioned_tables(done.stdout)
    tables = [rows for _, rows in found]
    figures = {
        "name": name, "about": about, "command": shown(command, places), "commit": commit_here(),
        "date": datetime.date.today().isoformat(), "seconds": round(time.monotonic() - begun),
        **machine(), "tables": tables, "captions": [shown(caption, places) for caption, _ in found],
        "failure": None,
    }
    if done.returncode != 0 or not tables:
        figures["failure"] = (done.stderr or done.stdout).strip()[-600:] or f"exit status {done.returncode}"
        if read(name).get("tables"):
            # Figures of before are better than none.
            print(f"results: {name}: {figures['failure']}", file=sys.stderr)
            return False
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    return figures["failure"] is None


def fastapi_python():
    """An interpreter of its own that has FastAPI and what it is usually served with."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    python = cache / "loquent/peers/fastapi/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        packages = ["fastapi==0.116.2", "uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0"]
        subprocess.run([python, "-m", "pip", "--quiet", "install", *packages], check=True, stdout=sys.stderr)
    return python


def make_models(command, options):
    """Makes the models of `command` that are not there."""
    for file, shape in MODELS.items():
        if file in command and not (path := options.models / file).exists():
            options.models.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            subprocess.run([options.loquent.with_name("shape-model"), *shape, "--out", part], check=True)
            part.rename(path)


def wait_for_quiet():
    """Ends the program where something else computes."""
    for _ in range(12):
        if os.getloadavg()[0] < MOST_LOAD:
            return
        time.sleep(10)
    raise SystemExit(f"results: the machine is busy (load {os.getloadavg()[0]:.1f}); --busy measures all the same")


def shown(command, places):
    """The command without the paths of this machine."""
    for key, place in places.items():
        if str(place) in ("", ".", "None"):
            continue  # not given
        command = command.replace(str(place), "loquent" if key == "loquent" else key.upper())
    return command


def commit_here():
    done = subprocess.run(["git", "rev-parse", "--short=9", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def machine():
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    known = ("avx2", "avx_vnni", "avx512_vnni", "amx_int8")
    lock = (ROOT / "Cargo.lock").read_text()
    ours = re.search(r'name = "llama-cpp-sys-2"\nversion = "([^"]+)"', lock)
    theirs = re.search(r"LLAMA_CPP_PYTHON:-([0-9.]+)", (BENCH / "peers/build.sh").read_text())
    return {
        "processor": processor(fields), "cores": os.cpu_count(),
        "instructions": [name for name in known if name in fields.get("flags", "").split()],
        "llama.cpp": {"Loquent's": f"llama-cpp-sys-2 {ours[1]}" if ours else None,
                      "llama-server's": f"llama-cpp-python {theirs[1]}" if theirs else None},
    }


def processor(fields):
    """The processor by what /proc/cpuinfo says: a name alone leaves open which generation it is."""
    name = fields.get("model name", "unknown")
    return f"{name}, family {fields['cpu family']}, model {fields['model']}" if "cpu family" in fields else name


def captioned_tables(text):
    """The Markdown tables in `text`, each with the line before it, which says how it was made; empty if there is none.

    A table is a list of rows, a row a list of cells; the first row is the head.
    """
    found, caption, rows = [], "", []
    for line in [*map(str.strip, text.splitlines()), ""]:
        if len(line) > 2 and line.startswith("|") and line.endswith("|"):
            cells = [cell.strip() for cell in line[1:-1].split("|")]
            if not all(re.fullmatch(r":?-{2,}:?", cell) for cell in cells):
                rows.append(cells)
            continue
        if rows:
            found.append((caption, rows))
            caption, rows = "", []
        if line:
            caption = "" if line.startswith("#") else line
    return found


def read(name):
    """What is known of the bench `name`; nothing if it was never run."""
    path = RECORDS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def rendered(figures):
    """The figures of one bench as Markdown."""
    versions = ", ".join(f"{whose} llama.cpp: {version}" for whose, version in figures["llama.cpp"].items() if version)
    with_what = ", ".join(figures["instructions"]) or "no vector extensions of note"
    lines = [f"`{figures['command']}`", "",
             filled(f"{figures['date']}, commit {figures['commit']}, {figures['cores']} cores of "
                    f"{figures['processor']} ({with_what}). {versions}.")]
    if figures["failure"]:
        lines += ["", "**Failed**:", "", "```", figures["failure"], "```"]
    for caption, (head, *rows) in zip(figures["captions"], figures["tables"], strict=True):
        lines += ["", filled(caption)] if caption else []
        lines += ["", f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def filled(text):
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def with_tables(text, records):
    """RESULTS.md's `text` with its blocks written anew from `records`, by name; new ones at the end."""
    for name in records:
        if f"<!-- results: {name} -->" not in text:
            heading = f"\n## {name}: {BENCHES[name][0]}\n\n" if name in BENCHES else "\n"
            text = f"{text}{heading}<!-- results: {name} -->\n<!-- end of results -->\n"
    def block(match):
        figures = records.get(match[1])
        inner = rendered(figures) if figures else "Not measured yet."
        return f"<!-- results: {match[1]} -->\n\n{inner}\n\n<!-- end of results -->"
    return re.sub(r"<!-- results: (\w+) -->.*?<!-- end of results -->", block, text, flags=re.DOTALL)


def write_tables():
    records = {name: read(name) for name in BENCHES if read(name)}
    RESULTS.write_text(with_tables(RESULTS.read_text(), records))
    PICTURE.write_text(plot.svg(records))


if __name__ == "__main__":
    sys.exit(main())
