"""Figures in the documents come from somewhere: a measured figure beside no record is refused.

bench/RESULTS.md and README's "How fast" are made from the records and have tests of their own. Everywhere else a
figure that only a measurement can give stands beside its source, in the same paragraph or table: a link to a section
of RESULTS.md that has it, or a record in the repository that has it. Limits, defaults and arithmetic that look like
measurements are listed in figures_allowed.json: the page, the words, and what they are.
"""

import hashlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = Path(__file__).with_name("figures_allowed.json")
RESULTS = ROOT / "bench/RESULTS.md"

# Other pages may take figures from this one.
SIMULATED = "docs/eloquent.md"
# Written from the records, and held to them by tests of their own.
WRITTEN = (r"<!-- (times) -->.*?<!-- end of times -->|<!-- (sim): [\w-]+ -->.*?<!-- end of sim -->"
           r"|<!-- measured: [\w-]+ -->.*?<!-- end of measured -->")
SIMULATORS_RECORD = "bench/sim.json"

NUMBER = r"(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)"
WORD = r"(?:two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|fifty|a hundred)"
COUNT = rf"(?:{NUMBER}|{WORD})"
# What has such a unit was measured, wherever it stands.
MEASURED = [
    rf"{COUNT} (?:tokens|requests|messages|answers)(?:/s| per second| a second)",
    rf"{COUNT} ?[kMG]i?B/s",
    rf"{COUNT} ?(?:[kMG]?bit|[kMG]i?B) (?:less|more|of memory|of RAM|resident|at its peak)",
    rf"{COUNT} ?(?:µs|ns|microseconds|nanoseconds)\b",
    rf"{COUNT} (?:bits per token|nats\b|GFLOPS|core-seconds)",
    rf"{COUNT} (?:%|percent|per cent) (?:of (?:a|one) (?:core|processor)|of the time)",
    rf"{COUNT} (?:%|percent|per cent) (?:less|more|faster|slower|below|above)",
    rf"{COUNT} times (?:as (?:fast|long|much)|the|faster|slower|more|less|llama|that|those)\b",
    rf"{COUNT}x (?:as|faster|slower|more|less)\b",
    r"\b(?:twice|half|a third|a quarter|a fifth|a tenth) (?:as (?:fast|long|much)|the (?:speed|throughput))",
    r"\b(?:a third|a quarter|a fifth|a tenth) (?:less|more|faster|slower)",
    rf"{COUNT} ?ms (?:a|per) (?:token|step)",
    rf"\b(?:takes?|took|costs?|needs?) (?:some |about |only )?{COUNT} ?(?:ms|s|seconds|minutes|hours|[kMG]i?B)\b",
    rf"{COUNT} ?m?s (?:to|before|until|after) the first token",
    rf"[−+-]{NUMBER} ?%",
    # The project writes shares and ratios that were measured without the zero.
    r"(?<![\w.)\]`/])\.\d{2,3}(?![\w.])",
]
# Other quantities were measured if their sentence compares or speaks of a measurement.
QUANTITY = rf"(?<![\w.`-]){COUNT} ?(?:%|percent|per cent|µs|ms|s|seconds?|minutes?|hours?|[kMG]i?B|bytes)(?![\w/-])"
COMPARES = (
    r"\b(?:faster|slower|measured|instead of|saves|saved|cheaper|on average|median|p50|p95|p99|in practice|typically"
    r"|as a rule|speed-?up|throughput|overhead|against TCP|than TCP|than llama|of a core|of a processor|took|peak)\b"
)

# A column of a table with such a heading was measured.
MEASURED_COLUMN = r"tokens/s|[kMG]i?B/s|\bms\b|µs|\b[MG]i?B\b|\bratio\b|\bexact\b|\bstall"


def documents():
    """The pages that a reader takes figures from, but for those that are made from the records."""
    pages = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md", "models/README.md",
                                      "python/loquent-client/README.md", "packaging/wheel/README.md")]
    for folder in ("docs", "spec", "web/*"):
        pages += sorted(ROOT.glob(f"{folder}/*.md"))
    return pages


def blocks(text):
    """(line, section, text, context) of each paragraph, item and table outside code; where it may name its source: in
    itself, a table also in the paragraph before it."""
    found, lines, start, section, is_code, of_section = [], [], 1, "", False, {}

    def end():
        if lines:
            found.append((start, section, "\n".join(lines)))
            lines.clear()

    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            is_code = not is_code
            end()
        elif is_code:
            continue
        elif line.startswith("#"):
            end()
            section = line.lstrip("# ")
        elif not line.strip() or line.startswith("<!--"):
            end()
            if mark := re.fullmatch(r"<!-- record: (\S+) -->", line):
                of_section[section] = mark[1]
        else:
            # An item of a list is read by itself, with the lines that go on with it.
            if re.match(r"\s*(?:[-*]|\d+\.) ", line):
                end()
            if not lines:
                start = number
            lines.append(line)
    end()
    joined = []
    for at, (start, section, body) in enumerate(found):
        is_table = body.lstrip().startswith("|")
        before = found[at - 1] if at and found[at - 1][1] == section else None
        context = f"{before[2]}\n\n{body}" if is_table and before else body
        joined.append((start, section, body, f"{of_section.get(section, '')} {context}"))
    return joined


def without_links(text):
    """The text without the targets of its links, code, and names of rules and sections."""
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"`[^`]*`", "`", text)
    return re.sub(r"\b[DS]-\d+(?:\.\d+)?|\bRFC ?\d+|\bSection \d+(?:\.\d+)*|\{\{[^}]*\}\}", "", text)


def figures(body, is_specification=False):
    """What in a block looks measured, as it is written. A specification compares its own limits and times."""
    found = []
    sentences = body.splitlines() if body.lstrip().startswith("|") else re.split(r"(?<=[.:;?!])\s", body)
    for sentence in sentences:
        sentence = without_links(" ".join(sentence.split()))
        for pattern in MEASURED:
            found += [match.group() for match in re.finditer(pattern, sentence)]
        if not is_specification and re.search(COMPARES, sentence):
            found += [match.group() for match in re.finditer(QUANTITY, sentence)]
    return found + column_figures(body)


def column_figures(body):
    """The numbers in a table's measured columns, cell by cell."""
    rows = [line.strip().strip("|").split("|") for line in body.splitlines() if line.lstrip().startswith("|")]
    if not rows:
        return []
    measured = [at for at, heading in enumerate(rows[0]) if re.search(MEASURED_COLUMN, without_links(heading))]
    cells = (row[at].strip() for row in rows[2:] for at in measured if at < len(row))
    return [cell for cell in cells if re.fullmatch(rf"[−+<>≤≥ ]*{NUMBER}(?:[^a-z]*{NUMBER})*[^a-z]*", cell)]


def numbers(text):
    return [part.replace(",", "") for part in re.findall(NUMBER, text)]


def anchor(heading):
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def results_section(name):
    """The text of a section of RESULTS.md by its anchor; None if there is none."""
    parts = re.split(r"^(#+ .*)$", RESULTS.read_text(), flags=re.MULTILINE)
    for heading, text in zip(parts[1::2], parts[2::2]):
        if anchor(heading.lstrip("# ")) == name:
            return text
    return None


def sources(page, text):
    """The texts of the records and sections of RESULTS.md that a block names."""
    found = []
    for name in re.findall(r"RESULTS\.md#([\w-]+)", text):
        section = results_section(name)
        assert section is not None, f"{page}: RESULTS.md has no section #{name}"
        found.append(section)
    if f"]({Path(SIMULATED).name})" in text or f"]({SIMULATED})" in text:
        found.append((ROOT / SIMULATED).read_text())
    for name in re.findall(r"(?:[\w./-]+/)?[\w-]+\.(?:json|csv)\b", text):
        places = [(ROOT / page).parent / name, ROOT / name]
        if record := next((place for place in places if place.is_file()), None):
            found.append(record.read_text())
    return found


def has(source, figure):
    """Whether a source has the figure's numbers, as they are written or before they were rounded."""
    values = numbers(source)
    for number in numbers(figure):
        decimals = len(number.partition(".")[2])
        as_written = {number, f"0{number}" if number.startswith(".") else number}
        rounded = (f"{float(value):.{decimals}f}" for value in values)
        wanted = f"{float(number):.{decimals}f}"
        if not as_written & set(values) and wanted not in rounded:
            return False
    return True


def blank(written):
    """What stays of a part that is written from a record: its line breaks, for the numbers of the lines behind it, and
    where the record is, which the rest of the section speaks of."""
    breaks = "\n" * written.group().count("\n")
    return f"<!-- record: {SIMULATORS_RECORD} -->{breaks}" if written.re.groups and written[2] else breaks


def unsourced(page, text, allowed):
    """Figures of a page without a source: `page:line: figure`, and the entries of the list that it used."""
    missing, used = [], set()
    if page == "README.md":
        text, count = re.subn(r"^## How fast\n.*?(?=^## )", blank, text, flags=re.MULTILINE | re.DOTALL)
        assert count == 1, "README's figures have another heading now"
    text = re.sub(WRITTEN, blank, text, flags=re.DOTALL)
    is_specification = page.startswith("spec/")
    for line, _, body, context in blocks(text):
        given = sources(page, context)
        found = figures(body, is_specification)
        for words in allowed:
            without = re.sub(r"\s+".join(map(re.escape, words.split())), "", body)
            left = figures(without, is_specification)
            if without != body and len(left) < len(found):
                used.add(words)
                body, found = without, left
        missing += [f"{page}:{line}: {it!r}" for it in found if not any(has(source, it) for source in given)]
    return missing, used


def allowed_words():
    """Page to the words that are allowed on it."""
    listed = json.loads(ALLOWED.read_text())
    assert all(words.strip() and reason.strip() for page in listed.values() for words, reason in page.items())
    return {page: list(entries) for page, entries in listed.items()}


def test_measured_figures_stand_beside_their_source():
    allowed = allowed_words()
    missing, unused = [], []
    for path in documents():
        page = str(path.relative_to(ROOT))
        without, used = unsourced(page, path.read_text(), allowed.get(page, []))
        missing += without
        unused += [f"{page}: {words}" for words in allowed.pop(page, []) if words not in used]
    assert not missing, "beside these no record is named:\n" + "\n".join(missing)
    assert not unused, "figures_allowed.json has what is not there any more:\n" + "\n".join(unused)
    assert not allowed, f"figures_allowed.json names pages that are not there: {list(allowed)}"


PAGE = """# A page

A step takes 39 ms, which is 3.46 times as fast as llama-server.

```text
9,999 tokens/s
```

At most 64 KiB are kept for 60 s.

| measure | tokens/s |
| --- | --- |
| one stream | 117.1 |
"""


def test_planted_figures_are_found():
    missing, _ = unsourced("docs/page.md", PAGE, [])
    assert [line.removeprefix("docs/page.md:") for line in missing] == [
        "3: '3.46 times as fast'", "3: 'takes 39 ms'", "11: '117.1'",
    ]


@pytest.mark.parametrize("planted", [
    "Loquent's peak is 595 MiB, llama-server's 1,596 MiB.",
    "It answers 1,402.5 tokens per second.",
    "A reader costs 4.6 % of a core.",
    "The first token comes 2.8 ms slower.",
    "It stalls −77.1 % as much.",
    "The model answers .930 of them.",
    "It reads 25 GB/s and sends 3.4 kB/s.",
    "One call takes 12 µs.",
    "A token costs a fifth less of the processor.",
    "Half of a model took 12.4 instead of 7.5 ms.",
    "Decoding is three times as fast.",
])
def test_each_kind_of_figure_is_found(planted):
    assert unsourced("docs/page.md", planted, [])[0]


def test_a_figure_of_the_simulated_schemes_needs_a_source_too():
    text = (ROOT / SIMULATED).read_text() + "\n## More\n\nIt stalls −77.1 % as much.\n"
    assert [line.partition(": ")[2] for line in unsourced(SIMULATED, text, allowed_words()[SIMULATED])[0]] == ["'−77.1 %'"]


@pytest.mark.parametrize("harmless", [
    "A body has at most 64 KiB, and a request 60 s.",
    "Connections get 500 ms of head start; see [D-9.4](spec/delivery.md) and RFC 9221.",
    "`--itl-target-ms 50` sets it; version 0.1.0 and .so files are no figures.",
])
def test_limits_are_no_figures(harmless):
    assert unsourced("docs/page.md", harmless, [])[0] == []


def test_a_figure_stands_beside_a_source_that_has_it(tmp_path, monkeypatch):
    results = tmp_path / "bench/RESULTS.md"
    results.parent.mkdir()
    results.write_text("# Results\n\n## One request\n\n| tokens/s | 73.04 |\n\n## Other\n\n| tokens/s | 12.5 |\n")
    (tmp_path / "record.json").write_text(json.dumps({"rate": 81.66}))
    monkeypatch.setattr("test_figures.ROOT", tmp_path)
    monkeypatch.setattr("test_figures.RESULTS", results)

    def missing(text):
        return unsourced("page.md", text, [])[0]

    link = "[results](bench/RESULTS.md#one-request)"
    assert missing(f"It makes 73.0 tokens/s ({link}).") == []
    assert missing(f"It makes 12.5 tokens/s ({link}).") == ["page.md:1: '12.5 tokens/s'"]
    assert missing(f"See {link}.\n\nIt makes 73.0 tokens/s.") == ["page.md:3: '73.0 tokens/s'"]
    assert missing(f"By {link}:\n\n| tokens/s |\n| --- |\n| 73.0 |") == []
    assert missing(f"By {link}:\n\n| tokens/s |\n| --- |\n| 74.0 |") == ["page.md:3: '74.0'"]
    assert missing("It makes 81.7 tokens/s ([record](record.json)).") == []
    assert missing("It makes 82 tokens/s ([record](record.json), [no record](gone.json)).") == []
    assert missing("It makes 83 tokens/s ([record](record.json), [no record](gone.json)).") != []
    with pytest.raises(AssertionError, match="no section"):
        missing("It makes 73.0 tokens/s ([results](bench/RESULTS.md#gone)).")


def test_what_is_allowed_is_allowed_by_its_words():
    text = "The page reads at 40\ntokens/s. The engine makes 40 tokens/s."
    missing = ["docs/page.md:1: '40 tokens/s'"]
    assert unsourced("docs/page.md", text, ["reads at 40 tokens/s"]) == (missing, {"reads at 40 tokens/s"})
    assert unsourced("docs/page.md", text, ["reads at 41 tokens/s"]) == (2 * missing, set())


def test_the_models_card_is_of_the_bundled_model():
    record = json.loads((ROOT / "models/evaluation.json").read_text())
    card = (ROOT / "models/README.md").read_text()
    model = hashlib.sha256((ROOT / "models/loquent-tiny.gguf").read_bytes()).hexdigest()
    again = "run the card's evaluation again: models/README.md"
    assert record["model"] == model and f"`{model}`" in card, again
    for kind, folder in (("held out", "heldout"), ("development", "dev")):
        questions = sorted((ROOT / "tools/train-tiny" / folder).glob("*.jsonl"))
        together = b"".join(path.read_bytes() for path in questions)
        assert record[kind]["questions"] == hashlib.sha256(together).hexdigest(), again
    for kind in ("paraphrase", "unknown", "third_turn"):
        held_out, development = record["held out"][kind], record["development"][kind]
        (row,) = [line for line in card.splitlines() if line.startswith(f"| {kind} ")]
        assert row.endswith(f"| {held_out['share']:.3f} |")
        assert f"{development['right']} of {development['of']} " in " ".join(card.split())


def test_what_is_written_from_the_simulators_record_needs_no_other_source(tmp_path, monkeypatch):
    (tmp_path / "bench/results").mkdir(parents=True)
    (tmp_path / SIMULATORS_RECORD).write_text(json.dumps({"full": 0.142}))
    monkeypatch.setattr("test_figures.ROOT", tmp_path)
    table = "<!-- sim: demo -->\n\n| stall ratio |\n| --- |\n| .999 |\n\n<!-- end of sim -->"
    page = f"# Demo\n\n{table}\n\nIt is ten times as fast, and .142.\n\n## Else\n\nIt is ten times as fast."
    assert unsourced("docs/demo.md", page, [])[0] == ["docs/demo.md:15: 'ten times as fast'"]
