"""What has to be true of the sources before a release is built, and of its files afterwards."""

import json
import re
import shutil
import subprocess

from . import changelog
from .index import SUMS
from .release import NAME, TARGETS, sha256, workspace_version
from .wheel import packer

#: Programs that make packages, and what they make.
PROGRAMS = {"cargo": "the list of parts", "dpkg-deb": "the .deb", "npm": "the package of @loquent/client"}
SEMVER = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")


def problems(root, version):
    """What keeps `version` of the sources in `root` from being released, each with what to do, in sentences."""
    if not SEMVER.fullmatch(version):
        return [f"VERSION is {version!r}: write 1.2.3"]
    return [*of_versions(root, version), *of_changelog(root, version), *of_git(root, version), *of_programs()]


def of_versions(root, version):
    found = versions(root)
    wrong = [f"{file} says {said}, not {version}: change it" for file, said in found.items() if said != version]
    if found["Cargo.lock"] != found["Cargo.toml"]:
        wrong.append("Cargo.lock is older than Cargo.toml: cargo update --workspace")
    page = (root / "docs/install.md").read_text()
    named = set(re.findall(rf"{NAME}(?:-client)?[-_](\d+\.\d+\.\d+)", page)) - {version}
    return wrong + [f"docs/install.md names files of {other}, not {version}: change them" for other in sorted(named)]


def versions(root):
    """The version that each file states; the wheel and the .deb take Cargo.toml's."""
    client = root / "web/client"
    lock = re.search(rf'^name = "{NAME}"\nversion = "(.*)"$', (root / "Cargo.lock").read_text(), re.M)
    return {
        "Cargo.toml": workspace_version(root),
        "Cargo.lock": lock and lock[1],
        "web/client/package.json": json.loads((client / "package.json").read_text())["version"],
        "web/client/package-lock.json": json.loads((client / "package-lock.json").read_text())["version"],
    }


def of_changelog(root, version):
    try:
        changelog.notes(f"v{version}", root)
        _, pending = changelog.section((root / "CHANGELOG.md").read_text(), "Unreleased")
    except SystemExit as error:
        return [str(error)]
    return ["CHANGELOG.md: [Unreleased] has text; move it into the version's section"] if pending.strip() else []


def of_git(root, version):
    if git(root, "rev-parse", "HEAD") is None:
        return ["there is no commit here: a release is made from one"]
    wrong = []
    if changed := git(root, "status", "--porcelain"):
        files = changed.splitlines()
        wrong.append(f"{len(files)} files differ from the commit ({files[0].split()[-1]}, …): commit or remove them")
    tagged = tagged_commit(root, version)
    if tagged and not is_tagged(root, version):
        wrong.append(f"the tag v{version} is on another commit ({tagged[:10]}): choose another version")
    return wrong


def tagged_commit(root, version):
    return git(root, "rev-parse", "--quiet", "--verify", f"refs/tags/v{version}^{{commit}}")


def is_tagged(root, version):
    """Whether the commit that is checked out has the version's tag already, as in the workflow."""
    return tagged_commit(root, version) == git(root, "rev-parse", "HEAD")


def git(root, *arguments):
    """What git prints; None if it fails."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def of_programs():
    missing = [f"{name} is not installed; it makes {what}" for name, what in PROGRAMS.items() if not shutil.which(name)]
    try:
        packer()
    except SystemExit as error:
        missing.append(str(error))
    return missing


def repository(root):
    """The address that Cargo.toml gives as `repository`; None before there is one."""
    package = (root / "Cargo.toml").read_text().split("[workspace.package]")[1]
    stated = re.search(r'^repository = "(.*)"$', package, re.M)
    return stated and stated[1].rstrip("/")


def open_questions(root, url):
    """What may still be decided when the packages are made, but not when they are published."""
    if not url:
        yield "no address: Cargo.toml has no `repository`, and URL is not given. install.sh must be told one, and"
        yield "  the formula is left out"
    if ".invalid" in (root / "tools/distribution/deb.py").read_text():
        yield "the maintainer's address in tools/distribution/deb.py is not a real one"


def incomplete(out, version, triples):
    """What a finished release in `out` lacks, or has against its own checksums."""
    expected = {f"{NAME}-client-{version}.tgz", "install.sh", "Containerfile", "compose.yaml", SUMS}
    for target in (TARGETS[triple] for triple in triples):
        stem = f"{NAME}-{version}-{target.triple}"
        expected |= {f"{stem}.tar.gz", f"{stem}.cdx.json", f"{NAME}_{version}_{target.deb}.deb"}
        if not list(out.glob(f"{NAME}-{version}-py3-none-*_{target.machine}.whl")):
            expected.add(f"{NAME}-{version}-py3-none-…_{target.machine}.whl")
    missing = [f"{name} was not made" for name in sorted(expected) if not (out / name).exists()]
    if missing:
        return missing
    sums = dict(reversed(line.split()) for line in (out / SUMS).read_text().splitlines())
    # Files that begin with a dot are for tools that build images, not for downloading.
    files = [path for path in out.iterdir() if path.name != SUMS and not path.name.startswith(".")]
    return [f"{path.name} is not as {SUMS} says" for path in files if sums.get(path.name) != sha256(path.read_bytes())]
