"""Packages the built binary once for all tests of this folder, quickly: how small it gets is not their subject."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from conftest import BINARY, REPOSITORY, Server

#: Where the release says that it will be.
URL = "https://releases.example/v1"


@dataclass(frozen=True)
class Packages:
    """The folder of a release."""

    folder: Path

    def one(self, pattern):
        found = list(self.folder.glob(pattern))
        assert len(found) == 1, f"{pattern}: {[path.name for path in self.folder.iterdir()]}"
        return found[0]


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    if prepared := os.environ.get("LOQUENT_PACKAGES"):
        return Packages(Path(prepared))
    out = tmp_path_factory.mktemp("packages")
    # The client's package is made where it is used: test_installation.py, tests/e2e/app_react.test.mjs.
    options = ["--strip", "--fast", "--only", "archive,deb,wheel", "--out", out, "--url", URL]
    command = [sys.executable, REPOSITORY / "tools/dist", "--binary", BINARY]
    subprocess.run([*command, *options], check=True, timeout=110)
    return Packages(out)


def bare_environment(home):
    """What somebody has who has just logged in: no variable of the machine that tests."""
    return {"HOME": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def assert_serves(binary, home):
    """A first user's first minute: serve, open the page, ask."""
    home.mkdir(exist_ok=True)
    server = Server(binary=binary, env=bare_environment(home), inherits=False)
    try:
        server.wait()
        body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 40}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"].strip()
        assert "<html" in httpx.get(f"{server.url}/").text.lower()
    finally:
        server.stop()
