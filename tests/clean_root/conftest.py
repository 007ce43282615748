"""A clean system of an older Debian, in which nothing of this machine is to be found."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = Path(os.environ.get("LOQUENT_PACKAGES", REPOSITORY / "target/dist"))
#: A tar of the system, which tools/test-dist makes.
SYSTEM = Path(os.environ["LOQUENT_CLEAN_ROOT"])

#: A network and processes of its own: nothing is reached from outside, and nothing is left running.
INSIDE = """
ip link set lo up
mount -t proc proc "$1/proc"
exec chroot "$1" /bin/sh -eu /tmp/script
"""
ISOLATED = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]


class CleanRoot:
    """The system, unpacked for one test."""

    def __init__(self, folder):
        self.folder = folder
        subprocess.run(["tar", "-xf", SYSTEM, "-C", folder, "--numeric-owner"], check=True)
        (folder / "packages").mkdir()

    def carry(self, pattern):
        """Copies the newest package of that name in; returns its path inside."""
        found = sorted(PACKAGES.glob(pattern), key=lambda path: path.stat().st_mtime)
        assert found, f"{PACKAGES} has no {pattern}: make dist"
        shutil.copy(found[-1], self.folder / "packages")
        return f"/packages/{found[-1].name}"

    def run(self, script):
        """Runs a shell script inside; returns what it prints and the seconds that it took."""
        (self.folder / "tmp/script").write_text(script)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        start = time.monotonic()
        command = [*ISOLATED, "sh", "-eu", "-c", INSIDE, "sh", self.folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
        seconds = time.monotonic() - start
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout, seconds


@pytest.fixture
def clean_root(tmp_path):
    return CleanRoot(tmp_path)
