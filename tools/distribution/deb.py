"""The package for Debian and Ubuntu, packed by Debian's dpkg-deb."""

import hashlib
import tempfile
import textwrap
from pathlib import Path

from .archive import gzipped
from .release import NAME, ROOT, SUMMARY, Payload, pack, stage, told

FOLDER = ROOT / "packaging/deb"
SCRIPTS = ("postinst", "prerm", "postrm")
#: Libraries of C and C++, and the packages that have them.
LIBRARIES = {
    "libc.so.6": "libc6",
    "libm.so.6": "libc6",
    "libdl.so.2": "libc6",
    "libpthread.so.0": "libc6",
    "librt.so.1": "libc6",
    "libutil.so.1": "libc6",
    "ld-linux-x86-64.so.2": "libc6",
    "ld-linux-aarch64.so.1": "libc6",
    "libstdc++.so.6": "libstdc++6",
    "libgcc_s.so.1": "libgcc-s1",
}
DESCRIPTION = """\
Serves a language model over the APIs of OpenAI, Anthropic and Ollama, with a
chat page, and delivers every token over QUIC datagrams, so that answers arrive
steadily over bad networks and survive lost connections. A small demonstration
model is built in."""


def installed(release):
    """The files, at the places where Debian has them."""
    yield Payload(f"usr/bin/{NAME}", release.binary, is_program=True)
    yield Payload(f"usr/lib/systemd/system/{NAME}.service", unit().encode())
    yield Payload(f"usr/share/bash-completion/completions/{NAME}", release.completions["bash"])
    yield Payload(f"usr/share/zsh/vendor-completions/_{NAME}", release.completions["zsh"])
    yield Payload(f"usr/share/fish/vendor_completions.d/{NAME}.fish", release.completions["fish"])
    documents = f"usr/share/doc/{NAME}"
    yield Payload(f"{documents}/copyright", (FOLDER / "copyright").read_bytes())
    for name, data in (
        ("changelog", (ROOT / "CHANGELOG.md").read_bytes()),
        ("THIRD-PARTY.txt", release.notices),
        (f"{NAME}.cdx.json", release.parts),
    ):
        yield Payload(f"{documents}/{name}.gz", gzipped(data, release.effort))
    for page in release.man_pages:
        yield Payload(f"usr/share/man/man1/{page.name}.gz", gzipped(page.data, release.effort))


def unit():
    """The service, with the binary where the package puts it and without the words on installing it."""
    text = (ROOT / "docs/loquent.service").read_text()
    body = text[text.index("[Unit]") :]
    moved = body.replace(f"/usr/local/bin/{NAME}", f"/usr/bin/{NAME}")
    assert moved != body, "the unit names the binary by another path now"
    return "# Begin with: systemctl enable --now loquent (its first API key is in /etc/loquent/keys).\n" + moved


def dependencies(needs):
    """`libc6 (>= 2.28)` and the like, from the versions of the symbols that the binary asks for."""
    packages = {}
    for library in needs.libraries:
        package = LIBRARIES.get(library)
        if package is None:
            raise SystemExit(f"the binary needs {library}, and no package is known that has it")
        packages[package] = f" (>= {'.'.join(map(str, needs.glibc))})" if package == "libc6" and needs.glibc else ""
    return ", ".join(package + version for package, version in sorted(packages.items()))


def control(release, files):
    description = textwrap.indent(DESCRIPTION, " ")
    kilobytes = sum(len(file.data) + 1023 for file in files) // 1024
    return f"""\
Package: {NAME}
Version: {release.version}
Architecture: {release.target.deb}
Maintainer: The Loquent authors <maintainers@loquent.invalid>
Installed-Size: {kilobytes}
Depends: {dependencies(release.needs)}, passwd
Recommends: ca-certificates
Section: net
Priority: optional
Description: {SUMMARY[0].lower() + SUMMARY[1:]}
{description}
"""


def make(release):
    files = list(installed(release))
    sums = "".join(f"{hashlib.md5(file.data).hexdigest()}  {file.name}\n" for file in files)
    about = [Payload("DEBIAN/control", control(release, files).encode()), Payload("DEBIAN/md5sums", sums.encode())]
    about += [Payload(f"DEBIAN/{name}", (FOLDER / name).read_bytes(), is_program=True) for name in SCRIPTS]
    path = release.out / f"{NAME}_{release.version}_{release.target.deb}.deb"
    # Ubuntu's dpkg-deb would choose zstd, which Debian 11 cannot read.
    compression = ("-Zgzip", "-z1") if release.is_fast else ("-Zxz", "-z6")
    with tempfile.TemporaryDirectory() as folder:
        stage(files + about, Path(folder))
        pack(release, "dpkg-deb", "--root-owner-group", *compression, "--build", folder, path)
    return told(path)
