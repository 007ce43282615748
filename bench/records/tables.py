"""Tables that benches print: found in their output, asked for a cell, and judged by their targets."""

import collections
import itertools
import json
import re

NUMBER = re.compile(r"[-−+]?\d[\d,]*(?:\.\d+)?")
#: Heads of columns that add nothing to what a row is called.
SAYS_NOTHING = ("", "ratio", "ratio or count", "measured", "more", "share")
#: A target with its verdict, of what is no single number: -75 %, 4.8 kB/s: reached
VERDICT = re.compile(r".*: (reached|missed)")
TARGET = re.compile(r"(>=|<=|≥|≤)\s*([-−+]?[\d.,]+)")


def captioned_tables(text):
    """The Markdown tables in `text`, each with the line before it, which says how it was made; empty if there is none.

    A table is a list of rows, a row a list of cells; the first row is the head.
    """
    found, caption, rows = [], "", []
    lines = [line for line in map(str.strip, text.splitlines()) if not line.startswith("runs: ")]
    for line in [*lines, ""]:
        if len(line) > 2 and line.startswith("|") and line.endswith("|"):
            cells = [cell.strip() for cell in line[1:-1].split("|")]
            if not all(re.fullmatch(r":?-{2,}:?", cell) for cell in cells):
                rows.append(cells)
            continue
        if rows:
            found.append((caption, rows))
            caption, rows = "", []
        if line and not notes(line):
            caption = line.lstrip("#").strip() if line.startswith("###") else "" if line.startswith("#") else line
    return found


def runs(text):
    """What the lines `runs: ` of a bench's output say: the values of each run, by measure."""
    return [json.loads(line.strip()[len("runs: "):]) for line in text.splitlines() if line.strip().startswith("runs: ")]


def notes(text):
    """Lines that say that something was left out or failed, as bench/peers/compare.py's of a peer."""
    return [line.strip() for line in text.splitlines() if re.match(r"\S+ (failed|is left out|is not measured): ", line)]


def number(cell):
    """The first number of a cell, if it begins with one."""
    found = NUMBER.match(cell.strip().lstrip("*"))
    return float(found[0].replace(",", "").replace("−", "-")) if found else None


def judged(tables, captions=()):
    """Every target of the tables: the row's label, the cell that was measured, the target, and whether it is reached.

    A column whose head is `target` judges the cell to its left, unless it ends with the verdict. A cell without a
    number reaches nothing. Labels that several rows have are told apart by the rows' settings, or by the captions.
    """
    found, caption = [], ""
    for (head, *rows), own in itertools.zip_longest(tables, captions):
        caption = own or caption
        places = [at for at, name in enumerate(head) if name == "target" and at > 0]
        for row in rows:
            for at in places:
                target, verdict = (kind.match(row[at]) if at < len(row) else None for kind in (TARGET, VERDICT))
                if target or verdict:
                    well = verdict[1] == "reached" if verdict else reaches(number(row[at - 1]), *target.groups())
                    more = settings(head, row), re.split(r"[:;]", caption)[0]
                    found.append(([label(head, row, at - 1), *more], row[at - 1], row[at], well))
    groups = collections.defaultdict(list)
    for words, *_ in found:
        groups[words[0]].append(words)
    for group in groups.values():
        by_settings = len({words[1] for words in group}) == len(group)
        for words in group if len(group) > 1 else []:
            if more := words[1 if by_settings else 2]:
                words[0] += f" ({more})"
    return [(words[0], *rest) for words, *rest in found]


def settings(head, row):
    """The whole numbers behind a row's words, which are its settings: streams 16, busy programs 1."""
    named = itertools.takewhile(lambda pair: pair[1].isdigit(), list(zip(head, row))[1:])
    return ", ".join(f"{name} {cell}" for name, cell in named)


def reaches(value, sign, limit):
    limit = number(limit)
    if value is None:
        return False
    return value >= limit if sign in (">=", "≥") else value <= limit


def label(head, row, measured):
    """What a row is of: its first cell, the next ones as long as they are words, and the column if it says something."""
    words = [row[0]]
    for cell in row[1:measured]:
        if not cell or number(cell) is not None:
            break
        words.append(cell)
    column = re.split(r"[,\[]", head[measured])[0].strip()
    if sum(name == "target" for name in head) > 1:
        column = head[measured]
    return ": ".join([", ".join(words), *([column] if column not in SAYS_NOTHING else [])])


def cell(tables, row, column):
    """The cell of the first table that has such a row and column, or nothing.

    `row` is the beginnings of the row's first cells, separated by semicolons; `column` that of the column's head.
    """
    beginnings = [part.strip() for part in row.split(";")]
    for head, *rows in tables:
        at = next((at for at, name in enumerate(head) if name.startswith(column)), None)
        for cells in rows if at is not None else []:
            if all(cell.startswith(beginning) for cell, beginning in zip(cells, beginnings)) and cells[at]:
                return cells[at]
    return None


def column(tables, beginning):
    """The numbers of the columns whose head begins so."""
    return [value for head, *rows in tables for at, name in enumerate(head) if name.startswith(beginning)
            for row in rows if at < len(row) and (value := number(row[at])) is not None]
