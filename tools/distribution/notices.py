"""The licences of everything that is built into the binary, which ask to be passed on with it."""

import os
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

from .release import ROOT

NAMES = ("licen", "copying", "notice")
#: A licence is a text, and not a long one.
MOST_BYTES = 256 << 10


def sbom():
    """tools/sbom, which knows what the binary is built from."""
    # Nothing is left beside the sources.
    loader = SourceFileLoader("sbom", str(ROOT / "tools/sbom"))
    module = module_from_spec(spec_from_loader("sbom", loader))
    exec(loader.get_code("sbom"), module.__dict__)
    return module


def texts(folder):
    """The licences in a package's folder, and in those of what it bundles."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(place, name)
            if name.lower().startswith(NAMES) and path.stat().st_size <= MOST_BYTES:
                yield path.read_text(errors="replace").strip()


def collect(packages):
    """One chapter for each text, headed by the packages that have it."""
    owners, without = {}, []
    for package in packages:
        name = f"{package['name']} {package['version']} ({package['license']})"
        found = list(dict.fromkeys(texts(Path(package["manifest_path"]).parent)))
        if not found:
            without.append(name)
        for text in found:
            owners.setdefault(text, []).append(name)
    chapters = [f"{chr(10).join(names)}\n\n{text}" for text, names in owners.items()]
    if without:
        chapters.append("Packages that name their licence without its text:\n\n" + "\n".join(without))
    return chapters


def make(metadata):
    """The text for the packages that `metadata` says are linked."""
    bill = sbom()
    _, linked = bill.linked(metadata)
    foreign = [package for package in metadata["packages"] if package["id"] in linked and package["source"]]
    foreign.sort(key=lambda package: (package["name"], package["version"]))
    chapters = ["Loquent contains the following software.", *collect(foreign)]
    chapters.append("The pages\n\n" + (ROOT / "web/page/licenses.txt").read_text().strip())
    rule = "\n\n" + "-" * 80 + "\n\n"
    return (rule.join(chapters) + "\n").encode()
