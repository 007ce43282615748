"""Faults between replicas that share a store, each with what a reader, a client or an operator notices of it."""

import asyncio
import contextlib
import signal
import socket
import threading
import time

import httpx
import openai
import pytest

from test_replicas import BODY, PATIENCE_S, QUESTION, eventually, named, sdk, text_of, whole  # noqa: F401
from test_takeover import CHAT, Reading, breaks_off, fence, goes_on, killed, resumed

from interop.client.session import StreamEnded, connect  # isort: skip (test_replicas adds the path)
from interop.client.wire import EPOCH  # isort: skip

PACE = ("--simulate", "100", "--no-quic", "--resume-grace-s", "3")
BY_QUIC = ("--simulate", "100", "--resume-grace-s", "30")
LONG = {**BODY, "messages": [{"role": "user", "content": "tokens=1500"}]}


class StoreGate:
    """The way of one replica to the store, which can be cut."""

    def __init__(self, redis):
        self.redis, self.open, self.links = redis, True, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                if not self.open:
                    client.close()
                    continue
                store = socket.create_connection(("127.0.0.1", self.redis.port))
                self.links += [client, store]
                for source, sink in ((client, store), (store, client)):
                    threading.Thread(target=self.carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def carry(source, sink):
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                sink.sendall(piece)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        self.open = False
        for link in self.links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def heal(self):
        self.open = True

    def close(self):
        self.cut()
        self.listener.close()


@pytest.fixture
def gate(redis):
    running = StoreGate(redis)
    yield running
    running.close()


@contextlib.contextmanager
def asked(server, body, **headers):
    with httpx.stream("POST", f"{server.url}{CHAT}", json=body, headers=headers, timeout=60) as response:
        assert response.status_code == 200, response.read()
        yield named(response), response.iter_lines()


def pair(start, redis, *args):
    return [start(*PACE, "--store", redis.url, *args) for _ in range(2)]


def health(server):
    return httpx.get(f"{server.url}/health").json()


def test_sigterm_leaves_answers_to_the_other_replica_at_once(start, redis, whole):  # noqa: F811
    owner, other = pair(start, redis)
    reading = Reading()
    background = sdk(owner).responses.create(model="any", input=QUESTION[0]["content"], background=True).id
    with asked(owner, BODY) as (name, lines):
        reading.take(lines, 20)
        owner.terminate()
        with contextlib.suppress(httpx.TransportError):
            reading.take(lines)
    assert not reading.done
    goes_on(other, name, reading)
    assert reading.text() == whole, "no error was written into the log"
    assert fence(redis, name) == "2"
    eventually(lambda: sdk(other).responses.retrieve(background).status == "completed")
    assert sdk(other).responses.retrieve(background).output_text == whole
    owner.process.wait(20)


@pytest.mark.parametrize("others", [(), ("--kv-type", "q8_0")], ids=["nobody", "another-fingerprint"])
def test_sigterm_lets_answers_end_that_no_other_replica_can_continue(start, redis, whole, others):  # noqa: F811
    owner = start(*PACE, "--store", redis.url)
    if others:
        start(*PACE, "--store", redis.url, *others)
    background = sdk(owner).responses.create(model="any", input=QUESTION[0]["content"], background=True).id
    with asked(owner, BODY) as (name, lines):
        reading = Reading()
        reading.take(lines, 20)
        owner.terminate()
        reading.take(lines)
    assert reading.done and reading.text() == whole
    owner.process.wait(20)
    assert redis.ask("HGET", f"loquent:1:a:{name[0]}", "s") == "ended"
    successor = start(*PACE, "--store", redis.url)
    stored = sdk(successor).responses.retrieve(background)
    assert stored.status == "completed" and stored.output_text == whole


def test_a_background_response_that_outlives_the_drain_goes_on_after_the_restart(start, redis, whole):  # noqa: F811
    """Nobody offers to continue it at that time."""
    owner = start(*PACE, "--store", redis.url, "--drain-timeout-s", "1")
    background = sdk(owner).responses.create(model="any", input=QUESTION[0]["content"], background=True).id
    owner.terminate()
    owner.process.wait(20)
    successor = start(*PACE, "--store", redis.url)
    eventually(lambda: sdk(successor).responses.retrieve(background).status == "completed")
    assert sdk(successor).responses.retrieve(background).output_text == whole


def test_replicas_that_are_stopped_together_let_their_answers_end(start, redis, whole):  # noqa: F811
    replicas = pair(start, redis)
    readings = [Reading(), Reading()]
    with asked(replicas[0], BODY) as (_, first), asked(replicas[1], BODY) as (_, second):
        for reading, lines in zip(readings, (first, second), strict=True):
            reading.take(lines, 20)
        for replica in replicas:
            replica.terminate()
        for reading, lines in zip(readings, (first, second), strict=True):
            reading.take(lines)
    assert all(reading.done and reading.text() == whole for reading in readings)


def test_at_the_drain_limit_a_shared_log_gets_no_error(start, redis):
    """One that nobody can take over, because its request is too long, breaks off and is not ended."""
    owner = start(*PACE, "--store", redis.url, "--drain-timeout-s", "1")
    with asked(owner, {**LONG, "user": "x" * 260_000}) as (name, lines):
        reading = Reading()
        reading.take(lines, 20)
        owner.terminate()
        with pytest.raises(httpx.TransportError):
            reading.take(lines)
    assert "error" not in reading.chunks[-1]
    owner.process.wait(30)
    assert redis.ask("HGET", f"loquent:1:a:{name[0]}", "s") == "running"


def test_an_owner_forgets_an_answer_that_ended_under_a_reader_elsewhere(start, redis):
    owner, other = pair(start, redis, "--max-answers-per-key", "1")
    for _ in range(2):
        begun = time.monotonic()
        while True:
            with httpx.stream("POST", f"{owner.url}{CHAT}", json=BODY, timeout=60) as response:
                if response.status_code == 200:
                    name, first = named(response), Reading()
                    first.take(response.iter_lines(), 10)
                    break
                # Nothing counts for ever.
                assert response.status_code == 429 and time.monotonic() - begun < PATIENCE_S
            time.sleep(0.2)
        goes_on(other, name, first)
    for server in (owner, other):
        eventually(lambda server=server: server.metric("delivery_kept_bytes") == 0)


def test_an_offset_beyond_a_takeover_is_not_served(start, redis, gate, whole):  # noqa: F811
    """What an owner without the store gives out lies in another log than what its successor writes."""
    owner = start(*PACE, "--store", gate.url, "--stream-interval", "1")
    other = start(*BY_QUIC, "--store", redis.url, "--stream-interval", "4")
    elsewhere, ids = Reading(), []
    with asked(owner, BODY) as (name, lines):
        reading = Reading()
        reading.take(lines, 20)
        ids.append((reading.last, len(reading.text())))
        there = threading.Thread(target=goes_on, args=(other, name, elsewhere))
        there.start()
        gate.cut()
        while not reading.done:
            reading.take(lines, 10)
            ids.append((reading.last, len(reading.text())))
        assert reading.text() == whole
    there.join(60)
    assert elsewhere.done and elsewhere.text() == whole and fence(redis, name) == "2"
    served = []
    for last, chars in ids:
        with resumed(other, name, last) as response:
            served.append(response.status_code)
            if response.status_code == 200:
                rest = Reading()
                rest.take(response.iter_lines())
                assert whole[:chars] + rest.text() == whole, "another text was joined to what the reader had"
    # Never by chance, where the offset is a record's end of the other log too.
    assert served[0] == 200 and 404 in served
    assert served == sorted(served), "nothing beyond the first that is refused"
    with resumed(other, name, elsewhere.last) as response:
        assert response.status_code == 200, "its own ids are served"

    async def by_quic():
        id, token = (bytes.fromhex(part) for part in name)
        async with connect(other.url) as session:
            with pytest.raises(StreamEnded):
                await session.resume_from(id, token, int(ids[-1][0]))
            _, path = await session.resume_from(id, token, int(ids[0][0]))
            assert (await path.head).epoch == int(elsewhere.last) // EPOCH > 0

    asyncio.run(asyncio.wait_for(by_quic(), PATIENCE_S))


def test_a_pause_of_the_store_declares_nobody_dead(start, redis):
    owner, other = pair(start, redis)
    plain = text_of_long(other)
    here, elsewhere = Reading(), Reading()
    with asked(owner, LONG) as (name, lines):
        here.take(lines, 20)
        there = threading.Thread(target=goes_on, args=(other, name, elsewhere))
        there.start()
        eventually(lambda: elsewhere.chunks)
        # It has everything when it is back, but for the leases: they have run out meanwhile.
        redis.ask("SHUTDOWN", "SAVE")
        redis.process.wait(20)
        time.sleep(5)
        assert redis.start()
        here.take(lines)
    there.join(60)
    assert here.done and elsewhere.done
    assert here.text() == elsewhere.text() == plain
    assert fence(redis, name) == "1", "its owner lived all the time"


def text_of_long(server):
    body = {"messages": LONG["messages"]}
    answer = httpx.post(f"{server.url}{CHAT}", json=body, timeout=60).json()
    return answer["choices"][0]["message"]["content"]


def test_a_background_response_is_stored_when_the_store_is_back(start, redis, whole):  # noqa: F811
    owner, other = pair(start, redis)
    id = sdk(owner).responses.create(model="any", input=QUESTION[0]["content"], background=True).id
    # It ends while the store answers nothing.
    redis.process.send_signal(signal.SIGSTOP)
    eventually(lambda: sdk(owner).responses.retrieve(id).status == "completed")
    eventually(lambda: health(owner).get("store") == "away")
    redis.process.send_signal(signal.SIGCONT)
    eventually(lambda: sdk(other).responses.retrieve(id).status == "completed")
    for server in (owner, other):
        assert sdk(server).responses.retrieve(id).output_text == whole


def test_who_asked_stays_the_same_after_a_takeover(start, redis):
    """One key's usage says nothing of what another one asked."""
    keys = "alice-key-1234", "bob-key-56789"
    arguments = [word for key in keys for word in ("--api-key", key)]
    owner, other = pair(start, redis, *arguments)
    prompt = "lorem ipsum dolor sit amet " * 60 + "tokens=200"
    body = {**BODY, "messages": [{"role": "user", "content": prompt}], "stream_options": {"include_usage": True}}
    with contextlib.ExitStack() as stack:
        names, readings = [], [Reading() for _ in keys]
        for key, reading in zip(keys, readings):
            name, lines = stack.enter_context(asked(owner, body, authorization=f"Bearer {key}"))
            names.append(name)
            reading.take(lines, 20)
        owner.process.kill()
        owner.process.wait(20)
    for key, name, reading in zip(keys, names, readings):
        headers = {"x-loquent-stream-token": name[1], "last-event-id": reading.last, "authorization": f"Bearer {key}"}
        with httpx.stream("GET", f"{other.url}/v1/streams/{name[0]}", headers=headers, timeout=60) as response:
            assert response.status_code == 200
            reading.take(response.iter_lines())
        assert reading.done
    cached = [
        chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
        for reading in readings
        for chunk in reading.chunks
        if chunk.get("usage")
    ]
    assert cached == [0, 0], "Bob's prompt was computed for him alone"


def test_a_client_that_has_an_answers_name_finds_it_at_any_replica(start, redis):
    owner, other = pair(start, redis)
    for _ in range(20):
        with asked(owner, BODY) as (name, _), resumed(other, name, None) as response:
            assert response.status_code == 200


def test_a_mirror_that_is_behind_is_waited_for(start, redis):
    """A balancer that flaps: each reader comes with an id that the other replica is about to have."""
    owner, other = (start("--simulate", "1000", *PACE[2:], "--store", redis.url) for _ in range(2))
    long = {**BODY, "messages": [{"role": "user", "content": "tokens=8000"}]}
    statuses, reading = [], Reading()
    with asked(owner, long) as (name, lines), resumed(other, name, None) as mirror, httpx.Client() as moving:
        assert mirror.status_code == 200
        while len(statuses) < 60:
            reading.take(lines, 40)
            headers = {"x-loquent-stream-token": name[1], "last-event-id": reading.last}
            with moving.stream("GET", f"{other.url}/v1/streams/{name[0]}", headers=headers) as response:
                statuses.append(response.status_code)
    assert statuses == [200] * 60


def test_a_replica_without_room_says_so(start, redis):
    owner = start(*PACE, "--store", redis.url)
    full = start(*PACE, "--store", redis.url, "--max-kept-bytes", "1")
    with asked(owner, BODY) as (name, lines):
        Reading().take(lines, 10)
        with resumed(full, name, None) as response:
            assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
        again = Reading()
        goes_on(owner, name, again)


def test_a_replica_of_other_settings_leaves_an_answer_to_one_of_the_same(start, redis, whole):  # noqa: F811
    first, odd, third = (start(*PACE, "--store", redis.url, *more) for more in ((), ("--kv-type", "q8_0"), ()))
    name, reading = killed(first, BODY)
    breaks_off(odd, name, reading)
    assert fence(redis, name) == "1"
    goes_on(third, name, reading)
    assert reading.text() == whole and reading.done


def test_a_delete_that_reaches_nobody_is_no_success(start, redis, gate):
    owner = start(*PACE, "--store", redis.url)
    other = start(*PACE, "--store", gate.url)
    with asked(owner, LONG) as (name, lines):
        reading = Reading()
        reading.take(lines, 10)
        with resumed(other, name, None) as mirror:
            Reading().take(mirror.iter_lines(), 5)
            gate.cut()
            url = f"{other.url}/v1/streams/{name[0]}"
            token = {"x-loquent-stream-token": name[1]}
            deleted = httpx.delete(url, headers=token, timeout=20)
            assert deleted.status_code == 503 and "retry-after" in deleted.headers
            reading.take(lines, 20)
            gate.heal()
            eventually(lambda: httpx.delete(url, headers=token, timeout=20).status_code == 204)
        with pytest.raises(httpx.RemoteProtocolError):
            reading.take(lines)
        assert not reading.done


def test_a_replica_starts_without_its_store_and_says_so(start, redis, gate, whole):  # noqa: F811
    gate.cut()
    server = start("--simulate", "inf", "--no-quic", "--store", gate.url)
    assert health(server) == {"status": "ok", "store": "away"}
    said = "".join(server.log)
    assert "starting without the store redis://127.0.0.1:" in said and "correct --store" in said
    assert text_of(server) == whole
    with pytest.raises(openai.APIStatusError) as away:
        sdk(server).chat.completions.list()
    assert away.value.status_code == 503
    gate.heal()
    eventually(lambda: health(server) == {"status": "ok", "store": "ok"})
    assert list(sdk(server).chat.completions.list()) == []
