"""What docs/apps.md tells a reader to set for each app, with the address of the test's own server."""

import re
import shlex

from documented import FENCE, SERVER, documents


def text(url, language, *needles):
    """The block of docs/apps.md with these needles, with another server's address."""
    (page,) = (text for name, text in documents() if name == "apps.md")
    for told, block in FENCE.findall(page):
        if told == language and all(needle in block for needle in needles):
            return block.replace(SERVER, url)
    raise AssertionError(f"docs/apps.md has no block of {language} with {needles}")


def variables(url, *needles):
    """What the block exports."""
    told = {}
    for line in text(url, "console", *needles).splitlines():
        if line.startswith("export "):
            told.update(word.split("=", 1) for word in shlex.split(line.removeprefix("export ")))
    return told


def command(url, *needles):
    """The words of the block's last line, without its comment."""
    last = text(url, "console", *needles).strip().splitlines()[-1]
    return shlex.split(re.sub(r"\s+#\s.*", "", last))
