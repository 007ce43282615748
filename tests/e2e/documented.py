"""What the documents tell a reader to type, read from their fenced blocks: tests that use it cannot drift from them."""

import os
import re
import shlex

from conftest import BINARY, REPOSITORY

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
SHELL = ("sh", "console", "bash")
#: The addresses that documents use, and tests replace by those of their own processes.
SERVER = "http://127.0.0.1:8080"
PROXY = "http://127.0.0.1:11435"


def documents():
    """Pairs of name and text: what a first-time user has to read, README first."""
    paths = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    return [(path.name, path.read_text()) for path in paths]


def blocks(*languages):
    """All fenced blocks in one of the languages."""
    return [block for _, text in documents() for language, block in FENCE.findall(text) if language in languages]


def block(language, *needles):
    """The first block of a language with all the needles in it."""
    for text in blocks(language):
        if all(needle in text for needle in needles):
            return text
    raise AssertionError(f"no document has a block of {language} with {needles}")


def block_lines(text):
    """The command lines of one block, continued ones joined, their comments left out."""
    for line in text.replace("\\\n", " ").splitlines():
        yield re.sub(r"\s+#\s.*", "", line).removeprefix("$ ").strip()


def commands():
    """All command lines of the documents."""
    for text in blocks(*SHELL):
        yield from block_lines(text)


def spans(text):
    """The code within sentences and cells of tables, where a pipe may be escaped."""
    for code in SPAN.findall(FENCE.sub("", text)):
        yield " ".join(code.split()).replace("\\|", "|")


def lines_of(text):
    """All that one document shows as code, line by line."""
    for _, block in FENCE.findall(text):
        yield from block_lines(block)
    yield from spans(text)


def command(start, *needles):
    """The arguments of the first documented command that begins with `start` and has all the needles."""
    for line in commands():
        if line.startswith(start) and all(needle in line for needle in needles):
            return shlex.split(line)[1:]
    raise AssertionError(f"no document shows a command {start!r} with {needles}")


def phrase(pattern):
    """The groups of the first match of a regular expression in the documents."""
    for _, text in documents():
        if found := re.search(pattern, text):
            return found.groups()
    raise AssertionError(f"no document says {pattern}")


def replaced(arguments, flag, *values):
    """The arguments with other values after a flag, or without the flag if no value is given."""
    at = arguments.index(flag)
    return arguments[:at] + ([flag, *values] if values else []) + arguments[at + 2 :]


def environment(folder, **more):
    """A user's environment with a home in `folder` and `loquent` on the path."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    if not (programs / "loquent").exists():
        (programs / "loquent").symlink_to(os.path.abspath(BINARY))
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "HOME": str(folder), "PATH": path, "NO_COLOR": "1", **more}
