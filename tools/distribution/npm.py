"""The npm package of the TypeScript client, which is the same for every target."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from .release import NAME, ROOT, told, workspace_version

CLIENT = ROOT / "web/client"
#: What is packed or compiled; `prepack` compiles it.
SOURCES = ("src", "examples", "package.json", "tsconfig.json", "README.md", "LICENSE-MIT", "LICENSE-APACHE")


def make(out):
    """Packs the client, or says why not: nothing else of a release needs node."""
    if not shutil.which("npm"):
        print("npm is not installed: the package of @loquent/client is left out")
        return
    if not (CLIENT / "node_modules").exists():
        subprocess.run(["npm", "ci", "--silent"], cwd=CLIENT, check=True)
    # In a copy: files that an earlier build left in `dist` would be packed too.
    with tempfile.TemporaryDirectory() as folder:
        for name in SOURCES:
            source, copy = CLIENT / name, Path(folder, name)
            shutil.copytree(source, copy) if source.is_dir() else shutil.copyfile(source, copy)
        Path(folder, "node_modules").symlink_to((CLIENT / "node_modules").resolve())
        pack = ["npm", "pack", "--silent", "--pack-destination", out.resolve()]
        subprocess.run(pack, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    told(out / f"{NAME}-client-{workspace_version()}.tgz")
