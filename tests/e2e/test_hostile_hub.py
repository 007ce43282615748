"""`loquent pull` from a hub that lies about its files, never comes to an end, or names places outside the cache."""

import gzip
import itertools
import signal

import pytest

from hub_stand_in import COMMIT, CONTENT, HASH, PATIENCE_S, REPO, entry


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

