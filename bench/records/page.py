"""What the records look like in bench/RESULTS.md and in README: every figure there comes from here."""

import itertools
import re
import textwrap

from . import peer_runs, tables
from .benches import BENCHES

#: A placeholder: the bench, the beginning of the row's cells, the beginning of the column's head.
PLACEHOLDER = re.compile(r"\{([\w-]+)\|([^|}]*)\|([^}]*)\}")
#: What the caption of a comparison says of settings that were left out: bench/peers/compare.py.
TRIED = re.compile(r"the best of (\d+) settings, [^;]*(?:; \d+ of them failed)?; no time for ([^;]*);")
HEADING = "## How fast\n"
TIMES = re.compile(r"<!-- times -->.*?<!-- end of times -->", re.DOTALL)
#: The servers of README's comparison that are measured, by the beginning of the peers' names.
COMPARED = {"llama": "llama-server", "vllm": "vLLM"}
#: Parts of other pages: see measured.py.
MEASURED = re.compile(r"<!-- measured: ([\w-]+) -->.*?<!-- end of measured -->", re.DOTALL)

#: README's rows: the measure, and its figure. A row one of whose records is missing is left out.
README_ROWS = [
    ("16 concurrent requests: tokens/s", "{stage15|peers|completion tokens/s}"),
    ("16 concurrent requests: tokens/s", "{stage15-smollm2|peers|completion tokens/s}"),
    ("16 concurrent requests: tokens/s", "{stage15-gemma3|peers|completion tokens/s}"),
    ("one request: tokens/s", "{one|peers|completion tokens/s}"),
    ("one request: tokens/s", "{one-smollm2|peers|completion tokens/s}"),
    ("one request: tokens/s", "{one-gemma3|peers|completion tokens/s}"),
    *(("peak memory at 16 concurrent requests", f"{{{name}|peers|peak memory}}")
      for name in ("stage15", "stage15-smollm2", "stage15-gemma3")),
    ("48 streams through Loquent to three servers: throughput against the three alone",
     "{upstreams|one of 48|ratio}"),
    ("in front of llama-server: throughput through Loquent against direct", "{upstream|output tokens/s|ratio}"),
    *((f"time without new text over an emulated link that loses 15 % in bursts, round trip {rtt}",
       f"{{delivery|{rtt};Loquent|against the better TCP}} against the better TCP, "
       f"{{delivery|{rtt};Loquent|against the plain}} against a plain QUIC stream; "
       f"{{delivery|{rtt};Loquent|kB/s}} kB/s, TCP with BBR {{delivery|{rtt};SSE, TCP BBR|kB/s}}")
      for rtt in ("400 ms", "100 ms", "50 ms")),
    ("500 readers of one answer by event stream",
     "{readers|500|afterwards, of a core} of a core, {readers|500|memory per reader} each"),
]

#: The ten lines at the head of RESULTS.md. A line one of whose records is missing is left out.
LINES = [
    "16 concurrent requests, tokens per second: {stage15|peers|completion tokens/s}; peak memory "
    "{stage15|peers|peak memory}. One request: {one|peers|completion tokens/s}. Both on Qwen3-0.6B's "
    "shape with random weights",
    "The same on SmolLM2-135M, a trained model: {stage15-smollm2|peers|completion tokens/s}; "
    "peak memory {stage15-smollm2|peers|peak memory}; one request {one-smollm2|peers|completion tokens/s}",
    "Real packets over a link that loses 15 % in bursts, simulated tokens, time without new text against the better "
    "TCP: {delivery|400 ms;Loquent|against the better TCP} at a round trip of 400 ms, "
    "{delivery|100 ms;Loquent|against the better TCP} at 100 ms",
    "500 readers of one simulated answer by event stream: {readers|500|afterwards, of a core} of a core",
    "In front of llama-server, a tiny shape with random weights: {upstream|output tokens/s|ratio} of its throughput. In "
    "front of three simulated servers: {upstreams|one of 48|ratio}. The engine in a process of its own, random weights: "
    "{process|stage15: tokens/s|ratio}",
    "Processor time per delivered token of a simulated engine, of FastAPI's: {cpu|loquent, interval 1|/ FastAPI} over 64 "
    "connections, {cpu|loquent-http2, interval 1|/ FastAPI} where one HTTP/2 connection carries 64 streams",
    "By format and shape, random weights, against llama.cpp's kernels in the same program: {formats|range|ratio, 1 stream} "
    "times at one stream, {formats|range|ratio, 16 streams} at 16; with AVX2 alone {formats-avx2|range|ratio, 1 stream} "
    "and {formats-avx2|range|ratio, 16 streams} times",
    "A 4,000-token prompt beside four streams, Qwen3-0.6B's shape with random weights: p99 of their gaps "
    "{inject|peers|ICL p99}; its own time to first token {inject|peers|injected TTFT}",
    "Streams of a simulated engine leave downloads on one bottleneck {fairness|range|ratio} of what event streams leave "
    "them. Under all attacks at once {abuse|honest streams lost|under attack} honest streams are lost, with gaps "
    "{abuse|ICL p99|ratio} times the quiet ones",
    "A model in stages on one machine, random weights: {stages|batched ÷ lanes,1-thread, 16|tokens/s} times the lanes that "
    "are not batched at 16 concurrent, and {stages|batched ÷ unsplit, 16|tokens/s} of one process; {stages|targets|missed}",
]

INTRO = """# Results

Written by `make results-tables` from the records in `bench/results`, which `make results` makes; what has no record is
not here, and [README](README.md) has the command for it. A record holds the commit and the tree that was measured, the
machine, the versions, how busy the machine was, and the value of each run. Ratios taken in one run carry over to other
machines; absolute figures do not. Where a shape has random weights, its speed is real and its text has no meaning; a
simulated engine computes nothing, and its tokens come at a set rate over real HTTP and QUIC. The load generator runs on
the same processors as the servers.
"""


def results_md(records):
    """RESULTS.md. `records` has the records by machine and bench; machine is empty for the first one."""
    machines = machine_names(records)
    parts = [INTRO, "## In ten lines\n", numbered(lines(first_machine(records))) or "Nothing is measured yet.\n"]
    parts += ["## Targets\n", targets(records)]
    if records:
        parts += ["## Machines\n", machine_table(machines, records)]
    for name, bench in BENCHES.items():
        of_bench = {machine: record for (machine, at), record in records.items() if at == name}
        if not of_bench:
            continue
        parts.append(f"## {name}: {bench.about}\n")
        if bench.note:
            parts.append(filled(bench.note) + "\n")
        parts += [rendered(record, machines[facts_of(record)]) for _, record in sorted(of_bench.items())]
        if name == "stage15":
            parts.append("![Ratios to llama-server](../docs/img/llama-server-ratios.svg)\n")
    return "\n".join(parts)


def first_machine(records):
    return {name: record for (machine, name), record in records.items() if not machine}


def succeeded(records):
    """Those of the first machine that did not fail."""
    return {name: record for name, record in first_machine(records).items() if record["outcome"] != "failed"}


def lines(records):
    return [f"{text}." for line in LINES if (text := told(line, records))]


def numbered(texts):
    fill = lambda at, text: textwrap.fill(text, 120, initial_indent=f"{at}. ", subsequent_indent="   ",
                                          break_long_words=False, break_on_hyphens=False)
    return "\n".join(fill(at, text) for at, text in enumerate(texts, 1)) + "\n" if texts else ""


def told(text, records):
    """`text` with the records' figures in its placeholders, or nothing where one is missing."""
    found = {match[0]: figure(records, *match.groups()) for match in PLACEHOLDER.finditer(text)}
    if None in found.values():
        return None
    is_busy = any(records[in_place_of(records, name)]["load"]["busy"] for name, *_ in PLACEHOLDER.findall(text))
    return PLACEHOLDER.sub(lambda match: found[match[0]], text) + " (on a busy machine)" * is_busy


def in_place_of(records, name):
    """The bench, or its short form where only that has a record."""
    return name if name in records or f"{name}-quick" not in records else f"{name}-quick"


def figure(records, name, row, column):
    record = records.get(in_place_of(records, name))
    if not record or record["outcome"] == "failed":
        return None
    if row == "peers":
        return peers(record, column)
    if row == "targets":
        found = [well for *_, well in tables.judged(record["tables"])]
        return f"{found.count(False)} of {len(found)} targets are missed"
    if row == "range":
        values = tables.column(record["tables"], column)
        return f"{min(values):.2f} to {max(values):.2f}" if values else None
    return tables.cell(record["tables"], row, column)


def ratios_to_peers(record, measure):
    """The ratio [least, most] to each peer that a bench compares with, the least favourable first.

    Behind it stands in brackets what the ratio doesn't say: falling runs, and settings of the peer that were left out.
    """
    found = []
    for (head, *rows), caption in itertools.zip_longest(record["tables"], record.get("captions", ())):
        ratio = tables.cell([[head, *rows]], measure, "ratio") if head[2:3] == ["Loquent"] else None
        if ratio and tables.number(ratio) is not None:
            ratio, _, why = ratio.removesuffix(")").partition(" (")
            notes = "; ".join(filter(None, [why, tried(caption or "")]))
            found.append((tables.number(ratio), f"{ratio} ({notes})" if notes else ratio, head[1]))
    return sorted(found, reverse=not peer_runs.more_is_better(measure))


def tried(caption):
    """How many of a peer's settings were tried, where some were left out."""
    found = TRIED.search(caption)
    if not found:
        return ""
    settings = int(found[1])
    return f"{settings} of {settings + len(found[2].split(', '))} settings tried"


def peers(record, measure):
    # What is said of a ratio stands behind the peer.
    told = [f"{ratio.partition(' (')[0]} times {peer}'s{''.join(ratio.partition(' (')[1:])}"
            for _, ratio, peer in ratios_to_peers(record, measure)]
    return "; ".join(told) or None


def targets(records):
    """Every target with what was measured. Those of zero, which count losses and errors, are summed up apart: they say
    nothing of speed, and are many."""
    out = ["| bench | measure | what computes | measured | target | |", "| --- | --- | --- | --- | --- | --- |"]
    speeds, losses = [], []
    for (machine, name), record in ordered(records):
        shown = f"{name} ({machine})" if machine else name
        if record["outcome"] == "failed":
            speeds.append(False)
            out.append(f"| {shown} | | {engine(record)} | | | **failed** |")
            continue
        is_busy = ", on a busy machine" * record["load"]["busy"]
        for label, cell, target, well in tables.judged(record["tables"], record["captions"]):
            (losses if target == NOTHING else speeds).append(well)
            out.append(f"| {shown} | {label} | {engine(record)} | {cell} | {target} "
                       f"| {'reached' if well else '**missed**'}{is_busy} |")
    if len(out) == 2:
        return "Nothing is measured yet.\n"
    sums = f"{speeds.count(False)} of {len(speeds)} are missed."
    if losses:
        sums += (f" {len(losses)} more count what was lost, doubled, refused or failed, and want 0: "
                 f"{losses.count(False)} of these are missed.")
    return filled(sums) + "\n\n" + "\n".join(out) + "\n"


def engine(record):
    """What computes. vLLM reads no GGUF: bench/peers/checkpoint.py makes it a checkpoint of the same weights."""
    has_vllm = any(table[0][1] == "vllm" for table in filter(peer_runs.is_comparison, record["tables"]))
    return record["engine"] + "; in vLLM the same weights as bfloat16" * has_vllm


def ordered(records):
    order = list(BENCHES)
    return sorted(records.items(), key=lambda item: (order.index(item[0][1]), item[0][0]))


def missed(records):
    """A line for each target that was missed and for each bench that failed."""
    for (machine, name), record in ordered(records):
        shown = f"{name} ({machine})" if machine else name
        if record["outcome"] == "failed":
            yield f"{shown} failed: {' '.join(record['cause'].split())[-200:]}"
            continue
        for label, cell, target, well in tables.judged(record["tables"], record["captions"]):
            if not well:
                yield f"{shown}: {label}: {cell}, wanted {target}"


#: The target of counts of losses and errors.
NOTHING = "<= 0"
FACTS = ("processor", "vendor", "family", "model", "stepping", "flags", "cores", "ram_mib", "kernel", "hypervisor",
         "governor", "compilers")


def facts_of(record):
    return repr([record["machine"][fact] for fact in FACTS])


def machine_names(records):
    """A letter for each machine that the records name, by its facts."""
    facts = dict.fromkeys(facts_of(record) for _, record in ordered(records))
    return {fact: chr(ord("A") + at) if at < 26 else f"A{at}" for at, fact in enumerate(facts)}


def machine_table(letters, records):
    out = ["| | processor | instructions | memory | kernel | compilers |", "| --- | --- | --- | --- | --- | --- |"]
    seen = set()
    for _, record in ordered(records):
        machine, letter = record["machine"], letters[facts_of(record)]
        if letter in seen:
            continue
        seen.add(letter)
        virtual = f", virtual ({machine['hypervisor']})" if machine["hypervisor"] else ""
        governor = f", governor {machine['governor']}" if machine["governor"] else ""
        memory = f"{machine['ram_mib'] / 1024:.1f} GiB" if machine["ram_mib"] else ""
        compilers = "; ".join(text for text in dict.fromkeys(machine["compilers"].values()) if text)
        out.append(f"| {letter} | {named(machine)}{virtual}{governor} | {instructions(machine)} | {memory} "
                   f"| {machine['kernel']} | {compilers} |")
    return "\n".join(out) + "\n"


def named(machine):
    """The processor with what tells its generation."""
    which = [f"{key} {machine[key]}" for key in ("family", "model") if machine[key]]
    return ", ".join([f"{machine['cores']} cores of {machine['processor']}", *which])


def instructions(machine):
    known = ("avx2", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm")
    return ", ".join(name for name in known if name in machine["flags"].split()) or "no vector extensions of note"


def rendered(record, letter):
    """One record as Markdown."""
    # The build's settings behind a version are in the record.
    versions = ", ".join(f"{name}: {' '.join(version.split()[:2]).strip(',')}" for name, version in record["versions"].items()
                         if version)
    about = [f"{record['date']}, commit {record['commit'][:9]}, tree {record['tree'][:9]}, machine {letter}",
             engine(record)[0].upper() + engine(record)[1:], versions]
    out = [f"`{record['command']}`\n", filled(". ".join(filter(None, about)) + ".") + "\n", filled(busy(record["load"])) + "\n"]
    if record["outcome"] == "failed":
        out += ["**Failed**:\n", f"```\n{record['cause']}\n```\n"]
    out += [filled(note) + "\n" for note in record["notes"]]
    for caption, (head, *rows) in zip(record["captions"], record["tables"], strict=True):
        out += [filled(caption) + "\n"] if caption else []
        out.append("\n".join([row_of(head), f"|{' --- |' * len(head)}", *map(row_of, rows)]) + "\n")
    found = [well for *_, well in tables.judged(record["tables"])]
    if found and record["outcome"] != "failed":
        out.append(f"{sum(found)} of {len(found)} targets reached.\n")
    return "\n".join(out)


def row_of(cells):
    return f"| {' | '.join(cells)} |"


def busy(load):
    others, steal = load["others_percent"], load["steal_percent"]
    how = "**The machine was busy**" if load["busy"] else "The machine was quiet"
    return (f"{how}: other processes took {others:.1f} % of the processors meanwhile, the hypervisor kept "
            f"{steal:.1f} % back; load {load['load_before'][0]:.2f} before, {load['load_after'][0]:.2f} after.")


def filled(text):
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def how_fast(records):
    """README's section: its heading, and everything below it."""
    here = first_machine(records)
    rows = [(measure, text, in_place_of(here, PLACEHOLDER.search(template)[1])) for measure, template in README_ROWS
            if (text := told(template, here))]
    out = [HEADING, "<!-- Written by `make results-tables` from bench/results. -->\n"]
    if rows:
        machines = dict.fromkeys(named(here[name]["machine"]) + f" ({instructions(here[name]['machine'])})"
                                 for *_, name in rows)
        builds = len({here[name]["commit"] for *_, name in rows})
        of = "the build of one commit" if builds == 1 else f"builds of {builds} commits"
        out.append(filled(f"Measured on {' and on '.join(machines)}, which the load generator shares with the servers; "
                          f"the rows are of {of}. "
                          "Each row is from the section of [bench/RESULTS.md](bench/RESULTS.md) that it names, with its "
                          "command, its commit and every target that was missed. Ratios are medians [least, most] of "
                          "the runs where the figure does not say otherwise; figures of links that lose packets are means "
                          "[least, most] of the seeds. Rows of a simulated engine measure delivery alone, and random weights give real speed and no "
                          "meaningful text.") + "\n")
        out.append("\n".join(["| measure | figure | what computes | section |", "| --- | --- | --- | --- |",
                              *(f"| {measure} | {text} | {engine(here[name])} | {name} |"
                                for measure, text, name in rows)]) + "\n")
    else:
        out.append("Nothing is measured of this version yet: `make results` measures.\n")
    out.append("On processors without AVX2 Loquent computes with llama.cpp's kernels and has their speed.\n")
    return "\n".join(out)


def times(records):
    """How many times as fast as the peers of README's comparison Loquent is at 16 requests: the least and the most."""
    found = [(ratio, COMPARED[peer.partition("-")[0]]) for (_, name), record in records.items()
             if name.split("-")[0] == "stage15"
             and record["outcome"] != "failed" and "avx512_vnni" in record["machine"]["flags"].split()
             for ratio, _, peer in ratios_to_peers(record, "completion tokens/s") if peer.partition("-")[0] in COMPARED]
    if not found:
        return ""
    least, most = (f"{value:.1f}" for value in (min(found)[0], max(found)[0]))
    whose = " and ".join(sorted({peer for _, peer in found}))
    return f", [{least if least == most else f'{least} to {most}'} times as fast](#how-fast) as {whose} at 16 requests"


def readme(text, records):
    """README with its section and its range of the records."""
    before, heading, rest = text.partition(HEADING)
    if not heading or not TIMES.search(text):
        raise SystemExit(f"results: README has no heading {HEADING.strip()!r}, or no mark <!-- times -->")
    after = rest.partition("\n## ")
    whole = before + how_fast(records) + "".join(after[1:])
    return TIMES.sub(lambda _: f"<!-- times -->{times(records)}<!-- end of times -->", whole)


def hand_written(text):
    """README, or another page, without what is written from the records."""
    before, _, rest = text.partition(HEADING)
    return MEASURED.sub("", TIMES.sub("", before + "".join(rest.partition("\n## ")[1:])))
