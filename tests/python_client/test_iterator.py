"""The iterator of events, and what holds for a process: signals, forks, threads."""

import asyncio
import json
import os
import signal
import threading
import time

import loquent
import pytest
from test_sdks import PACED, collect, delivering, direct, question, running, until


def asked(n, tokens):
    return question(n, tokens)["messages"]


def test_events_have_offsets_from_which_an_answer_goes_on(start, path):
    server = start(*PACED)
    expected = collect(direct(server), question(1, 120))[0]
    url = path(server, loss=0.2).url
    with delivering(url) as client:
        answer = client.stream_chat(messages=asked(1, 120), temperature=0)
        kinds, offsets = [], [0]
        for event in answer:
            kinds.append(event.kind)
            offsets.append(event.offset)
            if len(answer.text) > len(expected) // 3:
                break
        answer.detach()
        assert kinds[0] == "open" and kinds[-1] == "text" and offsets == sorted(offsets)
    # Another client, as another process would have it.
    with delivering(url) as other:
        rest = other.resume_chat(answer.reference, answer.offset)
        events = list(rest)
        assert answer.text + rest.text == expected
        assert [event.text for event in events if event.kind == "finish"] == ["stop"]
        assert events[-1].kind == "done"
        with pytest.raises(loquent.AnswerGone):
            list(other.resume_chat(("0" * 32, "0" * 32)))


def test_the_iterator_of_asyncio(start, path):
    server = start(*PACED)
    expected = collect(direct(server), question(2, 60))[0]
    url = path(server, loss=0.2).url

    async def read():
        async with loquent.AsyncClient(url, head_start=10) as client:
            async with await client.stream_chat(messages=asked(2, 60), temperature=0) as answer:
                text = "".join([event.text async for event in answer if event.kind == "text"])
            assert answer.transport == "quic" and answer.text == text
            with pytest.raises(loquent.LoquentError, match="temperature") as refused:
                await client.stream_chat(messages=asked(2, 60), temperature=9)
            assert refused.value.status == 400
            return text

    assert asyncio.run(read()) == expected


def test_a_reader_that_is_cancelled_or_stops_goes_on_without_a_gap(start):
    server = start(*PACED)
    expected = collect(direct(server), question(7, 120))[0]

    async def read_on(answer):
        async for _ in answer:
            pass

    async def read():
        async with loquent.AsyncClient(server.url, head_start=10) as client:
            async with await client.stream_chat(messages=asked(7, 120), temperature=0) as answer:
                cancelled = 0
                while True:
                    reading = asyncio.ensure_future(read_on(answer))
                    await asyncio.sleep(0.02)
                    # What is read meanwhile is reported to the loop after the wait for it is cancelled.
                    time.sleep(0.2)
                    reading.cancel()
                    await asyncio.wait([reading])
                    if not reading.cancelled():
                        reading.result()
                        return answer.text, cancelled
                    cancelled += 1
                    async for _ in answer:
                        break

    text, cancelled = asyncio.run(read())
    assert text == expected
    assert cancelled >= 3


def test_a_question_needs_a_server_and_words():
    with loquent.Client() as client, pytest.raises(TypeError, match="with its URL"):
        client.stream_chat(messages=[])
    with loquent.Client("http://127.0.0.1:9") as client, pytest.raises(TypeError, match="messages"):
        client.stream_chat()


def test_leaving_a_block_cancels(start):
    server = start(*PACED)
    with delivering(server.url) as client:
        with client.stream_chat(messages=asked(3, 5000)) as answer:
            next(iter(answer))
            until(lambda: running(server) == 1, "it is not generated")
        until(lambda: running(server) == 0, "it is generated for nobody")


def test_ctrl_c_ends_a_wait(start):
    server = start("--simulate", "1")
    with delivering(server.url) as client:
        answer = client.stream_chat(messages=asked(4, 100))
        threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            for _ in answer:
                pass
        assert time.monotonic() - began < 20
        answer.cancel()


def test_other_threads_run_while_one_waits(start):
    server = start("--simulate", "1")
    with delivering(server.url) as client:
        answer = client.stream_chat(messages=asked(5, 4))
        reader = threading.Thread(target=list, args=(answer,))
        reader.start()
        turns = 0
        while reader.is_alive():
            turns += 1
            time.sleep(0.001)
        reader.join()
        assert turns > 100, "the reader kept the lock"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_the_child_of_a_fork_has_connections_of_its_own(start):
    server = start(*PACED)
    expected = collect(direct(server), question(6, 60))[0]
    with delivering(server.url) as client:
        assert client.warm_up() == "quic"
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            answer = client.stream_chat(messages=asked(6, 60), temperature=0)
            "".join(event.text for event in answer)
            os.write(writing, json.dumps([answer.text, answer.transport]).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text, transport = json.load(pipe)
        assert os.waitpid(child, 0)[1] == 0
        assert (text, transport) == (expected, "quic")
        # The parent's connection is what it was.
        answer = client.stream_chat(messages=asked(6, 60), temperature=0)
        assert "".join(event.text for event in answer if event.kind == "text") == expected
        assert (answer.transport, answer.resumes) == ("quic", 0)
