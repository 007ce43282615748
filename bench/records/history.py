"""Which commit and which tree a record is of, and whether this history has them."""

import pathlib
import subprocess

from . import measured, page

PICTURE = "docs/img/llama-server-ratios.svg"
#: What `results.py` writes itself. `measured.PAGES` are written in part: see `hand_written`.
GENERATED = ("bench/results/", "bench/RESULTS.md", PICTURE)


def git(root, *words, check=True):
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise SystemExit(f"results: git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def commit(root):
    return git(root, "rev-parse", "HEAD").strip()


def tree(root):
    return git(root, "rev-parse", "HEAD^{tree}").strip()


def is_shallow(root):
    """Whether the history is not all here, or there is none."""
    return git(root, "rev-parse", "--is-shallow-repository", check=False).strip() != "false"


def dirty(root):
    """Files that differ from the commit, or are no part of it; those that `results.py` writes do not count."""
    status = git(root, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
    changed = [entry[3:] for entry in status.split("\0") if entry]
    return [path for path in changed if not is_generated(root, path, "HEAD")]


def is_generated(root, path, revision):
    """Whether all that changed in a file since `revision` is what `results.py` writes."""
    if path not in measured.PAGES:
        return path.startswith(GENERATED)
    now, then = root / path, git(root, "show", f"{revision}:{path}", check=False)
    return now.exists() and page.hand_written(now.read_text()) == page.hand_written(then)


def measures_the_same(root, earlier):
    """Whether a tree would give the figures of HEAD: it differs in prose and in generated files alone."""
    if not earlier or git(root, "cat-file", "-t", earlier, check=False).strip() not in ("tree", "commit"):
        return False
    changed = git(root, "diff", "--name-only", "-z", "--no-renames", earlier, "HEAD").split("\0")
    return all(is_prose(path) or path.startswith(GENERATED) for path in changed if path)


def is_prose(path):
    """Whether a file changes what a binary says, and not how fast it is."""
    return path.endswith((".md", pathlib.PurePath(PICTURE).name))


def unknown(root, records):
    """The records whose commit is no ancestor of HEAD and whose tree no commit of its history has."""
    trees = set(git(root, "log", "--format=%T").split())
    return [name for name, record in records.items()
            if record.get("tree") not in trees and not is_ancestor(root, record.get("commit"))]


def is_ancestor(root, commit):
    if not commit:
        return False
    words = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(words, cwd=root, capture_output=True).returncode == 0
