"""The npm package of the TypeScript client, which is the same for every target."""

import shutil
import subprocess

from .release import ROOT

CLIENT = ROOT / "web/client"


def make(out):
    """Packs the client, or says why not: nothing else of a release needs node."""
    if not shutil.which("npm"):
        print("npm is not installed: the package of @loquent/client is left out")
        return
    if not (CLIENT / "node_modules").exists():
        subprocess.run(["npm", "ci", "--silent"], cwd=CLIENT, check=True)
    # `prepack` compiles it.
    subprocess.run(["npm", "pack", "--silent", "--pack-destination", out.resolve()], cwd=CLIENT, check=True)
