"""The Containerfile, built by buildah without a daemon and run as its user; the clean system stands in for its base."""

import os
import platform
import shlex
import shutil
import subprocess

import pytest

from dist import lines

from .conftest import PACKAGES, SYSTEM

pytestmark = [
    pytest.mark.skipif(not shutil.which("buildah"), reason="buildah is not installed"),
    pytest.mark.timeout(900),
]
#: The name of the image that the Containerfile begins with, as it is stored.
BASE = "docker.io/library/debian:12-slim"
ASK = """
test "$(id -un)" = loquent
/usr/bin/loquent serve --port 8123 2>/tmp/log &
server=$!
trap 'kill $server; wait $server || true' EXIT  # buildah leaves it running
until grep -q " Chat: " /tmp/log; do
    kill -0 $server || { cat /tmp/log; exit 1; }
    sleep 0.1
done
/usr/bin/loquent chat --url http://127.0.0.1:8123 "What is Loquent?"
"""


class Buildah:
    """buildah with a store of its own, which needs no daemon and no namespaces."""

    def __init__(self, folder):
        self.command = ["buildah", "--root", folder / "store", "--runroot", folder / "run", "--storage-driver", "vfs"]
        self.environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}

    def __call__(self, *arguments):
        command = [*self.command, *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout.strip()


@pytest.fixture
def buildah(tmp_path):
    run = Buildah(tmp_path)
    yield run
    # The images are several hundred megabytes.
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_the_image_answers(buildah):
    empty = buildah("from", "scratch")
    buildah("add", empty, SYSTEM, "/")
    buildah("commit", "--quiet", empty, BASE)
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    # `podman build` is buildah's; its last word is the folder.
    _, build, *options, _ = shlex.split(lines.IMAGE)
    buildah(build, "--pull=never", "--build-arg", f"TARGETARCH={architecture}", *options, PACKAGES)
    container = buildah("from", "--pull=never", "localhost/loquent")
    assert "Loquent" in buildah("run", container, "--", "sh", "-euc", ASK)
    configured = buildah("inspect", "--format", "{{.OCIv1.Config}}", container)
    assert "8080/udp" in configured and "0.0.0.0" in configured, configured
