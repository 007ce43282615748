"""Every command that the documents print for installing Loquent, run as it stands, up to the first answer.

The indexes of PyPI and npm and the files of the release are on loopback (local_index.py). `tools/test-install`
runs this file alone, on the packages of a release (LOQUENT_PACKAGES).
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import documented
from conftest import REPOSITORY, Running, Server

from . import lines
from .conftest import bare_environment
from .local_index import LocalIndex

#: What docs/install.md promises from the first command to the first answer.
MOST_SECONDS = 60
QUESTION = "What is token streaming?"
ANSWER = "oken streaming"
CLIENT = REPOSITORY / "web/client"
#: Pages that are read where packages are, and not in the book.
READMES = [CLIENT / "README.md", REPOSITORY / "packaging/wheel/README.md"]
#: A command that brings Loquent onto a machine.
INSTALLS = re.compile(
    r"(sudo )?((pip3?|pipx|uv pip|uv tool|npm|pnpm|yarn|brew|cargo|apt|apt-get|dpkg)"
    r" (install|add|i|-i|binstall|tap-new)\b.*loquent"
    r"|(uvx|npx|pnpx|pipx run) .*loquent|(podman|docker|buildah) (build|bud|pull)\b.*loquent|.*install\.sh *\|)"
)

uv = shutil.which("uv") or Path(sys.executable).with_name("uv")
needs_uv = pytest.mark.skipif(not Path(uv).exists(), reason="uv is not installed (tools/setup e2e)")
needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
can_pack = "LOQUENT_PACKAGES" in os.environ or (CLIENT / "node_modules").exists()
has_npm = shutil.which("npm") and can_pack
needs_npm = pytest.mark.skipif(not has_npm, reason="npm or the client's packages are missing")


@pytest.fixture(scope="module")
def index(packages, tmp_path_factory):
    """The release as users will find it, with its own address in the install script."""
    folder = tmp_path_factory.mktemp("release")
    for path in packages.folder.iterdir():
        if path.is_file():
            (folder / path.name).symlink_to(path)
    with LocalIndex(folder) as index:
        for name in ("SHA256SUMS", "install.sh", "loquent.rb", "Containerfile", "compose.yaml", ".dockerignore"):
            (folder / name).unlink(missing_ok=True)
        command = [sys.executable, REPOSITORY / "tools/dist", "--out", folder]
        if has_npm and not list(folder.glob("loquent-client-*.tgz")):
            subprocess.run([*command, "--only", "npm"], check=True, timeout=100)
        subprocess.run([*command, "--index", "--url", index.release], check=True, timeout=100)
        yield index


@dataclass
class User:
    """Somebody with a home of their own, who has typed nothing yet."""

    home: Path
    index: LocalIndex
    #: Where their programs are, besides the system's.
    bin: Path = None

    def __post_init__(self):
        self.home.mkdir(exist_ok=True)
        self.start = time.monotonic()

    @property
    def environment(self):
        bare = bare_environment(self.home)
        path = f"{self.bin}:{bare['PATH']}" if self.bin else bare["PATH"]
        return {**bare, **self.index.environment(), "PATH": path, "NO_COLOR": "1"}

    def types(self, line):
        """Runs a line of the documents, whose RELEASE is the index's; it has to succeed."""
        line = line.replace("RELEASE", self.index.release)
        done = subprocess.run(
            ["sh", "-euc", line], env=self.environment, cwd=self.home, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def asks(self, program, url):
        """One question in the terminal."""
        return self.types(f"{program} chat --url {url} {shlex.quote(QUESTION)}")

    def is_answered(self, line, answer):
        seconds = time.monotonic() - self.start
        assert ANSWER in answer, answer
        print(f"{line}: first answer after {seconds:.1f} s")
        assert seconds < MOST_SECONDS


def environment_of_python(home):
    """A clean virtual environment, which is there before the first command; returns its programs."""
    subprocess.run([sys.executable, "-m", "venv", home / "environment"], check=True)
    return home / "environment/bin"


@pytest.fixture
def user(index, tmp_path):
    return User(tmp_path / "home", index)


def serve_and_ask(user, line, binary):
    """The line after the installation, and a question."""
    server = Server(binary=binary, env=user.environment, inherits=False)
    try:
        user.is_answered(line, user.asks(binary, server.wait().url))
    finally:
        server.stop()


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Environments of Python take seconds to make: one for all tests, each of which installs anew."""
    return environment_of_python(tmp_path_factory.mktemp("python"))


@pytest.mark.thorough
@pytest.mark.parametrize("line", [lines.PIP, lines.WHEEL])
def test_pip(user, programs, line):
    install_by_pip(user, programs, line)
    serve_and_ask(user, line, programs / "loquent")
    assert ("/simple/loquent/" in user.index.asked) or line != lines.PIP


def install_by_pip(user, programs, line):
    subprocess.run([programs / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "loquent"], check=True)
    (user.home / "target").mkdir()
    (user.home / "target/dist").symlink_to(user.index.folder)
    user.bin = programs
    user.start = time.monotonic()
    user.types(line)


class Uvx(Server):
    """`uvx loquent serve`, which installs and runs in one command."""

    def __init__(self, user):
        arguments = [*shlex.split(lines.UVX)[1:], "--port", "0"]
        Running.__init__(self, *arguments, env=user.environment, binary=user.bin / "uvx", inherits=False)

    def stop(self):
        # It hands the signal on, and ends when its program has.
        self.process.terminate()
        self.process.wait(60)
        super().stop()


@pytest.mark.thorough
@needs_uv
def test_uvx(user, tmp_path):
    user.bin = Path(uv).parent
    server = Uvx(user)
    try:
        user.is_answered(lines.UVX, user.asks("uvx loquent", server.wait().url))
    finally:
        server.stop()


@needs_curl
def test_the_install_script(user):
    user.types(lines.SCRIPT)
    serve_and_ask(user, lines.SCRIPT, user.home / ".local/bin/loquent")
    # The documented way to be rid of it.
    page = (REPOSITORY / "docs/install.md").read_text()
    user.types(next(line for line in documented.spans(page) if line.startswith("rm ~/.local/bin/loquent")))
    left = [path for path in (user.home / ".local").rglob("*") if path.is_file()]
    assert left and all("completions" in str(path) or "site-functions" in str(path) for path in left)


@needs_curl
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the documents name the archive of x86-64")
def test_the_archive_by_hand(user):
    *before, start = documented.block("console", "RELEASE/loquent-").splitlines()
    for line in before:
        user.types(line.removeprefix("$ "))
    binary = start.removeprefix("$ ").removesuffix(" serve")
    serve_and_ask(user, before[0], user.home / binary)


@pytest.mark.thorough
@needs_npm
@pytest.mark.parametrize("line", [lines.NPM, lines.TARBALL])
def test_npm(user, programs, line, tmp_path):
    install_by_pip(User(tmp_path / "server", user.index), programs, lines.PIP)
    server = Server(binary=programs / "loquent", env=user.environment, inherits=False)
    try:
        url = server.wait().url
        (user.home / "target").mkdir()
        (user.home / "target/dist").symlink_to(user.index.folder)
        user.start = time.monotonic()
        user.types(line)
        program = "node node_modules/@loquent/client/examples/terminal.mjs"
        user.is_answered(line, user.types(f"{program} {url}/v1/chat/completions {shlex.quote(QUESTION)}"))
    finally:
        server.stop()


def test_the_documents_print_no_other_command():
    pages = [*documented.documents(), *((path.name, path.read_text()) for path in READMES)]
    printed = {line: name for name, text in pages for line in documented.lines_of(text) if INSTALLS.match(line)}
    unknown = {line: name for line, name in printed.items() if line not in lines.ALL.values()}
    assert not unknown, f"no test runs {unknown}"
    assert not set(lines.ALL.values()) - printed.keys(), "tests run what no document prints"


def test_every_command_of_the_list_is_run():
    folders = [REPOSITORY / "tests" / name for name in ("dist", "clean_root")]
    tests = "".join(path.read_text() for folder in folders for path in folder.glob("test_*.py"))
    assert not [name for name in lines.ALL if f"lines.{name}" not in tests]


@pytest.mark.parametrize("line", ["pip install loquent[x]", "npm i @loquent/client", "curl -f X/install.sh | sh"])
def test_a_command_is_recognised(line):
    assert INSTALLS.match(line)
