"""bench/upstream-kills.py: a byte that is lost or doubled is counted, at a seam and where no stream moved."""

import importlib
import sys

import pytest

path_before = list(sys.path)
kills = importlib.import_module("upstream-kills")
sys.path[:] = path_before

SEAM = (len("one two "), 2)


def answer(text, whole=True, seams=(), pause_ms=1.0):
    return {"text": text, "whole": whole, "seams": list(seams), "pause_ms": pause_ms}


@pytest.mark.parametrize(
    "text, lost, doubled",
    [
        ("one two three", 0, 0),
        ("one two two three", 0, 4),
        ("one three", 4, 0),
        ("one two thr\u00e9e", 1, 2),
        ("", 13, 0),
    ],
)
def test_what_a_text_lacks_and_what_it_has_twice_is_counted_in_bytes(text, lost, doubled):
    assert kills.differences("one two three", text) == (lost, doubled)
    complete, _, found_doubled, _, found_lost, _, moved, _ = kills.row([answer(text)], ["one two three"], {})
    assert (complete, found_doubled, found_lost, moved) == (1, doubled, lost, 0)


def test_a_moved_stream_is_held_against_the_server_that_went_on():
    # What this server says behind the seam need not be what the other one would have said.
    undisturbed, rests = ["one two three", "a b"], {(0, SEAM[0]): "four"}
    good = [answer("one two four", seams=[SEAM], pause_ms=70.0), answer("a b")]
    assert kills.row(good, undisturbed, rests) == [2, ">= 32", 0, "<= 0", 0, "<= 0", 1, "70"]
    for text, doubled, lost in (("one two two four", 4, 0), ("one two our", 0, 1)):
        found = kills.row([answer(text, seams=[SEAM]), answer("a b", whole=False)], undisturbed, rests)
        assert (found[0], found[2], found[4]) == (1, doubled, lost)
    # Before the seam it is the text where nothing fails.
    assert kills.row([answer("one owo four", seams=[SEAM]), answer("a b")], undisturbed, rests)[4] > 0
