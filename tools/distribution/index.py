"""What speaks of all packages of a release: checksums, the install script, the formula, the container."""

import re
import shutil

from .release import NAME, ROOT, TARGETS, sha256, workspace_version

FOLDER = ROOT / "packaging"
SUMS = "SHA256SUMS"
#: Stands in the templates where the release's address belongs.
URL = "@URL@"
#: Where Homebrew looks for each target.
BREW = {
    "aarch64-apple-darwin": ("on_macos", "on_arm"),
    "x86_64-apple-darwin": ("on_macos", "on_intel"),
    "aarch64-unknown-linux-gnu": ("on_linux", "on_arm"),
    "x86_64-unknown-linux-gnu": ("on_linux", "on_intel"),
}


def make(out, url):
    """Writes them for whatever packages are in `out`, which will be offered at `url`."""
    for name in ("Containerfile", "compose.yaml"):
        shutil.copyfile(FOLDER / "container" / name, out / name)
    # The folder has far more in it than the image needs.
    (out / ".dockerignore").write_text("*\n!*.deb\n")
    script = (FOLDER / "install.sh").read_text()
    write_script(out / "install.sh", script.replace(URL, url or "").replace("@VERSION@", workspace_version()))
    if url:
        (out / f"{NAME}.rb").write_text(formula(out, url))
    else:
        (out / f"{NAME}.rb").unlink(missing_ok=True)
        print("without --url the formula is left out, and install.sh has to be told LOQUENT_RELEASE_URL")
    sums = [f"{sha256(path.read_bytes())}  {path.name}\n" for path in released(out)]
    (out / SUMS).write_text("".join(sums))
    print(f"{out / SUMS}: {len(sums)} files")


def released(out):
    """The files of this release; packages of an older version may lie beside them."""
    package = re.compile(rf"{NAME}(-client)?[-_]{re.escape(workspace_version())}[-_.].*")
    named = {path for path in out.iterdir() if package.fullmatch(path.name)}
    common = {out / name for name in ("Containerfile", "compose.yaml", "install.sh", f"{NAME}.rb")}
    return sorted(named | {path for path in common if path.exists()})


def write_script(path, text):
    path.write_text(text)
    path.chmod(0o755)


def formula(out, url):
    """The formula for Homebrew, with the archives that are there."""
    version = workspace_version()
    template = (FOLDER / "homebrew.rb").read_text()
    systems = {}
    for triple in TARGETS:
        archive = out / f"{NAME}-{version}-{triple}.tar.gz"
        if archive.exists():
            system, processor = BREW[triple]
            systems.setdefault(system, []).append(
                f"    {processor} do\n"
                f'      url "{url}/{archive.name}"\n'
                f'      sha256 "{sha256(archive.read_bytes())}"\n'
                "    end\n"
            )
    blocks = "\n".join(f"  {system} do\n{''.join(parts)}  end\n" for system, parts in sorted(systems.items()))
    text = template.replace("  # @ARCHIVES@\n", blocks).replace("@VERSION@", version).replace(URL, url)
    assert not re.search(r"@[A-Z]+@", text), "a place of the template was not filled in"
    return text
