"""The laws of tools/chaos: an orderly history breaks none, and each is broken by a history that was made to."""

import pytest

from chaos import checker
from chaos.laws import LAWS, LIMITS
from conftest import REPOSITORY
from story import FIRST, SECOND, USAGE, WHOLE, Story, place


def found(story):
    """The broken laws of a history, each with the limit that explains it."""
    report = checker.check(story.events)
    return {(one.law, one.limit) for one in report.broken + report.limits}


def orderly():
    """Two readers; one moves, and the other reads on from a takeover."""
    story = Story().ask().owner(FIRST, 1).read(WHOLE[:10], end="left")
    story.fault("kill", 0, 1.9, 2.2).read(WHOLE[10:], replica=1, place=10, chars=10, t0=2, t1=6)
    story.read(WHOLE[:20], r="a0.1", replica=1, end="broken", t0=1.1, t1=2.0, error="RemoteProtocolError")
    story.owner(SECOND, 2, "7:20", t=5)
    at = place(7, 20)
    story.read(WHOLE[20:], r="a0.1", replica=2, place=at, chars=20, t0=2.5, t1=6)
    return story.reader().reader(r="a0.1").phases().left("ended", 20_000)


def test_an_orderly_history_breaks_no_law():
    story = orderly()
    for replica in range(3):
        story.info("rest", 60, replica=replica, gauges={"delivery_kept_bytes": 0.0})
    story.info("exit", 2, replica=0, by="SIGKILL", code=-9).info("exit", 3, replica=1, by="SIGTERM", code=0)
    assert found(story) == set()


TWICE = {**USAGE, "completion_tokens": 10}
CACHED = {**USAGE, "prompt_tokens_details": {"cached_tokens": 90}}
#: What is added to the orderly history, and the law that it breaks.
PLANTED = {
    "another text": ("one text", lambda it: it.read("Once upon a lake", r="a0.2", end="left")),
    "another text behind a move": ("one text", lambda it: it.read("lake", r="a0.1", place=20, chars=20, end="left")),
    "a poll of another text": ("one text", lambda it: it.poll("Twice", state="in_progress")),
    "a place that names another byte": (
        "one byte", lambda it: it.read(WHOLE[:10], r="a0.2", end="left", places=[[10, 9]])),
    "done before the end": ("done if whole", lambda it: it.read(WHOLE[:10], r="a0.2")),
    "a clean end without the last word": ("done if whole", lambda it: it.read(WHOLE[:10], r="a0.2", end="clean")),
    "two ways to end": ("done if whole", lambda it: it.read(r="a0.2", finish="length")),
    "complete, and then not": ("final", lambda it: it.poll(t=3).poll(state="in_progress", t=4)),
    "complete, and then shorter": ("final", lambda it: it.poll(t=3).poll(WHOLE[:5], t=4)),
    "failed, and then not": (
        "final", lambda it: it.ask("a1", api="responses").read(a="a1", r="a1.0", end="error", error="it ends")
        .poll(a="a1", t=3)),
    "two owners of an epoch": ("one owner", lambda it: it.owner(FIRST, 3, "7:20", t=6)),
    "epochs that are forgotten": ("one owner", lambda it: it.owner(SECOND, 3, "9:20", t=6)),
    "an owner without a higher fence": ("one owner", lambda it: it.owner(FIRST, 2, "7:20,9:25", t=6)),
    "text after a DELETE": (
        "deletes are final", lambda it: it.simple("delete", 204, t=30).read(WHOLE[:5], r="a0.2", t0=32, t1=33,
                                                                         end="left")),
    "text long after a DELETE, to one that was reading": (
        "deletes are final", lambda it: it.simple("delete", 204, t=30).read(r="a0.2", t0=29, t1=37)),
    "an answer that is found after its DELETE": (
        "deletes are final", lambda it: it.simple("delete", 204, t=30).simple("look", 200, t=40)),
    "usage told twice": ("usage is counted once", lambda it: it.read(r="a0.2", usages=2)),
    "no usage": ("usage is counted once", lambda it: it.read(r="a0.2", usage=None, usages=0)),
    "another usage": ("usage is counted once", lambda it: it.read(r="a0.2", usage=TWICE)),
    "another usage in the store": ("usage is counted once", lambda it: it.stored(usage=TWICE)),
    "a wrong token that opens": ("keys are apart", lambda it: it.simple("pry", 200, what="token")),
    "another key's prompt in the cache": (
        "keys are apart",
        lambda it: it.ask("a1", key="bob").read(a="a1", r="a1.0", usage=CACHED).reader(a="a1", r="a1.0")),
    "404 for an answer": ("what exists is found", lambda it: it.refused(t0=12, t1=12)),
    "404 for a place of the last epoch 0": (
        "what exists is found", lambda it: it.ask("a1").refused(a="a1", place=3, t0=12, t1=12)),
    "a proxy that does not find its answer": (
        "what exists is found", lambda it: it.read(WHOLE[:9], r="a0.2", replica="connect0", t0=9, t1=12, end="error",
                                                   error="The server does not have this answer any more.")),
    "404 for a response": ("what exists is found", lambda it: it.ask("a1", api="responses").refused(a="a1")),
    "a reader that is stuck": ("readers come to the end", lambda it: it.reader("stuck", r="a0.2", t=19)),
    "a reader whose answer failed": ("readers come to the end", lambda it: it.reader("failed", r="a0.2")),
    "a reader whose answer is lost": ("readers come to the end", lambda it: it.reader("lost", r="a0.2", t=30)),
    "not stored": ("stored once", lambda it: it.stored(status=404)),
    "another text stored": ("stored once", lambda it: it.stored(WHOLE[:-1] + "!")),
    "bytes that are kept": ("at rest", lambda it: it.info("rest", 60, replica=1, gauges={"delivery_kept_bytes": 8.0})),
    "an answer that runs for ever": ("at rest", lambda it: it.left("running", 20_000)),
    "an answer that the store never forgets": ("at rest", lambda it: it.left("ended", -1)),
    "a crash": ("processes live", lambda it: it.info("exit", 5, replica=1, by="SIGTERM", code=-11)),
    "a replica that ends by itself": ("processes live", lambda it: it.info("exit", 5, replica=1, by="itself", code=0)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name):
    law, plant = PLANTED[name]
    assert found(plant(orderly())) == {(law, None)}, "no limit explains it, and nothing else is broken"


def test_each_law_has_a_history_that_breaks_it():
    names = {law.__name__.replace("_", " ") for law in LAWS}
    assert {law for law, _ in PLANTED.values()} == names


def begun():
    """An answer that is being read when something is lost."""
    return Story().ask().owner(FIRST, 1).read(WHOLE[:10], end="broken", t0=1, t1=3)


#: Histories that a limit explains, with the law and the limit; and the same with another course, which it does not.
EXPLAINED = {
    "the store and the owner, lost together": (
        "what exists is found", "lost with its owner",
        lambda: begun().fault("store-empty", "store", 4, 5).exit(0, 6).refused(t0=30, t1=30),
        lambda: begun().fault("store-empty", "store", 4, 5).exit(1, 6).refused(t0=30, t1=30)),
    "an owner that ends before it has written the answer again": (
        "what exists is found", "lost with its owner",
        lambda: begun().fault("store-empty", "store", 4, 5).exit(0, 6).refused(t0=30, t1=30),
        lambda: begun().fault("store-empty", "store", 4, 5).owner(FIRST, 1, t=6).exit(0, 7).refused(t0=30, t1=30)),
    "an owner that ends after a failover, and has not written the answer again": (
        "what exists is found", "lost with its owner",
        lambda: begun().fault("failover", "store", 4, 5).owner(None, None, t=5.5, state=None).exit(0, 6)
        .refused(t0=30, t1=30),
        lambda: begun().fault("failover", "store", 4, 5).owner(None, None, t=5.5, state=None).owner(FIRST, 1, t=6)
        .exit(0, 7).refused(t0=30, t1=30)),
    "an owner that was asked while the store was away, and ended": (
        "what exists is found", "never in the store",
        lambda: Story().fault("store-pause", "store", 0, 4).ask().exit(0, 3).refused(t0=30, t1=30),
        lambda: Story().fault("store-pause", "store", 0, 0.5).ask().exit(0, 3).refused(t0=30, t1=30)),
    "an answer whose owner ended just before a failover": (
        "what exists is found", "lost with its owner",
        lambda: begun().exit(0, 4).fault("failover", "store", 5, 6).refused(t0=30, t1=30),
        lambda: begun().exit(0, 4).fault("failover", "store", 20, 22).refused(t0=40, t1=40)),
    "a reader of one of these": (
        "readers come to the end", "lost with its owner",
        lambda: begun().fault("failover", "store", 4, 5).exit(0, 6).reader("lost", t=30),
        lambda: begun().fault("failover", "store", 4, 5).exit(0, 20).reader("lost", t=30)),
    "an object, lost by the store": (
        "what exists is found", "objects lost by the store",
        lambda: Story().ask(api="responses").fault("store-empty", "store", 1, 2).refused(t0=12, t1=12),
        lambda: Story().ask(api="responses").fault("store-restart", "store", 1, 2).refused(t0=12, t1=12)),
    "a response, as it was before a failover": (
        "final", "objects lost by the store",
        lambda: Story().ask(api="responses").poll(t=3).fault("failover", "store", 3, 4).poll(state="in_progress", t=5),
        lambda: Story().ask(api="responses").poll(t=3).fault("kill", 0, 3, 4).poll(state="in_progress", t=5)),
    "a chat that the store has lost": (
        "stored once", "objects lost by the store",
        lambda: Story().ask().read().reader().fault("store-empty", "store", 4, 5).stored(status=404),
        lambda: Story().ask().read().reader().fault("store-restart", "store", 4, 5).stored(status=404)),
    "an owner that is cut off": (
        "what exists is found", "not in the store yet",
        lambda: begun().fault("cut", 0, 4, 8).refused(place=10, t0=9, t1=9),
        lambda: begun().fault("cut", 1, 4, 8).refused(place=10, t0=30, t1=30)),
    "a proxy whose replica is cut off": (
        "what exists is found", "not in the store yet",
        lambda: begun().fault("cut", 0, 4, 9).read(WHOLE[:9], r="a0.2", replica="connect0", t0=3, t1=8, end="error",
                                                   error="The server does not have this answer any more."),
        lambda: begun().fault("cut", 0, 4, 9).exit(0, 7).read(
            WHOLE[:9], r="a0.2", replica="connect0", t0=3, t1=8, end="error",
            error="The server does not have this answer any more.")),
    "a place that a takeover has left behind": (
        "what exists is found", "place of an old epoch",
        lambda: begun().owner(SECOND, 2, "7:5", t=4).refused(place=10, t0=9, t1=9),
        lambda: begun().owner(SECOND, 2, "7:12", t=4).refused(place=10, t0=9, t1=9)),
    "a place that an owner of before does not know": (
        "what exists is found", "owner that does not know its successor",
        lambda: begun().owner(SECOND, 2, "7:5", t=4).refused(place=place(7, 8), t0=9, t1=9),
        lambda: begun().owner(SECOND, 2, "7:5", t=4).refused(t0=9, t1=9)),
    "a stop that a failover has lost": (
        "deletes are final", "stop lost by a failover",
        lambda: begun().simple("delete", 204, t=4).fault("failover", "store", 5, 6).simple("look", 200, t=20),
        lambda: begun().fault("failover", "store", 0, 1).simple("delete", 204, t=4.5).simple("look", 200, t=20)),
    "a stop that a replica without the store has not heard of": (
        "deletes are final", "stop not known without the store",
        lambda: begun().simple("delete", 204, t=4).fault("stall", 1, 3, 9).simple("look", 200, replica=1, t=8),
        lambda: begun().simple("delete", 204, t=4).fault("stall", 1, 3, 9).simple("look", 200, replica=1, t=20)),
    "an answer of other settings, whose replica is gone": (
        "readers come to the end", "nobody with the same settings",
        lambda: Story("kv-type").ask().exit(0, 4).phases().reader("stuck", t=19),
        lambda: Story("interval").ask().exit(0, 4).phases().reader("stuck", t=19)),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_limit_explains_no_more_than_the_documents_say(name):
    law, limit, explained, unexplained = EXPLAINED[name]
    assert (law, limit) in found(explained())
    assert (law, None) in found(unexplained())
    assert not checker.check(explained().events).broken


def test_each_limit_has_a_history_and_a_page_that_states_it():
    assert {limit for _, limit, *_ in EXPLAINED.values()} == set(LIMITS)
    for page in LIMITS.values():
        file, _, anchor = page.partition("#")
        headings = [line.lstrip("# ").lower().replace(" ", "-").strip()
                    for line in (REPOSITORY / file).read_text().splitlines() if line.startswith("#")]
        assert anchor in headings, page


def test_what_was_stopped_may_be_refused_and_left_unread():
    story = begun().simple("delete", 204, t=4).refused(t0=5, t1=5).reader("stopped", t=5).simple("look", 404, t=20)
    assert found(story) == set()


def test_a_reader_that_reads_again_begins_another_reading():
    """Its place was lost; it compares what comes again, and is told one usage."""
    story = begun().owner(SECOND, 2, "7:5", t=4).refused(place=10, t0=5, t1=5)
    story.read(t0=6, t1=7, replica=2).reader()
    assert found(story) == {("what exists is found", "place of an old epoch")}


def test_usage_and_done_may_come_over_different_connections():
    story = Story().ask().read(end="broken", usage=USAGE, usages=1, finish="stop")
    story.read("", place=40, chars=len(WHOLE), usage=None, usages=0, finish=None).reader()
    assert found(story) == set()


def test_a_run_that_did_not_end_says_nothing_of_those_who_were_reading():
    assert found(begun().reader("stuck", t=9)) == set()


def test_a_report_says_what_was_done_and_which_lines_break_a_law():
    report = checker.check(orderly().poll("Twice", state="in_progress", t=3).events)
    text = report.text()
    assert "answers:       1" in text and "1 kill" in text and "1 one text" in text
    (broken,) = report.broken
    assert f"BROKEN one text: a0: {broken.what}; lines {broken.lines[0]}, {broken.lines[1]}" in text
    assert report.summary()["takeovers"] == 1
