"""The archive and the install script that fetches it, and what speaks of all packages."""

import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
from functools import partial

import pytest

from conftest import REPOSITORY

from .conftest import URL, assert_serves, bare_environment


@pytest.fixture(scope="module")
def unpacked(packages, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(packages.one("*.tar.gz")) as archive:
        assert {(it.uid, it.gid, it.uname) for it in archive} == {(0, 0, "root")}
        subprocess.run(["tar", "-xzf", archive.name, "-C", folder], check=True)
    (inside,) = folder.iterdir()
    return inside


def test_the_checksums_are_those_of_every_file(packages):
    lines = packages.one("SHA256SUMS").read_text().splitlines()
    said = {name: sums for sums, name in (line.split("  ") for line in lines)}
    files = [path for path in packages.folder.iterdir() if path.name != "SHA256SUMS" and not path.name.startswith(".")]
    assert said == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert {"install.sh", "loquent.rb", "Containerfile", "compose.yaml"} < said.keys()


def test_the_archive_has_the_binary_and_its_documents(unpacked):
    files = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    documents = {"README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY.txt", "loquent.cdx.json"}
    completions = {f"completions/{name}" for name in ("loquent.bash", "_loquent", "loquent.fish")}
    assert documents | completions | {"loquent", "loquent.service", "man/loquent.1", "man/loquent-serve.1"} <= files
    notices = (unpacked / "THIRD-PARTY.txt").read_text()
    for name in ("tokio 1", "llama-cpp-sys-2", "ggml authors", "@preact/signals"):
        assert name in notices, name
    bill = json.loads((unpacked / "loquent.cdx.json").read_text())
    assert bill["metadata"]["component"]["name"] == "loquent"
    here = str(REPOSITORY)
    assert not [name for name in files - {"loquent"} if here in (unpacked / name).read_text(errors="replace")]


def test_every_command_has_a_page_and_is_completed(unpacked):
    text = subprocess.run([unpacked / "loquent", "--help"], capture_output=True, text=True, check=True).stdout
    listed = text.split("Commands:\n")[1].split("\n\n")[0]
    # A description's second line is indented further.
    commands = set(re.findall(r"^  (\S+)", listed, re.M)) - {"help"}
    assert {"serve", "chat", "completions", "man"} <= commands
    pages = {path.name for path in (unpacked / "man").iterdir()}
    assert {f"loquent-{command}.1" for command in commands} <= pages
    for path in (unpacked / "completions").iterdir():
        missing = {command for command in commands if command not in path.read_text()}
        assert not missing, f"{path.name} does not know {missing}"


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_bash_completes_a_command(unpacked, tmp_path):
    script = """
        source "$1"
        COMP_WORDS=(loquent ser) COMP_CWORD=1
        _loquent loquent ser loquent
        echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", script, "bash", unpacked / "completions/loquent.bash"], capture_output=True, text=True
    )
    assert "serve" in done.stdout.split(), done


def test_a_reader_of_completions_that_has_gone_away_is_no_error(unpacked):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([unpacked / "loquent", "completions", "zsh"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not shutil.which("groff"), reason="groff, which sets manual pages, is not installed")
def test_a_page_can_be_read(unpacked):
    page = unpacked / "man/loquent-serve.1"
    # As `man` runs it; -ww says what it does not understand.
    command = ["groff", "-man", "-Tascii", "-ww", "-P-c", page]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    # Bold letters are overstruck.
    assert "--port" in re.sub(".\b", "", shown.stdout), shown.stdout[:2000]


@pytest.mark.skipif(not shutil.which("ruby"), reason="ruby is not installed")
def test_the_formula_is_ruby_and_names_the_archive(packages):
    path, archive = packages.one("loquent.rb"), packages.one("*.tar.gz")
    subprocess.run(["ruby", "-c", path], check=True, stdout=subprocess.DEVNULL)
    text = path.read_text()
    assert f'url "{URL}/{archive.name}"' in text
    assert hashlib.sha256(archive.read_bytes()).hexdigest() in text


@pytest.fixture
def mirror(packages, tmp_path):
    """The release's files, as an HTTP server offers them; a test may change its own copy."""
    folder = tmp_path / "mirror"
    shutil.copytree(packages.folder, folder)
    handler = partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Requests are not news."""


needs_curl = pytest.mark.skipif(not (shutil.which("curl") or shutil.which("wget")), reason="no curl and no wget")


def install(folder, url, home):
    home.mkdir()
    environment = {**bare_environment(home), "LOQUENT_RELEASE_URL": url}
    # As `curl … | sh` runs it.
    with open(folder / "install.sh") as script:
        return subprocess.run(["sh"], stdin=script, env=environment, capture_output=True, text=True, timeout=100)


@needs_curl
def test_the_script_installs_what_then_serves(mirror, tmp_path):
    folder, url = mirror
    home = tmp_path / "home"
    done = install(folder, url, home)
    assert done.returncode == 0, done.stderr
    assert "is not in PATH" in done.stdout
    assert (home / ".local/share/man/man1/loquent.1").exists()
    assert_serves(home / ".local/bin/loquent", home)


def test_the_script_has_help_and_knows_no_other_option(packages, tmp_path):
    script = ["sh", packages.one("install.sh")]
    helped = subprocess.run([*script, "--help"], env=bare_environment(tmp_path), capture_output=True, text=True)
    assert helped.returncode == 0 and "LOQUENT_INSTALL_DIR" in helped.stdout and str(tmp_path) in helped.stdout
    refused = subprocess.run([*script, "--prefix"], env=bare_environment(tmp_path), capture_output=True, text=True)
    assert refused.returncode == 1 and "there is no option --prefix" in refused.stderr
    assert not list(tmp_path.iterdir())


@needs_curl
@pytest.mark.parametrize(
    ("mode", "cause"),
    [(0o755, "needs glibc"), pytest.param(0o644, "set TMPDIR to another folder", id="as on a noexec file system")],
)
def test_the_script_says_why_a_binary_does_not_run_here(mirror, packages, tmp_path, mode, cause):
    folder, url = mirror
    archive = folder / packages.one("*.tar.gz").name
    inside = tmp_path / archive.name.removesuffix(".tar.gz")
    inside.mkdir()
    (inside / "loquent").write_text("#!/no/such/loader\n")
    (inside / "loquent").chmod(mode)
    subprocess.run(["tar", "-czf", archive, "-C", tmp_path, inside.name], check=True)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  {archive.name}\n")
    done = install(folder, url, tmp_path / "home")
    assert done.returncode == 1 and cause in done.stderr and "nothing was installed" in done.stderr
    assert not (tmp_path / "home/.local").exists()


@needs_curl
def test_the_script_refuses_an_archive_that_is_not_the_releases(mirror, packages, tmp_path):
    folder, url = mirror
    with open(folder / packages.one("*.tar.gz").name, "ab") as archive:
        archive.write(b"more")
    done = install(folder, url, tmp_path / "home")
    assert done.returncode == 1 and "nothing was installed" in done.stderr
    assert not (tmp_path / "home/.local").exists()
