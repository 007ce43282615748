"""A processor that lacks what the build needs: said in words, where the process would have died of
an illegal instruction. Such a processor is emulated; what does not compute works on it."""

import os
import platform
import shutil
import subprocess

import pytest

from conftest import BINARY

EMULATOR = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the build is for another architecture"),
    pytest.mark.skipif(not EMULATOR, reason="qemu-user is not installed (tools/setup e2e)"),
]


@pytest.fixture
def on_old_processor(tmp_path):
    """Runs the binary on a processor of 2008: SSE4.2, and neither AVX nor anything after it."""

    def run(*arguments):
        command = [EMULATOR, "-cpu", "Nehalem", BINARY, *arguments]
        environment = {**os.environ, "HOME": str(tmp_path)}  # tune writes there
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)

    return run


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["tune"]])
def test_what_is_lacking_is_named_before_a_model_is_loaded(on_old_processor, command):
    done = on_old_processor(*command)
    assert done.returncode == 1, done
    assert "this processor lacks" in done.stderr and "AVX2" in done.stderr, done.stderr
    assert "docs/building.md" in done.stderr


def test_it_can_still_ask_a_server_elsewhere(on_old_processor, server):
    done = on_old_processor("chat", "--url", server.url, "Hi")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), done.stderr
