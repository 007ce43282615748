"""Runs every `sh` block of the book as it stands; only port numbers are replaced by free ones."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from conftest import BINARY, REPOSITORY, free_port

DOCS = REPOSITORY / "docs"
# Ports of commands that name none.
DEFAULT_PORT = {"serve": "8080", "connect": "11435"}
# Most seconds that a block may take; each is to take a few.
BLOCK_TIMEOUT_S = 120
START_TIMEOUT_S = 60


def chapters():
    """The Markdown files of the book."""
    links = re.findall(r"\]\(([^)]+\.md)\)", (DOCS / "SUMMARY.md").read_text())
    return [(DOCS / link).resolve() for link in links]


def blocks(chapter):
    """The code of a chapter's `sh` blocks, and the line where each begins."""
    found, lines, begin = [], [], None
    for number, line in enumerate(chapter.read_text().splitlines(), 1):
        fence = line.strip()
        if begin is None and fence == "```sh":
            begin, indent = number + 1, len(line) - len(line.lstrip())
        elif begin is not None and fence == "```":
            found.append((begin, "\n".join(lines)))
            lines, begin = [], None
        elif begin is not None:
            lines.append(line[indent:])
    return found


class Reader:
    """Somebody who goes through a chapter: each block in a shell of its own, all in one folder."""

    def __init__(self, server, folder):
        self.folder = folder
        self.ports = {"8080": server.url.rsplit(":", 1)[1]}
        self.servers = []
        binaries = folder / "bin"
        binaries.mkdir()
        (binaries / "loquent").symlink_to(Path(BINARY).resolve())
        # curl says nothing of 404 and the like unless it is told to.
        (folder / ".curlrc").write_text("fail\nsilent\nshow-error\n")
        home = {name: str(folder) for name in ("HOME", "CURL_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
        path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, **home, "PATH": path, "LOQUENT_LOG": "warn"}

    def type(self, code):
        """Runs a block; servers in it stay up until the chapter's end."""
        waiting = []
        for command in commands(code):
            words = command.split()
            if words[0] == "loquent" and words[1] in DEFAULT_PORT:
                self.run(waiting)
                waiting = []
                self.start(command, words[1])
            else:
                waiting.append(command)
        self.run(waiting)

    def run(self, lines):
        if not lines:
            return
        script = "\n".join(["set -euo pipefail", *map(self.with_ports, lines)])
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=BLOCK_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{script}\n--- {done.returncode}\n{done.stdout}\n{done.stderr}"

    def with_ports(self, command):
        for port, free in self.ports.items():
            command = re.sub(rf"(?<=:){port}\b|(?<=--port ){port}\b", free, command)
        return command

    def start(self, command, kind):
        named = re.search(r"--port (\d+)", command) if kind == "serve" else None
        port, free = named[1] if named else DEFAULT_PORT[kind], str(free_port())
        # `connect` and `--upstream` name an older server, whose port stays.
        command = self.with_ports(command.replace(f"--port {port}", f"--port {free}"))
        self.ports[port] = free
        own = {"LOQUENT_PORT": free} if kind == "serve" else {"LOQUENT_LISTEN": f"127.0.0.1:{free}"}
        log = open(self.folder / f"{len(self.servers)}.log", "w+")
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=self.folder, env={**self.env, **own}, stderr=log, stdout=log
        )
        self.servers.append((process, log))
        path = "/ready" if kind == "serve" else "/v1/models"
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(f"http://127.0.0.1:{free}{path}"):
            log.seek(0)
            assert process.poll() is None, f"{command}\n{log.read()}"
            assert time.monotonic() < deadline, f"{command} does not get ready\n{log.read()}"
            time.sleep(0.05)

    def leave(self):
        for process, log in reversed(self.servers):
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            log.close()


def answers(url):
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def commands(code):
    """The commands of a block, each with its further lines; comments are left out."""
    joined, quotes = [], 0
    for line in code.splitlines():
        if quotes % 2 or (joined and joined[-1].endswith("\\")):
            joined[-1] += "\n" + line
        elif line.strip() and not line.strip().startswith("#"):
            joined.append(line)
            quotes = 0
        else:
            continue
        quotes += line.count("'")
    return joined


TESTED = [chapter for chapter in chapters() if blocks(chapter)]


@pytest.mark.parametrize("chapter", TESTED, ids=lambda chapter: chapter.stem)
def test_the_commands_of_a_chapter_work(chapter, server, tmp_path):
    for tool in ("bash", "curl", "openssl"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    reader = Reader(server, tmp_path)
    try:
        for line, code in blocks(chapter):
            try:
                reader.type(code)
            except AssertionError as error:
                raise AssertionError(f"{chapter.relative_to(REPOSITORY)}:{line}\n{error}") from None
    finally:
        reader.leave()


def test_chapters_run_commands_or_say_that_they_do_not():
    """A shell command in a block of another kind would be neither tested nor marked."""
    unmarked = []
    for chapter in chapters():
        begin = None
        for number, line in enumerate(chapter.read_text().splitlines(), 1):
            if line.strip().startswith("```"):
                begin = None if begin else line.strip().removeprefix("```") or "nothing"
            elif begin not in (None, "sh", "console") and re.match(r"\s*(\$ )?(loquent|curl|docker|systemctl) ", line):
                unmarked.append(f"{chapter.relative_to(REPOSITORY)}:{number}: {line}")
    assert len(TESTED) > 8
    assert not unmarked, "mark these as sh (run by this test) or console:\n" + "\n".join(unmarked)


def test_openapi_file_is_that_of_the_server(http):
    served = http.get("/openapi.json")
    assert served.json() == httpx.Response(200, content=(DOCS / "openapi.json").read_bytes()).json()
    for path, item in served.json()["paths"].items():
        for method in item:
            concrete = path.replace("{id}", "nothing")
            # Some of these streams never end: only a refusal is read.
            body = b"{}" if method == "post" else None
            with httpx.stream(
                method.upper(), str(http.base_url).rstrip("/") + concrete, content=body, timeout=60
            ) as answer:
                told = answer.read().decode() if answer.status_code >= 400 else ""
            # A route that is there may know no such answer, but says so in its own words.
            assert answer.status_code != 405 and "does not exist on this server" not in told, f"{method} {path}: {told}"


def test_the_book_is_served_without_a_key_and_compressed(start):
    url = start("--api-key", "secret").url
    with httpx.Client(base_url=url) as visitor:
        page = visitor.get("/docs")
        assert page.status_code == 200 and page.headers["content-encoding"] == "gzip"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        again = visitor.get("/docs", headers={"if-none-match": page.headers["etag"]})
        assert again.status_code == 304
        for name in set(re.findall(r'"\.(/docs/[^"#]*)', page.text)):
            assert visitor.get(name).status_code == 200, name
