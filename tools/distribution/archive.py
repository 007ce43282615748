"""The archive for every system: the binary, its documentation, completions and the service."""

import gzip
import io
import tarfile

from .release import NAME, ROOT, SHELLS, Payload, licences, write


def contents(release):
    """What is in the archive, below its one folder."""
    yield Payload(NAME, release.binary, is_program=True)
    yield from licences()
    yield Payload("THIRD-PARTY.txt", release.notices)
    yield Payload(f"{NAME}.cdx.json", release.parts)
    for name in ("README.md", "CHANGELOG.md"):
        yield Payload(name, (ROOT / name).read_bytes())
    for shell, name in SHELLS.items():
        yield Payload(f"completions/{name}", release.completions[shell])
    for page in release.man_pages:
        yield Payload(f"man/{page.name}", page.data)
    if release.target.system == "Linux":
        yield Payload("loquent.service", (ROOT / "docs/loquent.service").read_bytes())


def tar(payloads, time):
    """Files of root, all equally old, with the folders above them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        folders = set()
        for payload in payloads:
            for folder in parents(payload.name):
                if folder not in folders:
                    folders.add(folder)
                    archive.addfile(entry(folder, 0o755, time, tarfile.DIRTYPE))
            file = entry(payload.name, 0o755 if payload.is_program else 0o644, time)
            file.size = len(payload.data)
            archive.addfile(file, io.BytesIO(payload.data))
    return buffer.getvalue()


def parents(name):
    """`usr/bin/x` has the folders `usr` and `usr/bin`."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def entry(name, mode, time, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.mode, info.mtime, info.type = mode, time, kind
    info.uname = info.gname = "root"
    return info


def gzipped(data, effort):
    return gzip.compress(data, effort, mtime=0)


def make(release):
    inside = (Payload(f"{release.stem}/{it.name}", it.data, it.is_program) for it in contents(release))
    return write(release, f"{release.stem}.tar.gz", gzipped(tar(inside, release.time), release.effort))
