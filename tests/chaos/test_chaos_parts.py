"""The parts of tools/chaos: the schedule, the history, the forwarder, and what is read of streams."""

import asyncio
import json
import subprocess
import sys
import time

import pytest

from chaos import dialects, history, readers
from chaos.cluster import Cluster
from chaos.forwarder import Forwarder
from chaos.plan import KINDS, MOST_AWAY, SETTINGS, STORE, kinds_of, plan
from chaos.processes import Failed, RedisError, ask, until
from conftest import REPOSITORY
from redis_server import redis  # noqa: F401


def test_a_seed_draws_the_same_faults_again_and_another_one_others():
    assert plan(7, 300) == plan(7, 300)
    assert plan(7, 300) != plan(8, 300)


@pytest.mark.parametrize("seed", range(20))
def test_a_target_has_one_fault_at_a_time_and_one_replica_none(seed):
    faults = plan(seed, 600)
    assert faults and faults == sorted(faults, key=lambda fault: fault.at_s)
    for fault in faults:
        kind = KINDS[fault.kind]
        assert kind.lasts_s[0] <= fault.lasts_s <= kind.lasts_s[1] and fault.at_s + fault.lasts_s <= 600
        assert (fault.target == STORE) == (kind.target == STORE)
        assert (fault.settings in SETTINGS) == (fault.kind == "settings")
        beside = [one for one in faults if one.at_s < fault.at_s < one.at_s + one.lasts_s]
        assert fault.target not in [one.target for one in beside]
        assert len([one for one in (*beside, fault) if one.target != STORE]) <= MOST_AWAY


def test_an_hour_has_every_kind_of_fault():
    assert {fault.kind for fault in plan(1, 3600)} == set(KINDS)


def test_the_cluster_can_do_every_kind():
    for kind in KINDS:
        assert asyncio.iscoroutinefunction(getattr(Cluster, kind.replace("-", "_")))


def test_kinds_are_chosen_by_name():
    assert kinds_of("all") == list(KINDS)
    assert {fault.kind for fault in plan(1, 600, kinds_of("kill,failover"))} == {"kill", "failover"}
    for words in ("kill,quake", ""):
        with pytest.raises(ValueError, match="there are kill"):
            kinds_of(words)


def test_a_history_is_read_as_it_was_written_up_to_a_half_line(tmp_path):
    file = tmp_path / "history.jsonl"
    written = history.History(file)
    call = written.invoke("read", a="a0", chars=3)
    written.info("phase", phase="calm")
    written.ok(call, a="a0", status=200)
    written.close()
    with open(file, "a") as more:
        more.write('{"n": 4, "t":')
    events = history.read(file)
    assert [(event["n"], event["e"], event["op"]) for event in events] == [
        (1, "invoke", "read"), (2, "info", "phase"), (3, "ok", "read")]
    assert events[2]["c"] == 1 and events[0]["t"] <= events[2]["t"]
    assert history.digest("a") == history.digest("a") != history.digest("b")


async def echo(reader, writer):
    while piece := await reader.read(100):
        writer.write(piece.upper())
        await writer.drain()
    writer.close()


async def forwarding(scenario):
    """Runs a scenario with a forwarder in front of two echo servers; it begins with the first."""
    servers = [await asyncio.start_server(echo, "127.0.0.1", 0) for _ in range(2)]
    addresses = [server.sockets[0].getsockname() for server in servers]
    target = [addresses[0]]
    forwarder = await Forwarder(lambda: target[0]).start()
    try:
        await asyncio.wait_for(scenario(forwarder, target, addresses), 20)
    finally:
        await forwarder.close()
        for server in servers:
            server.close()


async def says(reader, writer, word):
    writer.write(word)
    return await asyncio.wait_for(reader.read(100), 10)


async def is_closed(reader, writer):
    try:
        return await asyncio.wait_for(reader.read(), 10) == b""
    except ConnectionError:
        return True


def test_a_forwarder_passes_bytes_until_it_is_cut_and_again_when_it_is_healed():
    async def scenario(forwarder, target, addresses):
        one = await asyncio.open_connection("127.0.0.1", forwarder.port)
        assert await says(*one, b"a") == b"A"
        forwarder.cut()
        assert await is_closed(*one)
        assert await is_closed(*await asyncio.open_connection("127.0.0.1", forwarder.port))
        forwarder.heal()
        target[0] = None
        assert await is_closed(*await asyncio.open_connection("127.0.0.1", forwarder.port)), "its server is away"
        target[0] = addresses[1]
        two = await asyncio.open_connection("127.0.0.1", forwarder.port)
        assert await says(*two, b"c") == b"C"
        forwarder.drop()
        assert await is_closed(*two)
        assert await says(*await asyncio.open_connection("127.0.0.1", forwarder.port), b"d") == b"D"

    asyncio.run(forwarding(scenario))


def test_a_forwarder_that_stands_still_closes_nothing_and_loses_nothing():
    async def scenario(forwarder, target, addresses):
        reader, writer = await asyncio.open_connection("127.0.0.1", forwarder.port)
        forwarder.stall()
        writer.write(b"b")
        coming = asyncio.ensure_future(reader.read(100))
        done, _ = await asyncio.wait([coming], timeout=0.2)
        assert not done
        forwarder.heal()
        assert await coming == b"B"

    asyncio.run(forwarding(scenario))


def test_what_never_holds_fails_in_time():
    async def never():
        return False

    with pytest.raises(Failed, match="too slow"):
        asyncio.run(until(never, "too slow", limit_s=0.2))


def test_redis_is_asked_and_its_replies_are_understood(redis):  # noqa: F811
    async def scenario():
        assert await ask(redis.port, "SET", "key", "wörd") == "OK"
        assert await ask(redis.port, "GET", "key") == "wörd"
        assert await ask(redis.port, "GET", "nothing") is None
        assert await ask(redis.port, "EVAL", "return {1, {'a', false}}", 0) == [1, ["a", None]]
        with pytest.raises(RedisError):
            await ask(redis.port, "NOTHING")
        redis.kill()
        with pytest.raises(OSError, match=str(redis.port)):
            await ask(redis.port, "PING")

    asyncio.run(scenario())


def test_questions_are_drawn_from_the_seed_and_no_two_begin_alike():
    assert dialects.prompt(1, 5) == dialects.prompt(1, 5) != dialects.prompt(2, 5)
    assert len({dialects.prompt(1, number).split()[0] for number in range(50)}) == 50
    for api in ("chat", "completions", "messages", "ollama", "responses"):
        path, body = dialects.request(api, "text", 100)
        assert path.startswith("/") and "100" in json.dumps(body)


def of(**said):
    return dialects.of_event(f"data: {json.dumps(said)}")


def test_events_of_every_api_are_pieces():
    piece = dialects.of_event('id: 12\ndata: {"id": "c", "choices": [{"delta": {"content": "a"}}]}')
    assert (piece.text, piece.place, piece.object_id, piece.is_done) == ("a", 12, "c", False)
    assert of(choices=[{"text": "b", "finish_reason": "stop"}]).finish == "stop"
    assert of(choices=[], usage={"completion_tokens": 3}).usage == {"completion_tokens": 3}
    assert of(error={"message": "lost"}).error == "lost"
    assert dialects.of_event("id: 9\ndata: [DONE]") == dialects.Piece(place=9, is_done=True)
    assert dialects.of_event(": admitted") is None
    assert of(type="content_block_delta", delta={"type": "text_delta", "text": "c"}).text == "c"
    ended = of(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 4})
    assert (ended.finish, ended.usage) == ("end_turn", {"completion_tokens": 4})
    assert of(type="message_stop").is_done and not of(type="ping").is_done
    assert of(type="error", error={"message": "x"}).error
    delta = of(type="response.output_text.delta", delta="d", sequence_number=6)
    assert (delta.text, delta.place) == ("d", 6)
    complete = {"status": "completed", "usage": {"output_tokens": 1}}
    done = of(type="response.completed", sequence_number=9, response=complete)
    assert (done.is_done, done.finish, done.usage) == (True, "completed", {"output_tokens": 1})
    assert of(type="response.failed", response={}).error
    line = dialects.of_line('{"message": {"content": "e"}, "done": true, "done_reason": "stop", "eval_count": 2}')
    assert (line.text, line.is_done, line.finish, line.usage) == ("e", True, "stop", {"completion_tokens": 2})
    assert dialects.of_line("") is None and dialects.of_line('{"error": "x"}').error == "x"


def test_half_an_event_counts_for_nothing():
    class Response:
        headers = {"content-type": "text/event-stream; charset=utf-8"}

        async def aiter_bytes(self):
            yield b'data: {"choices": [{"te'
            yield b'xt": "a"}]}\n'
            yield b'\n: ping\n\ndata: {"choices": [{"text": "b"}]}\n'

    async def read():
        return [piece.text async for piece in dialects.pieces(Response())]

    assert asyncio.run(read()) == ["a"]


def test_the_command_says_what_it_does_and_shows_a_plan():
    def chaos(*words):
        environment = {"PYTHONPATH": str(REPOSITORY / "tools"), "PATH": ""}
        command = [sys.executable, "-m", "chaos", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)

    shown = chaos("--help").stdout
    assert "make chaos SECONDS=60" in shown and all(kind in shown for kind in KINDS)
    planned = chaos("--plan", "--seed", "7", "--seconds", "60").stdout.splitlines()
    assert len(planned) == len(plan(7, 60))
    assert chaos("--faults", "quake").returncode == 2
    absent = chaos("--binary", "/nowhere/loquent")
    assert absent.returncode == 1 and "there is no" in absent.stderr


def test_what_a_slow_reader_takes_late_did_not_come_late():
    class Response:
        headers = {"content-type": "application/x-ndjson"}

        async def aiter_bytes(self):
            lines = [json.dumps({"message": {"content": "a"}, "done": False}) for _ in range(10)]
            yield "".join(f"{line}\n" for line in lines).encode()

    reading, got = readers.Reading(readers.Answer("a0", "alice", "ollama"), "a0.0", None), readers.Got()
    taken = readers.Readers.take(None, reading, got, Response(), readers.ALL_EVENTS, 0.1)
    began = time.monotonic()
    asyncio.run(taken)
    assert reading.text == "a" * 10
    assert time.monotonic() - began >= 1 and got.last_t < 0.5
