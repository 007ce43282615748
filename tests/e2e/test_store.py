"""Stored answers with openai-python, unmodified, and a store's file that things happen to."""

import concurrent.futures
import resource
import signal
import subprocess
import threading
import time

import httpx
import openai
import pytest

from conftest import BINARY

QUESTION = [{"role": "user", "content": "What is token streaming?"}]
# As much as a request may have: some 8 kB.
BULK = {f"key-{n}": "x" * 512 for n in range(16)}


def sdk(server, key="none"):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def ask(client, tokens=12, **more):
    return client.chat.completions.create(
        model="any", messages=QUESTION, store=True, max_tokens=tokens, temperature=0, **more
    )


def test_a_stored_completion_lives_and_dies(start):
    client = sdk(start())
    answer = ask(client, metadata={"topic": "streams"})
    stored = client.chat.completions.retrieve(answer.id)
    assert stored.choices == answer.choices and stored.usage == answer.usage
    assert stored.metadata == {"topic": "streams"}
    changed = client.chat.completions.update(answer.id, metadata={"topic": "tokens"})
    assert changed.id == answer.id and changed.metadata == {"topic": "tokens"}
    messages = client.chat.completions.messages.list(answer.id).data
    assert [(one.role, one.content) for one in messages] == [("user", QUESTION[0]["content"])]
    deleted = client.chat.completions.delete(answer.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (
        answer.id,
        True,
        "chat.completion.deleted",
    )
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.retrieve(answer.id)
    assert missing.value.code == "not_found"


def test_a_streamed_completion_is_stored_when_its_stream_ends(start):
    client = sdk(start())
    for resumable in (False, True):
        text, name = "", None
        for chunk in ask(client, stream=True, extra_body={"resumable": resumable}):
            name = chunk.id
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        stored = client.chat.completions.retrieve(name)
        assert stored.choices[0].message.content == text
        assert stored.usage.completion_tokens == 12


def test_lists_are_followed_and_filtered(start):
    client = sdk(start())
    names = [ask(client, tokens=2, metadata={"even": str(n % 2 == 0)}).id for n in range(7)]
    completions = client.chat.completions
    assert [one.id for one in completions.list(limit=2)] == names
    assert [one.id for one in completions.list(limit=3, order="desc")] == names[::-1]
    assert [one.id for one in completions.list(metadata={"even": "True"})] == names[::2]
    assert completions.list(model="other").data == []


def test_keys_have_their_own_completions(start):
    server = start("--api-key", "ann", "--api-key", "bob")
    ann, bob = sdk(server, "ann"), sdk(server, "bob")
    name = ask(ann).id
    assert [one.id for one in ann.chat.completions.list()] == [name]
    assert bob.chat.completions.list().data == []
    for attempt in (bob.chat.completions.retrieve, bob.chat.completions.delete):
        with pytest.raises(openai.NotFoundError):
            attempt(name)
    assert ann.chat.completions.retrieve(name).id == name


def write_until_killed(server, clients=8, enough=40):
    """Ids of completions that were acknowledged before the server was killed in mid-write."""
    acknowledged, killed = [], threading.Event()

    def client(_):
        with httpx.Client(base_url=server.url, timeout=30) as http:
            while not killed.is_set():
                body = {"messages": QUESTION, "store": True, "max_tokens": 40}
                try:
                    answer = http.post("/v1/chat/completions", json=body)
                    acknowledged.append(answer.json()["id"])
                except httpx.HTTPError:
                    return  # it was not acknowledged

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(client, n) for n in range(clients)]
        until = time.monotonic() + 60
        while len(acknowledged) < enough and time.monotonic() < until:
            time.sleep(0.001)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(20)
        killed.set()
        for one in running:
            one.result(60)
    assert len(acknowledged) >= enough
    return acknowledged


def test_what_was_acknowledged_survives_kill_minus_nine(start, tmp_path):
    flags = ("--simulate", "2000", "--store", str(tmp_path / "store"))
    acknowledged = []
    for _ in range(3):
        server = start(*flags)
        acknowledged += write_until_killed(server)
    client = sdk(start(*flags))
    stored = {one.id: one for one in client.chat.completions.list(limit=100)}
    assert set(acknowledged) <= set(stored), "acknowledged, and lost"
    whole = {one.choices[0].message.content for one in stored.values()}
    assert len(whole) == 1, "each answer to this prompt is the same, and whole"
    for name in acknowledged[-5:]:
        assert client.chat.completions.messages.list(name).data[0].content == QUESTION[0]["content"]


def is_stored(client, answer):
    """Whether an answer was stored; false if the store does not work."""
    try:
        return client.chat.completions.retrieve(answer.id).id == answer.id
    except openai.InternalServerError as error:
        assert error.status_code == 503
        return False


def test_a_full_disk_costs_nobody_an_answer(start, tmp_path):
    file = tmp_path / "store"
    server = start("--simulate", "2000", "--store", str(file))
    client = sdk(server)
    kept = ask(client)
    pid, unlimited = server.process.pid, resource.RLIM_INFINITY
    # As far as the server can tell, the disk is full: its files cannot grow.
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (file.stat().st_size, unlimited))
    for _ in range(2000):
        answer = ask(client, tokens=2, metadata=BULK)
        assert answer.choices[0].message.content
        if not is_stored(client, answer):
            break
    else:
        raise AssertionError("the disk was never full")
    until = time.monotonic() + 60
    while not any("is not stored" in line for line in server.log):
        assert time.monotonic() < until, "the operator is never told"
        time.sleep(0.05)  # the log is read beside this
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
    until = time.monotonic() + 60
    while not is_stored(client, ask(client, tokens=2)):
        assert time.monotonic() < until, "the file is never tried again"
        time.sleep(0.5)  # it is, after some seconds
    assert client.chat.completions.retrieve(kept.id).choices == kept.choices


def refusal(file):
    """What the server says when it cannot use a store."""
    command = [BINARY, "serve", "--simulate", "100", "--port", "0", "--store", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert str(file) in done.stderr
    return done.stderr


def test_a_store_that_cannot_be_used_is_named_at_the_start(start, tmp_path):
    file = tmp_path / "store"
    start("--simulate", "100", "--store", str(file))
    assert "another process has it open" in refusal(file)
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"not a store" * 1000)
    assert "damaged" in refusal(garbage) and garbage.read_bytes() == b"not a store" * 1000
    assert "No such file" in refusal(tmp_path / "missing" / "store")


def test_a_full_store_forgets_the_oldest(start):
    client = sdk(start("--simulate", "2000", "--store-mb", "1"))
    names = [ask(client, tokens=1, metadata=BULK).id for _ in range(150)]
    kept = [one.id for one in client.chat.completions.list(limit=100)]
    assert 50 <= len(kept) < 128 and kept == names[-len(kept) :]
