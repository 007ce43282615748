"""The notes of a release: the section of CHANGELOG.md that is of its version."""

import re

from .release import ROOT

HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>.*))?$", re.MULTILINE)


def section(text, version):
    """The date and the text of one version's section, from below its heading to the next one."""
    headings = list(HEADING.finditer(text))
    for at, heading in enumerate(headings):
        if heading["version"] == version:
            end = headings[at + 1].start() if at + 1 < len(headings) else len(text)
            return heading["date"], text[heading.end() : end].strip() + "\n"
    raise SystemExit(f"CHANGELOG.md has no section [{version}]")


def notes(tag, root=ROOT):
    """What the release of `tag` (v1.2.3) publishes of CHANGELOG.md; its section has to have a date."""
    version = tag.removeprefix("v")
    date, text = section((root / "CHANGELOG.md").read_text(), version)
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date or ""):
        raise SystemExit(f"CHANGELOG.md: the heading of [{version}] needs its date (2026-01-31), not {date!r}")
    if not text.strip():
        raise SystemExit(f"CHANGELOG.md: the section [{version}] is empty")
    return text
