"""The wheel, which puts the binary on the path of a Python environment; packed by PyPA's `wheel`."""

import subprocess
import sys
import tempfile
from pathlib import Path

from .release import LICENCES, NAME, ROOT, SUMMARY, Payload, licences, pack, stage, told

FOLDER = ROOT / "packaging/wheel"
#: Before pip knew C libraries by their version, they had names.
OLD_NAMES = {(2, 17): "manylinux2014", (2, 12): "manylinux2010"}


def platform(release):
    """The tag of the oldest systems that can run the binary."""
    if release.target.wheel:
        return release.target.wheel
    glibc, machine = release.needs.glibc, release.target.machine
    if glibc is None:
        raise SystemExit("the binary names no C library, so no wheel's tag fits it")
    # pip knows no wheels for anything older.
    glibc = max(glibc, (2, 17))
    tags = [f"manylinux_{glibc[0]}_{glibc[1]}_{machine}"]
    if old := OLD_NAMES.get(glibc[:2]):
        tags.append(f"{old}_{machine}")
    return ".".join(tags)


def metadata(release):
    fields = f"""\
Metadata-Version: 2.4
Name: {NAME}
Version: {release.version}
Summary: {SUMMARY}
License-Expression: MIT OR Apache-2.0
{"".join(f"License-File: {name}{chr(10)}" for name in LICENCES)}\
Keywords: llm,inference,server,streaming,openai,gguf,quic
Requires-Python: >=3.8
Description-Content-Type: text/markdown

"""
    return fields + (FOLDER / "README.md").read_text()


def tag_file(tag):
    # One line for each platform of a compressed tag.
    lines = "".join(f"Tag: py3-none-{it}\n" for it in tag.split("."))
    return f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: false\n{lines}"


def contents(release, tag):
    about = f"{NAME}-{release.version}.dist-info"
    yield Payload(f"{NAME}-{release.version}.data/scripts/{NAME}", release.binary, is_program=True)
    for module in sorted((FOLDER / NAME).glob("*.py")):
        yield Payload(f"{NAME}/{module.name}", module.read_bytes())
    yield from (Payload(f"{about}/licenses/{it.name}", it.data) for it in licences())
    yield Payload(f"{about}/licenses/THIRD-PARTY.txt", release.notices)
    yield Payload(f"{about}/sboms/{NAME}.cdx.json", release.parts)
    yield Payload(f"{about}/METADATA", metadata(release).encode())
    yield Payload(f"{about}/WHEEL", tag_file(tag).encode())


def packer():
    """A Python that has `wheel`: the one that runs this, or that of tools/setup."""
    for python in (sys.executable, str(ROOT / ".venv/bin/python")):
        has_wheel = [python, "-c", "import wheel"]
        if Path(python).exists() and subprocess.run(has_wheel, capture_output=True).returncode == 0:
            return python
    raise SystemExit("the Python package `wheel` is not installed: tools/setup dist")


def make(release):
    tag = platform(release)
    with tempfile.TemporaryDirectory() as folder:
        stage(contents(release, tag), Path(folder))
        pack(release, packer(), "-m", "wheel", "pack", folder, "--dest-dir", release.out)
    return told(release.out / f"{NAME}-{release.version}-py3-none-{tag}.whl")
