"""Replicas that share a store: any of them serves what another one keeps, generated or generates."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import openai
import pytest

import documented
from conftest import REPOSITORY, free_port
from test_connect import Proxy
from test_resume import begin, read, resumed

sys.path.append(str(REPOSITORY / "tests"))
from interop.client import session as quic
from interop.client.session import connect

PACE = ("--simulate", "100", "--resume-grace-s", "30")
QUESTION = [{"role": "user", "content": "tokens=300"}]
BODY = {"stream": True, "resumable": True, "messages": QUESTION}
# How long a test waits for what comes soon on an idle machine.
PATIENCE_S = 60
# Where Debian puts servers, beside the path.
SERVER_PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
# What stands for addresses in the configurations of docs/replicas.md.
NAMES = {
    "listen": "bind :8080",
    "udp": "listen 8080 udp",
    "first": "10.0.0.1:8080",
    "second": "10.0.0.2:8080",
}


@pytest.fixture
def replicas(start, redis):
    """Two replicas that share a store."""
    return [start(*PACE, "--store", redis.url) for _ in range(2)]


@pytest.fixture
def whole(start):
    """The undisturbed answer."""
    server = start("--simulate", "inf")
    return text_of(server)


def text_of(server):
    body = {"messages": QUESTION}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    return answer["choices"][0]["message"]["content"]


def sdk(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def named(response):
    return [response.headers[f"x-loquent-stream-{part}"] for part in ("id", "token")]


def eventually(holds):
    """Waits until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_any_replica_has_what_another_one_stored(replicas):
    first, second = map(sdk, replicas)
    stored = first.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "tokens=5"}], store=True, metadata={"by": "first"}
    )
    found = second.chat.completions.retrieve(stored.id)
    assert found.choices == stored.choices and found.metadata == {"by": "first"}
    second.chat.completions.update(stored.id, metadata={"by": "second"})
    assert [one.metadata for one in first.chat.completions.list()] == [{"by": "second"}]
    response = first.responses.create(model="any", input="tokens=5")
    again = second.responses.create(model="any", input="and?", previous_response_id=response.id)
    assert second.responses.retrieve(response.id).output_text == response.output_text
    first.responses.delete(again.id)
    with pytest.raises(openai.NotFoundError):
        second.responses.retrieve(again.id)


def test_a_background_response_is_seen_while_another_replica_generates_it(replicas):
    first, second = map(sdk, replicas)
    response = first.responses.create(model="any", input="tokens=600", background=True)
    eventually(lambda: second.responses.retrieve(response.id).status == "in_progress")
    with pytest.raises(openai.APIStatusError) as elsewhere:
        second.responses.cancel(response.id)
    assert elsewhere.value.status_code == 503 and "retry-after" in elsewhere.value.response.headers
    eventually(lambda: second.responses.retrieve(response.id).status == "completed")


def test_a_reader_moves_between_replicas(replicas, whole):
    with httpx.Client(timeout=60) as http:
        name, (text, last, _) = begin(replicas[0], http, 20)
    for turn in range(4):
        with resumed(replicas[(turn + 1) % 2], name, last) as response:
            assert response.status_code == 200, replicas[(turn + 1) % 2].log
            more, last, done = read(response.iter_lines(), 30)
            text += more
            assert more and not done
    with resumed(replicas[1], name, last) as response:
        rest, _, done = read(response.iter_lines())
    assert done and text + rest == whole
    for replica in replicas:
        with resumed(replica, name, None) as response:
            assert read(response.iter_lines())[0] == whole


def test_many_answers_take_few_commands(replicas, redis):
    def answer(_):
        body = {**BODY, "messages": [{"role": "user", "content": "tokens=400"}]}
        url = f"{replicas[0].url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=60) as response:
            return read(response.iter_lines())[2]

    before = redis.calls("evalsha")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(answer, range(8)))
    calls = redis.calls("evalsha") - before
    assert 0 < calls < 8 * 400 / 4, calls


def test_an_answer_that_has_ended_outlives_its_replica(replicas, whole):
    owner, other = replicas
    url = f"{owner.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=BODY, timeout=60) as response:
        name = named(response)
        assert read(response.iter_lines())[2]
    with resumed(other, name, None) as response:  # it waits for what is not stored yet
        assert response.status_code == 200
    owner.process.kill()
    owner.process.wait(20)
    with resumed(other, name, None) as response:
        text, _, done = read(response.iter_lines())
    assert done and text == whole


def test_a_stop_reaches_the_replica_that_generates(replicas):
    owner, other = replicas
    body = {**BODY, "ignore_eos": True, "max_tokens": 5000}
    with httpx.Client(timeout=60) as http:
        with http.stream("POST", f"{owner.url}/v1/chat/completions", json=body) as response:
            name = named(response)
            lines = response.iter_lines()
            read(lines, 5)
            url = f"{other.url}/v1/streams/{name[0]}"
            wrong = name[1][:-1] + ("0" if name[1][-1] != "0" else "1")
            eventually(lambda: resumes(other, name))
            assert http.delete(url, headers={"x-loquent-stream-token": wrong}).status_code == 404
            with resumed(other, (name[0], wrong), None) as stranger:
                assert stranger.status_code == 404
            assert http.delete(url, headers={"x-loquent-stream-token": name[1]}).status_code == 204
            with pytest.raises(httpx.RemoteProtocolError):
                for _ in lines:
                    pass
        for replica in replicas:
            with resumed(replica, name, None) as response:
                assert response.status_code == 404


def resumes(server, name):
    with resumed(server, name, None) as response:
        return response.status_code == 200


def test_an_owner_that_was_killed_is_succeeded(replicas, whole):
    owner, other = replicas
    url = f"{owner.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=BODY, timeout=60) as response:
        name = named(response)
        lines = response.iter_lines()
        text, last, _ = read(lines, 20)
        owner.process.kill()
        # What was on its way, and is stored: the last bytes that the owner has sent.
        with contextlib.suppress(httpx.TransportError):
            for line in lines:
                more, id, _ = read([line])
                text, last = text + more, id or last
    assert text and text != whole
    with resumed(other, name, last) as response:
        assert response.status_code == 200
        rest, _, done = read(response.iter_lines())
    assert done and text + rest == whole


def test_a_random_answer_goes_on_with_its_own_seed(replicas):
    owner, other = replicas
    # A long request, too: 70 kB of it say nothing.
    body = {**BODY, "temperature": 1.0, "n": 2, "seed": 7, "user": "a name " * 10_000}
    plain = {**body, "stream": False, "resumable": False}
    answer = httpx.post(f"{other.url}/v1/chat/completions", json=plain, timeout=60).json()
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    with httpx.stream("POST", f"{owner.url}/v1/chat/completions", json=body, timeout=60) as response:
        name = named(response)
        read(response.iter_lines(), 40)
    owner.process.kill()
    with resumed(other, name, None) as response:
        events = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    for index, text in enumerate(texts):
        parts = [one["delta"].get("content") or "" for one in choices if one["index"] == index]
        assert "".join(parts) == text


def test_an_owner_that_slept_appends_nothing(replicas, whole):
    owner, other = replicas
    with httpx.Client(timeout=60) as http:
        name, (text, last, _) = begin(owner, http, 20)
    with resumed(other, name, last) as response:
        lines = response.iter_lines()
        text += read(lines, 10)[0]
        owner.process.send_signal(signal.SIGSTOP)
        # Nothing more comes from its owner, so that this is the other one's.
        text += read(lines, 100)[0]
        owner.process.send_signal(signal.SIGCONT)
        rest, _, done = read(lines)
    assert done and text + rest == whole
    for replica in replicas:
        with resumed(replica, name, None) as response:
            assert read(response.iter_lines())[0] == whole


def test_without_the_store_answers_go_on_and_nothing_waits_for_it(replicas, redis, whole):
    owner, other = replicas
    url = f"{owner.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=BODY, timeout=60) as response:
        name = named(response)
        lines = response.iter_lines()
        text, last, _ = read(lines, 20)
        redis.kill()
        eventually(lambda: httpx.get(f"{owner.url}/health").json() == {"status": "ok", "store": "away"})
        with pytest.raises(openai.APIStatusError) as away:
            sdk(owner).chat.completions.list()
        assert away.value.status_code == 503 and "temporarily unavailable" in away.value.message
        with resumed(other, name, last) as response:
            assert response.status_code == 503 and "retry-after" in response.headers
        # It has lost everything, and gets the answer's log once more.
        assert redis.start()
        eventually(lambda: httpx.get(f"{owner.url}/health").json() == {"status": "ok", "store": "ok"})
        rest, _, done = read(lines)
    assert done and text + rest == whole
    eventually(lambda: resumes(other, name))
    with resumed(other, name, last) as response:
        assert read(response.iter_lines())[0] == rest


def test_a_store_that_refuses_the_login_is_said_at_the_start(redis):
    from conftest import Server

    redis.ask("CONFIG", "SET", "requirepass", "right")
    server = Server("--simulate", "inf", "--store", redis.url.replace("//", "//:wrong@"))
    assert server.process.wait(60) != 0
    server.stop()
    said = "".join(server.log)
    assert "cannot use the store redis://127.0.0.1:" in said and "correct --store" in said
    assert "wrong@" not in said


def test_over_quic_an_answer_goes_on_at_another_replica_and_back(replicas, whole):
    async def scenario():
        async with connect(replicas[0].url) as first:
            answer, _ = await first.ask({**BODY, "temperature": 0})
            await answer.until(lambda: len(answer.text()) > 100)
            first.vanish()
        for turn in (1, 0, 1):
            seen = len(answer.text())
            async with connect(replicas[turn].url) as session:
                _, path = await session.resume(answer)
                # Text grows over this path, or there is no more.
                await answer.until(lambda: len(answer.text()) > seen + 100 or answer.outcome is not None)
                if answer.outcome is not None:
                    assert await path.ended is None
                session.vanish()
        async with connect(replicas[0].url) as last:
            _, path = await last.resume(answer)
            await answer.until(lambda: answer.outcome is not None or path.ended.done())
        assert answer.is_complete
        return answer.text()

    assert asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S)) == whole


def configuration(folder, needle, **addresses):
    """A configuration of docs/replicas.md for addresses of this test, as a file."""
    text = documented.block("", needle)
    for name, address in addresses.items():
        assert address and name in NAMES, name
        text = text.replace(NAMES[name], address)
    file = folder / "balancer.conf"
    file.write_text(text)
    return file


@pytest.fixture
def haproxy(replicas, tmp_path):
    """HAProxy in front of the replicas, as the documents have it; its URL."""
    program = shutil.which("haproxy", path=SERVER_PATH)
    if not program:
        pytest.skip("haproxy is not installed")
    first, second = (replica.url.removeprefix("http://") for replica in replicas)
    port = free_port()
    file = configuration(tmp_path, "frontend loquent", listen=f"bind 127.0.0.1:{port}", first=first, second=second)
    running = subprocess.Popen([program, "-db", "-f", file], stderr=subprocess.DEVNULL)
    eventually(lambda: status(f"http://127.0.0.1:{port}/ready") == 200)
    yield f"http://127.0.0.1:{port}"
    running.kill()
    running.wait(20)


def status(url):
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return None


def test_behind_haproxy_readers_go_on_when_a_replica_ends(replicas, haproxy, whole):
    with httpx.stream("POST", f"{haproxy}/v1/chat/completions", json=BODY, timeout=60) as response:
        name = named(response)
        text, _, done = read(response.iter_lines())
    assert done and text == whole
    url = f"{haproxy}/v1/streams/{name[0]}?token={name[1]}"
    for replica in replicas:
        eventually(lambda: resumes(replica, name))
    # Whichever of the two the proxy has chosen, the other one has it.
    replicas[0].process.kill()
    replicas[0].process.wait(20)
    eventually(lambda: status(url) == 200)
    with httpx.stream("GET", url, timeout=60) as response:
        assert read(response.iter_lines())[0] == whole


def test_nginx_takes_quic_to_the_replicas(replicas, tmp_path, whole, monkeypatch):
    program = shutil.which("nginx", path=SERVER_PATH)
    module = "/usr/lib/nginx/modules/ngx_stream_module.so"
    if not program or not os.path.exists(module):
        pytest.skip("nginx with its stream module is not installed")
    target = replicas[0].url.removeprefix("http://")
    port = free_port(socket.SOCK_DGRAM)
    file = configuration(tmp_path, "proxy_timeout", udp=f"listen 127.0.0.1:{port} udp", first=target, second=target)
    frame = f'load_module {module};\npid {tmp_path}/pid;\nerror_log {tmp_path}/log;\ndaemon off;\nevents {{}}\n'
    file.write_text(frame + file.read_text())
    running = subprocess.Popen([program, "-p", tmp_path, "-c", file], stderr=subprocess.DEVNULL)

    discover = quic.discover

    async def behind_nginx(url):
        return dataclasses.replace(await discover(url), port=port)

    async def scenario():
        monkeypatch.setattr(quic, "discover", behind_nginx)
        async with connect(replicas[0].url) as session:
            answer, path = await session.ask({**BODY, "temperature": 0})
            await answer.until(lambda: answer.outcome is not None or path.ended.done())
            return answer.text()

    try:
        eventually(lambda: (tmp_path / "pid").exists())
        assert asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S)) == whole
    finally:
        # Killed, it would leave its worker behind.
        running.terminate()
        running.wait(20)


def test_behind_haproxy_no_stream_is_lost_with_its_replica(replicas, haproxy, whole):
    def answer(_):
        """Reads an answer as a client does: it comes back until it has all of it."""
        text, last, name = "", None, None
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            request = ("POST", f"{haproxy}/v1/chat/completions", {"json": BODY})
            if name:
                request = ("GET", f"{haproxy}/v1/streams/{name[0]}?token={name[1]}&from={last or 0}", {})
            with contextlib.suppress(httpx.TransportError):
                with httpx.stream(request[0], request[1], timeout=60, **request[2]) as response:
                    if response.status_code != 200:
                        # The proxy has not noticed yet.
                        time.sleep(0.2)
                        continue
                    name = name or named(response)
                    begun.release()
                    for line in response.iter_lines():
                        more, id, done = read([line])
                        text, last = text + more, id or last
                        if done:
                            return text
        return text

    begun = threading.Semaphore(0)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = pool.map(answer, range(8))
        for _ in range(8):
            begun.acquire()
        # All come from one address, and so to one replica.
        busy = max(replicas, key=lambda replica: replica.metric("delivery_kept_bytes"))
        busy.process.kill()
        assert list(answers) == [whole] * 8


def test_a_reader_that_was_ahead_of_the_store_goes_on_behind_haproxy(replicas, haproxy, redis, whole, tmp_path):
    proxy = Proxy(haproxy, tmp_path / "state")
    try:
        assert proxy.decided() == "QUIC", proxy.log
        with httpx.stream("POST", f"{proxy.url}/v1/chat/completions", json=BODY, timeout=60) as response:
            lines = response.iter_lines()
            text = read(lines, 40)[0]
            # Datagrams do not wait for the store, which gets nothing of what comes now.
            redis.process.send_signal(signal.SIGSTOP)
            text += read(lines, 30)[0]
            max(replicas, key=lambda replica: replica.metric("delivery_kept_bytes")).process.kill()
            redis.process.send_signal(signal.SIGCONT)
            rest, _, done = read(lines)
        assert done and text + rest == whole
    finally:
        proxy.stop()
