"""`make release` on copies of the sources, with a small program in place of the binary: nothing is compiled."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY
from distribution import checks, release

VERSION = release.workspace_version()
TAG = f"v{VERSION}"
#: What a binary says of itself, for one that cannot.
HELPER = f"""#!/bin/sh
case $1 in
--version) echo "loquent {VERSION}" ;;
completions) echo "# $2" ;;
man) mkdir -p "$2" && echo ".TH LOQUENT 1" >"$2/loquent.1" ;;
esac
"""
AUTHOR = {
    **{f"GIT_{who}_NAME": "Somebody" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "somebody@example.org" for who in ("AUTHOR", "COMMITTER")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}

HAS_TOOLS = all(map(shutil.which, ("git", "dpkg-deb", "cargo")))
pytestmark = [
    pytest.mark.skipif(not HAS_TOOLS, reason="git, dpkg-deb or cargo is missing"),
    pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="the sources are not a clone"),
]
needs_npm = pytest.mark.skipif(
    not shutil.which("npm") or not (REPOSITORY / "web/client/node_modules").exists(),
    reason="npm or the client's packages are missing",
)


class Sources:
    """A repository of its own with the files of this one."""

    def __init__(self, folder):
        self.folder = folder
        names = self.git("ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=REPOSITORY).split("\0")
        for name in filter(None, names):
            if (REPOSITORY / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(REPOSITORY / name, folder / name)
        self.git("init", "--quiet")
        self.replace("CHANGELOG.md", f"## [{VERSION}] - unreleased", f"## [{VERSION}] - 2026-01-31")
        self.commit()

    def git(self, *arguments, cwd=None):
        done = subprocess.run(
            ["git", *arguments], cwd=cwd or self.folder, env={**os.environ, **AUTHOR}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def replace(self, name, old, new):
        path = self.folder / name
        text = path.read_text()
        path.write_text(text.replace(old, new, 1))

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "As it is released")

    def release(self, *arguments, version=VERSION):
        command = [sys.executable, self.folder / "tools/release", version, *arguments]
        return subprocess.run(command, env={**os.environ, **AUTHOR}, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return Sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture
def sources(pristine):
    """The sources as committed, whatever the test before did to them."""
    yield pristine
    pristine.git("reset", "--quiet", "--hard", "HEAD")
    pristine.git("clean", "--quiet", "--force", "-d")
    for tag in pristine.git("tag").split():
        pristine.git("tag", "--delete", tag)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small program for this machine, and a script that says what it would say."""
    folder = tmp_path_factory.mktemp("small")
    shutil.copy(shutil.which("true"), folder / "loquent")
    (folder / "helper").write_text(HELPER)
    (folder / "helper").chmod(0o755)
    triple = f"{os.uname().machine}-unknown-linux-gnu"
    return ["--binary", f"{triple}={folder / 'loquent'}", "--helper", folder / "helper", "--untried"]


def test_a_dry_run_lists_the_steps_and_does_none(sources, small):
    done = sources.release("--dry-run", "--tag", *small)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert [line.split("] ")[0] for line in steps] == [f"[{at}/{len(steps)}" for at in range(1, len(steps) + 1)]
    for word in ("package for", "@loquent/client", "notes", "check the files", "git tag --annotate"):
        assert any(word in line for line in steps), word
    assert "release workflow's runner" in done.stdout and "Nothing was built" in done.stdout
    assert not (sources.folder / "target").exists() and not sources.git("tag")


@pytest.mark.parametrize(
    "file, old, new, said",
    [
        ("Cargo.toml", f'version = "{VERSION}"', 'version = "9.9.9"', f"Cargo.toml says 9.9.9, not {VERSION}"),
        ("web/client/package.json", VERSION, "9.9.9", "web/client/package.json says 9.9.9"),
        ("CHANGELOG.md", "2026-01-31", "soon", "needs its date"),
        ("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n- More.\n", "[Unreleased] has text"),
        ("docs/install.md", f"loquent_{VERSION}_", "loquent_9.9.9_", "docs/install.md names files of 9.9.9"),
        ("README.md", "Loquent", "loquent", "1 files differ from the commit (README.md"),
    ],
)
def test_what_keeps_a_version_from_being_released_is_said(sources, small, file, old, new, said):
    sources.replace(file, old, new)
    done = sources.release("--dry-run", *small)
    assert done.returncode == 1 and said in done.stderr, done.stdout + done.stderr


def test_a_version_that_is_none_or_is_tagged_elsewhere_is_refused(sources, small):
    assert "write 1.2.3" in sources.release("--dry-run", *small, version="1.2").stderr
    sources.git("tag", TAG)
    assert sources.release("--dry-run", *small).returncode == 0
    sources.git("commit", "--quiet", "--allow-empty", "--message", "Another")
    assert f"the tag {TAG} is on another commit" in sources.release("--dry-run", *small).stderr


def test_missing_programs_are_named(monkeypatch):
    monkeypatch.setattr(checks.shutil, "which", lambda name: None if name == "dpkg-deb" else name)
    assert "dpkg-deb is not installed; it makes the .deb" in checks.of_programs()


@pytest.mark.thorough
@needs_npm
@pytest.mark.timeout(240)  # the sources are packaged twice
def test_a_release_is_whole_the_same_each_time_and_tagged(sources, small):
    (sources.folder / "web/client/node_modules").symlink_to((REPOSITORY / "web/client/node_modules").resolve())
    out = sources.folder / f"target/dist/{TAG}"
    done = sources.release(*small)
    assert done.returncode == 0, done.stdout + done.stderr
    first = digests(out)
    assert first and not sources.git("tag")
    done = sources.release("--tag", *small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(out) == first
    assert {Path(name).suffix for name in first} >= {".gz", ".deb", ".whl", ".tgz", ".json", ".sh"}
    # The message is the notes of this version, and no other's.
    notes = (out.parent / f"{TAG}-notes.md").read_text()
    assert sources.git("tag", "--list", "--format=%(contents)", TAG) == notes.strip()
    assert sources.git("cat-file", "-t", TAG) == "tag" and "## [" not in notes
    # What lacks or is changed is found.
    assert not checks.incomplete(out, VERSION, [small[1].split("=")[0]])
    next(out.glob("*.deb")).write_bytes(b"")
    assert "is not as SHA256SUMS says" in checks.incomplete(out, VERSION, [small[1].split("=")[0]])[0]
    next(out.glob("*.tgz")).unlink()
    assert "was not made" in checks.incomplete(out, VERSION, [small[1].split("=")[0]])[0]


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
