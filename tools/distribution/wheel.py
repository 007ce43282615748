"""The wheel, which puts the binary on the path of a Python environment: `pip install`, pipx, uv."""

import base64
import hashlib
import io
import time
import zipfile

from .release import LICENCES, NAME, ROOT, SUMMARY, Payload, licences, write

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


def record(files, name):
    def line(file):
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.data).digest()).rstrip(b"=").decode()
        return f"{file.name},sha256={digest},{len(file.data)}\n"

    return "".join(map(line, files)) + f"{name},,\n"


def make(release):
    tag = platform(release)
    files = list(contents(release, tag))
    name = f"{NAME}-{release.version}.dist-info/RECORD"
    files.append(Payload(name, record(files, name).encode()))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=release.effort) as archive:
        for file in files:
            info = zipfile.ZipInfo(file.name, time.gmtime(release.time)[:6])
            info.external_attr = (0o100755 if file.is_program else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, file.data)
    return write(release, f"{NAME}-{release.version}-py3-none-{tag}.whl", buffer.getvalue())
