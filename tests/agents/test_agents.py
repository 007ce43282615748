"""Unmodified agents and SDKs against the real binary, with a scripted model behind it: whole loops."""

import re
import time

import pytest
from scripted_model import FIRST, GREETING, LAST
from sdks import SDKS

from agents import OPEN_WEBUI, Aider, ClaudeCode, Cline, Codex, Continue, Opencode, Pi, QwenCode
from conftest import SECONDS, WORD, assert_streamed, whole

AGENTS = [Codex(), ClaudeCode(), Opencode(), QwenCode(), Continue(), Cline(), Pi(), Aider()]
CLIENTS = [*AGENTS, *OPEN_WEBUI, *SDKS]
# What does not work, with its cause. A test that begins to pass here fails, until its line is removed.
KNOWN_FAILURES = {}
pytestmark = pytest.mark.timeout(4 * SECONDS)


def column(name):
    """A test for each client that has the feature; its outcome is the table's cell."""

    def decorate(test):
        clients = []
        for client in CLIENTS:
            if name in client.lacks:
                continue
            why = KNOWN_FAILURES.get((client.name, name))
            marks = [pytest.mark.xfail(reason=why, strict=True)] if why else []
            clients.append(pytest.param(client, marks=marks, id=re.sub(r"\W+", "-", client.name)))
        test = pytest.mark.parametrize("client", clients)(test)
        test.column = name
        return test

    return decorate


@column("connects")
def test_an_answer_arrives(client, run):
    assert GREETING in whole(run(client, "ask", "greet")), "the answer is shown"


@column("streams")
def test_the_beginning_is_shown_before_the_end_is_there(client, run, model):
    assert_streamed(run(client, "stream", "be long"), model)


@column("tools")
def test_a_tool_is_called_and_its_result_is_used(client, run, model):
    assert f"The result has {WORD}." in whole(run(client, "ask", f"read {run.place}/note.txt"))
    results = [one for request in model.requests for one in request["messages"] if one["role"] == "tool"]
    assert results


@pytest.mark.parametrize("client", [Aider()], ids=str)
def test_a_file_is_edited_by_the_text_of_an_answer(client, run):
    whole(run(client, "ask", "write note.txt word-ffffffff"))
    assert (run.place / "note.txt").read_text() == "word-ffffffff\n"


test_a_file_is_edited_by_the_text_of_an_answer.column = "tools"


@column("structured")
def test_an_answer_fits_a_schema(client, run):
    printed = whole(run(client, "schema", "fill it in"))
    assert re.search(r'\{\s*\\*"city\\*":\s*\\*"Paris\\*"\s*\}', printed), printed


@column("resumes")
def test_a_conversation_goes_on_in_a_new_process(client, run):
    whole(run(client, "ask", client.first_turn.format(file=run.place / "note.txt")))
    assert f"It was {WORD}." in whole(run(client, "continue", "recall"))


def begin(client, run, model):
    """Starts an answer and waits until its beginning is shown; of a client that shows none, until the model waits."""
    process = run(client, "stream", "be long")
    model.waiting.get(timeout=SECONDS)
    if "streams" not in client.lacks:
        process.wait_for(FIRST, SECONDS)
    return process


def wait_until_idle(server):
    """Waits until no answer is under way."""
    for _ in range(10 * SECONDS):
        if server.metric("num_requests_running") == 0:
            return
        time.sleep(0.1)
    raise AssertionError("an answer that nobody reads is still under way")


@column("cancels")
def test_an_interrupted_answer_is_aborted_at_the_model(client, run, model):
    process = begin(client, run, model)
    assert run.server.metric("num_requests_running") == 1
    process.interrupt()
    model.broken_off.get(timeout=SECONDS)
    wait_until_idle(run.server)
    assert LAST not in process.printed
    assert process.is_running() or not client.is_library, process.said()
    process.close_input()
    process.wait(SECONDS)


@column("server killed")
def test_a_server_that_is_killed_in_the_middle(client, run, model, serve):
    process = begin(client, run, model)
    run.server.stop()
    run.server = serve()
    model.gate.set()
    if client.asks_again:
        assert LAST.strip() in whole(process)
        return
    assert process.wait(SECONDS) != 0, process.said()
    assert LAST not in process.printed
    assert GREETING in whole(run(client, "ask", "greet"))
