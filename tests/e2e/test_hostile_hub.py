"""`loquent pull` from a hub that lies about its files, never comes to an end, or names places outside the cache."""

import contextlib
import gzip
import itertools
import os
import signal
import subprocess
import threading

import pytest

from conftest import BINARY
from hub_stand_in import COMMIT, CONTENT, HASH, REPO, entry

#: Far more than any of these pulls needs that is bounded, retries with their pauses among it.
PATIENCE_S = 60
#: Most bytes that the program may hold while a hub sends without end: a listing has 32 MiB at most.
MOST_KIB = 300 << 10


class Pull:
    """A running `loquent pull`, whose cache is a folder of its own inside another."""

    def __init__(self, hub, folder):
        self.outside, self.cache = folder, folder / "a" / "b" / "cache"
        self.cache.mkdir(parents=True)
        named = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        places = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(self.cache), "HF_HOME": str(folder / "home")}
        said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen([BINARY, "pull", REPO], env={**named, **places}, **said)

    def end(self):
        """Exit status and what was said, once it has ended by itself; its peak of memory is checked."""
        with contextlib.ExitStack() as ends:
            ends.callback(self.process.kill)
            timer = threading.Timer(PATIENCE_S, self.process.kill)
            timer.start()
            ends.callback(timer.cancel)
            said = self.process.stdout.read().decode()
            _, status, used = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
        assert self.process.returncode >= 0, f"it ended by {signal.Signals(-self.process.returncode).name}: {said}"
        assert "panicked" not in said, said
        assert used.ru_maxrss < MOST_KIB, f"{used.ru_maxrss} KiB"
        return self.process.returncode, said

    def files(self):
        """Files outside the cache, and those in it that somebody could load."""
        found = [path for path in self.outside.rglob("*") if path.is_file()]
        # A lock, an incomplete download and a download under its hash are not loaded.
        outside = [path for path in found if self.cache not in path.parents]
        return outside, [path for path in found if self.cache in path.parents and path.suffix == ".gguf"]

    def fails(self):
        """What it says when it fails as it should, with nothing written that could be loaded."""
        status, said = self.end()
        assert status == 1, (status, said)
        assert self.files() == ([], []), said
        assert said.strip() and all(char.isprintable() or char == "\n" for char in said), repr(said)
        return said


@pytest.fixture
def pull(hub, tmp_path):
    begun = []

    def begin():
        begun.append(Pull(hub, tmp_path))
        return begun[-1]

    yield begin
    for one in begun:
        if one.process.returncode is None:
            one.process.kill()
            one.process.wait()
        one.process.stdout.close()


def test_an_honest_hub_is_pulled_from(hub, pull):
    honest = pull()
    status, said = honest.end()
    assert status == 0, said
    assert [path.read_bytes() for path in honest.files()[1]] == [CONTENT]


@pytest.mark.parametrize("size", [0, 1, len(CONTENT) - 1, len(CONTENT) + 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_size_that_is_none_of_the_file_is_refused(hub, pull, size):
    hub.listing = lambda handler: handler.json({"sha": COMMIT, "siblings": [entry(size=size)]})
    assert "model.gguf" in pull().fails()


@pytest.mark.parametrize("size", [-1, 2**64, 1.5, "1004", [], {}])
def test_a_size_that_is_no_number_of_bytes_is_refused(hub, pull, size):
    hub.listing = lambda handler: handler.json({"sha": COMMIT, "siblings": [entry(size=size)]})
    pull().fails()


def test_a_file_that_never_ends_is_given_up_at_its_size(hub, pull):
    hub.content = lambda handler: handler.endless(CONTENT * 64)
    pull().fails()


def test_a_size_that_a_hub_announces_in_a_header_alone_is_checked_too(hub, pull):
    """A mirror without sizes and hashes, whose headers promise what does not come."""
    hub.listing = lambda handler: handler.json({"sha": COMMIT, "siblings": [{"rfilename": "model.gguf"}]})

    def content(handler):
        if handler.command == "HEAD":
            return handler.head(etag=f'"{HASH}"', content_length=2**64 - 1)
        handler.whole(CONTENT)

    hub.content = content
    pull().fails()


@pytest.mark.parametrize("tag", ["../../../../evil", "/etc/passwd", "a" * 63, "a" * 2000, ""])
def test_a_hash_that_is_none_names_no_file(hub, pull, tag):
    """Neither in the listing nor in the header that is looked at where the listing has none."""
    hub.listing = lambda handler: handler.json({"sha": COMMIT, "siblings": [entry(sha256=tag)]})
    hub.content = lambda handler: handler.whole(b"", etag=f'"{tag}"')
    pull().fails()


@pytest.mark.parametrize("commit", ["../../../../evil", "", COMMIT[:-1], COMMIT + "/..", None, 5])
def test_a_commit_that_is_none_names_no_folder(hub, pull, commit):
    hub.listing = lambda handler: handler.json({"sha": commit, "siblings": [entry()]})
    pull().fails()


#: Places outside the cache, and names that would do something to a terminal.
NAMES = ["../../../x.gguf", "a/../../../../x.gguf", "/tmp/x.gguf", "..\\..\\x.gguf", "C:\\x.gguf", "./x.gguf",
         "a//x.gguf", "x\0.gguf", "\x1b[2J\x1b]0;title\x07x.gguf", "x\n.gguf", "x-\u202efugg.gguf",
         "a" * 5000 + ".gguf"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_that_leads_elsewhere_is_no_file(hub, pull, name):
    hub.listing = lambda handler: handler.json({"sha": COMMIT, "siblings": [entry(name)]})
    pull().fails()
    assert not [path for path in hub.asked if not path.startswith("/api/")], "nothing of it was asked for"


def test_of_thousands_of_names_few_are_shown(hub, pull):
    siblings = [entry(f"{number}{'a' * 100}.gguf") for number in range(10_000)]
    hub.listing = lambda handler: handler.json({"sha": COMMIT, "siblings": siblings})
    assert len(pull().fails()) < 10_000


@pytest.mark.parametrize("of", ["listing", "content"])
def test_redirects_without_end_are_given_up(hub, pull, of):
    numbers = itertools.count()
    setattr(hub, of, lambda handler: handler.redirect(f"/{'api/' * (of == 'listing')}{next(numbers)}"))
    pull().fails()
    assert len(hub.asked) < 100


NOWHERE = ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1:1/x", "x", "//", "http://", "http://127.0.0.1:0/x",
           "http://[::1", "http://a@b@c/x", "/" + "x" * 60_000]


@pytest.mark.parametrize("to", NOWHERE, ids=range(len(NOWHERE)))
def test_redirects_that_lead_nowhere_are_refused(hub, pull, to):
    hub.listing = lambda handler: handler.redirect(to)
    pull().fails()


def test_a_listing_that_never_ends_is_given_up(hub, pull):
    hub.listing = lambda handler: handler.endless(b" " * (1 << 20))
    pull().fails()


def test_a_compressed_listing_that_grows_without_end_is_no_listing(hub, pull):
    bomb = gzip.compress(bytes(40 << 20), 1)
    hub.listing = lambda handler: handler.whole(bomb, content_encoding="gzip")
    pull().fails()


LISTINGS = {"nothing": b"", "null": b"null", "a list": b"[]", "deep lists": b"[" * 200_000,
            "deep objects": b'{"sha":' * 50_000, "no UTF-8": b"\xff" * 100, "cut": b'{"sha":"' + b"a" * 100}


@pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS)
def test_a_listing_that_is_none_is_refused(hub, pull, listing):
    hub.listing = lambda handler: handler.whole(listing)
    pull().fails()


def test_a_head_that_never_ends_is_given_up(hub, pull):
    def head(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not hub.ended.is_set():
            handler.wfile.write(b"x-a: " + b"a" * 1000 + b"\r\n")

    hub.listing = head
    pull().fails()


def test_a_file_that_trickles_can_be_given_up_by_its_user(hub, pull):
    """A slow line is no fault; but Ctrl-C ends the wait for the next byte."""
    hub.content = lambda handler: handler.endless(b"G", 0.2)
    trickled = pull()
    while not [path for path in hub.asked if "/resolve/" in path]:
        assert trickled.process.poll() is None
        hub.ended.wait(0.05)
    trickled.process.send_signal(signal.SIGINT)
    assert trickled.process.wait(PATIENCE_S) != 0
    assert trickled.files() == ([], [])


def test_error_pages_are_not_read_to_their_end(hub, pull):
    hub.listing = lambda handler: handler.endless(b"no" * 10_000, status=404, x_error_code="RepoNotFound")
    assert REPO in pull().fails()

