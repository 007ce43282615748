"""Faults that `make chaos` found between replicas, each in its smallest form."""

import concurrent.futures
import contextlib
import json
import signal
import threading
import time

import httpx

from test_connect import Proxy
from test_replica_faults import PACE, StoreGate, asked, gate, health  # noqa: F401
from test_replicas import BODY, PATIENCE_S, QUESTION, eventually, sdk, whole  # noqa: F401
from test_resume import read
from test_takeover import Reading, goes_on, killed, resumed


def test_a_stored_chat_that_ends_while_the_store_is_away_is_stored_when_it_is_back(start, redis, whole):  # noqa: F811
    owner = start("--simulate", "100", "--no-quic", "--store", redis.url)
    reading = Reading()
    with asked(owner, {**BODY, "store": True}) as (_, lines):
        reading.take(lines, 20)
        redis.process.send_signal(signal.SIGSTOP)
        reading.take(lines)
        assert reading.done
    redis.process.send_signal(signal.SIGCONT)
    eventually(lambda: health(owner).get("store") == "ok")
    eventually(lambda: [one.id for one in sdk(owner).chat.completions.list()] == [reading.chunks[0]["id"]])


def test_a_delete_reaches_a_mirror_that_has_the_whole_answer(start, redis):
    owner, other = (start("--simulate", "1000", "--no-quic", "--store", redis.url) for _ in range(2))
    with asked(owner, BODY) as (name, _):
        elsewhere = Reading()
        goes_on(other, name, elsewhere)
    url, token = f"{owner.url}/v1/streams/{name[0]}", {"x-loquent-stream-token": name[1]}
    assert httpx.delete(url, headers=token).status_code == 204
    deadline, status = time.monotonic() + 8, 200
    while status != 404 and time.monotonic() < deadline:
        time.sleep(0.2)
        with resumed(other, name, None) as response:
            status = response.status_code
    assert status == 404


def test_an_answer_that_was_taken_over_and_lost_by_the_store_can_be_taken_over_again(start, redis, whole):  # noqa: F811
    first, second, third = (start("--simulate", "100", "--no-quic", "--store", redis.url) for _ in range(3))
    name, reading = killed(first, BODY)
    with resumed(second, name, reading.last) as response:
        lines = response.iter_lines()
        reading.take(lines, 20)
        redis.ask("FLUSHALL")
        # Its owner lives, and writes it again, with all but its request.
        eventually(lambda: redis.ask("EXISTS", f"loquent:1:a:{name[0]}") == "1")
        assert redis.ask("HSTRLEN", f"loquent:1:a:{name[0]}", "q") != "0"
        second.process.kill()
    second.process.wait(20)
    goes_on(third, name, reading)
    assert reading.text() == whole


def test_events_that_were_not_stored_are_gone_for_the_reader_that_makes_a_replica_take_over(start, redis):
    owner, other = (start(*PACE, "--store", redis.url) for _ in range(2))
    body = {"model": "any", "input": QUESTION[0]["content"], "background": True}
    id = httpx.post(f"{owner.url}/v1/responses", json=body).json()["id"]
    last = 0
    # Before the first checkpoint, which comes after two seconds.
    with httpx.stream("GET", f"{owner.url}/v1/responses/{id}?stream=true", timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                last = json.loads(line[6:])["sequence_number"]
            if last > 50:
                break
        owner.process.kill()
    owner.process.wait(20)
    url, status = f"{other.url}/v1/responses/{id}?stream=true&starting_after={last}", 503
    deadline = time.monotonic() + PATIENCE_S
    while status == 503 and time.monotonic() < deadline:
        with httpx.stream("GET", url, timeout=60) as response:
            status = response.status_code
            lines = response.iter_lines() if status == 200 else ()
            first = next((line for line in lines if line.startswith("data: ")), "")
        time.sleep(0.2)
    assert status == 410, f"after event {last}: {first[:200]}"


def test_a_reader_that_came_from_http_to_quic_and_is_ahead_of_the_store_goes_on(
    start,
    relays,
    redis,
    gate,  # noqa: F811
    whole,  # noqa: F811
    tmp_path,
):
    """An answer that begins over HTTP moves to QUIC, which is ahead of the store; then its owner is killed."""
    owner, relay = relays("--simulate", "100", "--store", gate.url)
    other = start("--simulate", "100", "--store", redis.url)
    relay.dark = True
    log = {"LOQUENT_LOG": "info,loquent_client=debug"}
    proxy = Proxy(relay.url, tmp_path / "state", "--head-start-ms", "100", env=log)
    try:
        with httpx.stream("POST", f"{proxy.url}/v1/chat/completions", json=BODY, timeout=60) as response:
            lines = response.iter_lines()
            text = read(lines, 20)[0]
            relay.dark = False
            eventually(lambda: owner.metric("delivery_datagrams_total") > 10)
            gate.cut()
            text += read(lines, 60)[0]
            relay.server = ("127.0.0.1", int(other.url.rsplit(":", 1)[1]))
            owner.process.kill()
            left = []
            with contextlib.suppress(httpx.TransportError):
                for line in lines:
                    left.append(line)
            assert not [line for line in left if "broke off" in line], proxy.log
            rest, _, done = read(left)
        assert done and text + rest == whole
    finally:
        proxy.stop()


def test_a_rolling_update_calls_no_response_failed_that_goes_on(start, redis):
    owner, other = (start(*PACE, "--store", redis.url) for _ in range(2))
    body = {"model": "any", "input": QUESTION[0]["content"], "background": True}
    id = httpx.post(f"{owner.url}/v1/responses", json=body).json()["id"]
    events = []
    with httpx.stream("GET", f"{owner.url}/v1/responses/{id}?stream=true", timeout=60) as response:
        with contextlib.suppress(httpx.TransportError):
            for line in response.iter_lines():
                events += [line] if line.startswith("event: ") else []
                if len(events) == 20:
                    owner.terminate()
    eventually(lambda: sdk(other).responses.retrieve(id).status == "completed")
    assert "event: response.failed" not in events


class StillGate(StoreGate):
    """A way to the store on which nothing passes while it stands still, and nothing is closed."""

    flows = threading.Event()

    def carry(self, source, sink):
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                self.flows.wait()
                sink.sendall(piece)


def test_a_replica_whose_store_is_silent_does_not_say_that_an_answer_does_not_exist(start, redis):
    still = StillGate(redis)
    still.flows.set()
    owner, other = start(*PACE, "--store", redis.url), start(*PACE, "--store", still.url)
    with asked(owner, BODY) as (name, lines), resumed(other, name, None) as mirror:
        assert mirror.status_code == 200
        reading = Reading()
        reading.take(lines, 20)
        still.flows.clear()
        reading.take(lines, 20)
        with resumed(other, name, reading.last) as response:
            still.flows.set()
            assert response.status_code in (200, 503), "it cannot know"
    still.close()


def test_readers_of_a_mirror_that_ends_are_not_told_that_the_answer_does_not_exist(start, redis):
    """Nobody continues it, as the only other replica has other settings: each of its mirrors ends at once."""
    owner, odd = (start(*PACE, "--store", redis.url, *more) for more in ((), ("--kv-type", "q8_0")))
    name, reading = killed(owner, BODY)
    statuses, until = set(), time.monotonic() + 10

    def visit():
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                with resumed(odd, name, reading.last) as response:
                    statuses.add(response.status_code)
                    response.read()

    with concurrent.futures.ThreadPoolExecutor() as readers:
        for visits in [readers.submit(visit) for _ in range(8)]:
            visits.result()
    assert statuses <= {200, 503}, statuses
