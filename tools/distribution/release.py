"""A release: its version, its target, and the files that every package carries."""

import hashlib
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from . import elf

ROOT = Path(__file__).resolve().parents[2]
NAME = "loquent"
SUMMARY = "Stream a language model to many users, over any network"
LICENCES = ("LICENSE-APACHE", "LICENSE-MIT")
SHELLS = {"bash": "loquent.bash", "zsh": "_loquent", "fish": "loquent.fish"}


@dataclass(frozen=True)
class Target:
    """What the packages of one target triple are called elsewhere."""

    triple: str
    system: str
    machine: str
    #: Debian's name of the architecture; None where there is no Debian.
    deb: str = None
    #: The platform of the wheel where the binary does not tell it.
    wheel: str = None


TARGETS = {
    target.triple: target
    for target in (
        Target("x86_64-unknown-linux-gnu", "Linux", "x86_64", deb="amd64"),
        Target("aarch64-unknown-linux-gnu", "Linux", "aarch64", deb="arm64"),
        # The oldest systems that Rust's standard library supports.
        Target("aarch64-apple-darwin", "Darwin", "arm64", wheel="macosx_11_0_arm64"),
        Target("x86_64-apple-darwin", "Darwin", "x86_64", wheel="macosx_10_12_x86_64"),
    )
}


@dataclass(frozen=True)
class Payload:
    """A file of a package: where it lies in it, its bytes, and whether it is a program."""

    name: str
    data: bytes
    is_program: bool = False


@dataclass
class Release:
    target: Target
    binary: bytes
    #: None for a binary that is not Linux's.
    needs: elf.Needs
    out: Path
    #: Whether packages are compressed quickly rather than well.
    is_fast: bool = False
    version: str = field(default_factory=lambda: workspace_version())
    time: int = field(default_factory=lambda: source_time())
    completions: dict = field(default_factory=dict)
    man_pages: list = field(default_factory=list)
    parts: bytes = b""
    notices: bytes = b""

    @property
    def stem(self):
        return f"{NAME}-{self.version}-{self.target.triple}"

    @property
    def effort(self):
        """The level of gzip and zip."""
        return 1 if self.is_fast else 9


def workspace_version(root=ROOT):
    manifest = (root / "Cargo.toml").read_text()
    section = manifest.split("[workspace.package]")[1]
    return re.search(r'^version = "(.*)"$', section, re.M)[1]


def source_time():
    """Packages of the same sources have the same bytes: no file in them is younger than the sources."""
    if stated := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(stated)
    commit = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
    # A tree without git: zip knows no time before 1980.
    return int(commit.stdout) if commit.returncode == 0 and commit.stdout.strip() else 315_532_800


def describe(release, helper, scratch):
    """Fills in what the binary says about itself. `helper` is a binary of the same sources that runs here."""
    said = run(helper, "--version").split()
    if said[:2] != [NAME, release.version]:
        raise SystemExit(f"{helper} is {' '.join(said[:2])}, but the sources are {NAME} {release.version}")
    release.completions = {shell: run(helper, "completions", shell).encode() for shell in SHELLS}
    folder = scratch / "man"
    run(helper, "man", str(folder))
    release.man_pages = [Payload(page.name, page.read_bytes()) for page in sorted(folder.iterdir())]


def run(program, *arguments):
    try:
        return subprocess.run([program, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout
    except OSError as error:
        raise SystemExit(f"{program} does not run here ({error.strerror}): give one that does with --helper") from error


def licences():
    return [Payload(name, (ROOT / name).read_bytes()) for name in LICENCES]


def stage(payloads, folder):
    """Lays files out below `folder`, for a tool that packs a folder."""
    for payload in payloads:
        path = folder / payload.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload.data)
        path.chmod(0o755 if payload.is_program else 0o644)
    # Whatever this user's umask is.
    for path in (folder, *folder.rglob("*/")):
        path.chmod(0o755)


def pack(release, *command):
    """Runs such a tool. Its package has no file that is younger than the sources; returns what it prints."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(release.time), "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    except FileNotFoundError as error:
        raise SystemExit(f"{command[0]} is not installed: tools/setup dist") from error


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def write(release, name, data):
    path = release.out / name
    path.write_bytes(data)
    return told(path)


def told(path):
    """Says how large a finished package is."""
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return path
