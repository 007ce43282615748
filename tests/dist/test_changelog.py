"""What a release publishes of CHANGELOG.md: the section of its version, and nothing of another's."""

import re
import subprocess
import sys

import pytest

from distribution import changelog, release

TEXT = """# Changelog

## [Unreleased]

- Later.

## [1.1.0] - 2026-02-03

### Added

- Now, after [1.0.0].

## [1.0.0] - 2026-01-02

- Before.

## [0.9.0] - unreleased
"""


def test_a_section_ends_where_the_next_begins():
    assert changelog.section(TEXT, "1.1.0") == ("2026-02-03", "### Added\n\n- Now, after [1.0.0].\n")
    assert changelog.section(TEXT, "1.0.0") == ("2026-01-02", "- Before.\n")
    assert changelog.section(TEXT, "Unreleased") == (None, "- Later.\n")


def test_notes_without_a_section_a_date_or_a_text_are_refused(tmp_path):
    file = tmp_path / "CHANGELOG.md"
    file.write_text(TEXT)
    assert changelog.notes("v1.1.0", tmp_path) == "### Added\n\n- Now, after [1.0.0].\n"
    for tag, why in [("v1.2.0", "no section"), ("v0.9.0", "needs its date"), ("v1.1", "no section")]:
        with pytest.raises(SystemExit, match=why):
            changelog.notes(tag, tmp_path)
    file.write_text(TEXT.replace("- Before.\n", ""))
    with pytest.raises(SystemExit, match="empty"):
        changelog.notes("v1.0.0", tmp_path)


def test_this_version_has_a_section_of_its_own():
    text = (release.ROOT / "CHANGELOG.md").read_text()
    versions = [heading["version"] for heading in changelog.HEADING.finditer(text)]
    assert versions[0] == "Unreleased" and len(set(versions)) == len(versions)
    # No heading of a version escapes the expression.
    assert len(versions) == len(re.findall(r"^## ", text, re.MULTILINE))
    version = release.workspace_version()
    _, section = changelog.section(text, version)
    assert len(section.splitlines()) > 10
    assert not re.search(r"^# |^## ", section, re.MULTILINE)
    others = [changelog.section(text, other)[1].strip() for other in versions if other != version]
    assert not [other for other in others if other and other in section]


def test_the_command_prints_the_notes_or_says_what_is_missing():
    command = [sys.executable, release.ROOT / "tools/dist", "--notes", "v0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "" and "no section [0.0.0]" in done.stderr


def test_the_release_publishes_the_notes():
    text = (release.ROOT / ".github/workflows/release.yml").read_text()
    assert '--notes "$TAG" >notes.md' in text and "--notes-file notes.md" in text
    assert "CHANGELOG.md" not in text
