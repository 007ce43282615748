"""Several servers behind one name, and several names, through openai-python: real processes of the
simulated engine, of which one is killed, and stand-ins of other engines."""

import concurrent.futures
import contextlib
import re
import socket
import subprocess
import sys
import threading
import time

import httpx
import openai
import pytest

from conftest import PATIENCE_S, REPOSITORY, Running, free_port
from engine_dialects import Sglang, Vllm
from test_upstream import llama_server, sdk, text_of

SERIES = re.compile(r'loquent_upstream_(\w+)\{server="([^"]+)",upstream="([^"]+)"\} (\S+)')


def address(server):
    return server.url.removeprefix("http://")


def figures(front, name):
    """A metric of each server, by its address."""
    found = SERIES.findall(httpx.get(f"{front.url}/metrics").text)
    return {server: float(value) for metric, server, _, value in found if metric == name}


def wait_until(holds, what, patience_s=PATIENCE_S):
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def unused_url():
    """Gives URLs of ports on which nobody listens, and that nobody else is given meanwhile."""
    with contextlib.ExitStack() as held:

        def reserve():
            taken = held.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0))
            return f"http://127.0.0.1:{taken.getsockname()[1]}"

        yield reserve


@pytest.fixture
def many(start):
    """Starts servers of the simulated engine, with flags of their own, as one upstream `sim`."""

    def start_many(*flags, front=()):
        behind = [start("--simulate", *each, "--max-inflight-requests", "256") for each in flags]
        urls = ",".join(one.url for one in behind)
        return behind, start("--upstream", f"sim={urls}", "--max-inflight-requests", "256", *front)

    return start_many


def says(text):
    return [{"role": "user", "content": f"say={text}"}]


class Reader(threading.Thread):
    """Reads one streamed answer: what came of it, and how it ended."""

    def __init__(self, front, text, key="none"):
        super().__init__(daemon=True)
        self.client = openai.OpenAI(base_url=f"{front.url}/v1", api_key=key, max_retries=0)
        self.wanted = text
        self.text, self.error, self.whole, self.continued = "", None, False, 0
        self.start()

    def run(self):
        ask = {"model": "sim", "messages": says(self.wanted), "stream": True}
        try:
            for chunk in self.client.chat.completions.create(**ask):
                self.continued += "continued" in (chunk.model_extra or {})
                for choice in chunk.choices:
                    self.text += choice.delta.content or ""
                    self.whole |= choice.finish_reason == "stop"
        except (openai.APIError, httpx.HTTPError) as error:
            self.error = error


def test_what_a_killed_server_had_begun_goes_on_at_another(many):
    # Two at once in each batch: the others wait there, and have no token yet.
    behind, front = many(*[("60", "--max-batch-size", "2")] * 3)
    texts = [f"Answer {index}. " + "It goes on. " * 20 for index in range(15)]
    readers = [Reader(front, text) for text in texts]
    wait_until(lambda: sum(bool(reader.text) for reader in readers) >= 4, "answers begin")
    # Where a prompt goes depends on the servers' ports: this one has some under way, and some wait.
    running = figures(front, "running")
    victim = max(behind, key=lambda server: running[address(server)])
    wait_until(lambda: victim.metric("generation_tokens_total") >= 4, "its answers begin")
    begun = {reader for reader in readers if reader.text}
    victim.process.kill()
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
    for reader in readers:
        assert reader.error is None and reader.whole, "none is lost"
        assert reader.text == reader.wanted, "nothing is doubled"
    assert any(reader.continued for reader in begun), "the server had answers under way"
    assert sum(figures(front, "moved_requests_total").values()) > 0
    # Checks find it down, and up again.
    wait_until(lambda: figures(front, "up")[address(victim)] == 0, "the server counts as down")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{victim.url}/health")
    port = address(victim).split(":")[1]
    again = Running("serve", "--simulate", "inf", "--port", port, env={"LOQUENT_LOG": "warn"})
    try:
        wait_until(lambda: figures(front, "up")[address(victim)] == 1, "the server is back")
        before = figures(front, "requests_total")[address(victim)]

        def gets_requests():
            for index in range(12):
                answer = sdk(front).chat.completions.create(model="sim", messages=says(f"x{index}"))
                assert answer.choices[0].message.content == f"x{index}"
            return figures(front, "requests_total")[address(victim)] > before

        wait_until(gets_requests, "it gets requests again")
    finally:
        again.stop()


def test_a_whole_answer_comes_from_another_server_too(many):
    behind, front = many(("inf",), ("inf",))
    behind[0].process.kill()
    behind[0].process.wait()
    for index in range(8):
        answer = sdk(front).chat.completions.create(model="sim", messages=says(f"x{index}"))
        assert answer.choices[0].message.content == f"x{index}"


def test_a_slow_server_loses_its_share(many):
    behind, front = many(("200",), ("200",), ("10",), front=("--upstream-routing", "least-loaded"))
    text = "One two three four five six seven eight."
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        readers = list(
            pool.map(lambda index: (reader := Reader(front, f"{index} {text}"), reader.join(60))[0], range(120))
        )
    assert all(reader.whole for reader in readers)
    got = figures(front, "requests_total")
    fast, other, slow = (got[address(server)] for server in behind)
    assert slow < min(fast, other) / 2, "the slow one has a smaller part"


def waiting(front):
    found = re.search(r"loquent_upstream_waiting_requests\{[^}]*\} (\S+)", httpx.get(f"{front.url}/metrics").text)
    return float(found[1])


def test_keys_take_turns_at_the_servers(many):
    limits = ("--upstream-max-running", "1", "--api-key", "greedy", "--api-key", "modest")
    _, front = many(("80",), ("80",), front=limits)
    greedy = [Reader(front, f"{index}. " + "On and on. " * 30, "greedy") for index in range(12)]
    wait_until(lambda: waiting(front) >= 8, "two are served at a time, and the others wait")
    modest = Reader(front, "Thank you.", "modest")
    modest.join(60)
    assert modest.whole and sum(reader.is_alive() for reader in greedy) >= 5, "it need not wait for all of them"
    for reader in greedy:
        reader.join(60)
    assert all(reader.whole and reader.text == reader.wanted for reader in greedy)
    assert waiting(front) == 0


def test_conversations_find_their_prefixes(many):
    hit_rates = {}
    for routing in ("prefix", "round-robin"):
        behind, front = many(*[("inf",)] * 3, front=("--upstream-routing", routing))
        conversations = [[{"role": "user", "content": f"{index} " + "word " * 80 + "say=yes"}] for index in range(7)]
        for turn in range(4):
            for messages in conversations:
                answer = sdk(front).chat.completions.create(model="sim", messages=messages)
                messages.append({"role": "assistant", "content": answer.choices[0].message.content})
                messages.append({"role": "user", "content": f"turn {turn} say=yes"})
        hits = sum(one.metric("prefix_cache_hits_total") for one in behind)
        hit_rates[routing] = hits / sum(one.metric("prefix_cache_queries_total") for one in behind)
        affine = sum(figures(front, "affine_requests_total").values())
        assert affine == (28 if routing == "prefix" else 0)
    assert hit_rates["prefix"] > hit_rates["round-robin"] + 0.1, hit_rates


def test_names_are_models_beside_the_servers_own(start, unused_url):
    far = start("--simulate", "inf")
    gone = unused_url()
    flags = ("--upstream", f"far={far.url}", "--upstream", f"gone={gone}", "--upstream-fallback", "gone=far")
    front = start("--simulate", "inf", "--served-model-name", "near", *flags)
    assert [model.id for model in sdk(front).models.list()] == ["near", "far", "gone"]
    for name in ("near", "far", "gone"):
        for stream in (True, False):
            ask = {"model": name, "messages": says("yes")}
            answer = sdk(front).chat.completions.create(**ask, stream=stream)
            text = text_of(answer) if stream else answer.choices[0].message.content
            assert text == "yes", name
    assert far.metric("request_success_total{finished_reason=\"stop\"}") == 4
    with pytest.raises(openai.NotFoundError):
        sdk(front).chat.completions.create(model="other", messages=says("yes"))
    counted = httpx.post(f"{front.url}/tokenize", json={"model": "far", "prompt": "abc"})
    assert counted.status_code == 200 and counted.json()["count"] == 3


def test_a_local_model_answers_while_the_servers_are_down(start):
    far = start("--simulate", "inf", "--served-model-name", "theirs")
    flags = ("--upstream", f"far={far.url}", "--upstream-fallback", "far=near")
    front = start("--simulate", "inf", "--served-model-name", "near", *flags)

    def model():
        return sdk(front).chat.completions.create(model="far", messages=says("yes")).model

    assert model() == "theirs"
    far.process.kill()
    wait_until(lambda: figures(front, "up")[address(far)] == 0, "the server counts as down")
    assert model() == "near", "an answer says who gave it"


@pytest.mark.parametrize("dialect", [Vllm, Sglang])
def test_other_engines_dialects_pass(start, dialect):
    with dialect() as one, dialect() as other:
        front = start("--upstream", f"big={one.url},{other.url}")
        assert [model.id for model in sdk(front).models.list()] == ["big"]
        for index in range(6):
            ask = {"model": "big", "messages": [{"role": "user", "content": f"say it {index}"}]}
            chunks = list(
                sdk(front).chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
            )
            assert text_of(chunks) == f"say it {index} "
            deltas = [choice.delta.model_extra for chunk in chunks for choice in chunk.choices]
            assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
            assert chunks[-1].usage.completion_tokens == 3
            whole = sdk(front).chat.completions.create(**ask)
            assert whole.choices[0].message.content == f"say it {index} "
        # Where a prompt goes depends on the servers' ports: six may well go to the same one.
        for index in range(6, 70):
            if one.asked and other.asked:
                break
            sdk(front).chat.completions.create(model="big", messages=[{"role": "user", "content": f"say it {index}"}])
        assert one.asked and other.asked
        # Each is asked by its own name of the model.
        assert {body["model"] for body in one.asked + other.asked} == {dialect.model}
        for stream in (True, False):
            with pytest.raises(openai.BadRequestError) as error:
                sdk(front).chat.completions.create(model="big", messages=[], stream=stream)
            assert "messages is empty" in str(error.value)
        assert set(figures(front, "up").values()) == {1}


def test_an_engine_that_says_it_is_dead_gets_nothing(start):
    class Dead(Vllm):
        def health(self):
            return 503, b""

    with Dead() as dead, Vllm() as good:
        front = start("--upstream", f"big={dead.url},{good.url}")
        wait_until(lambda: figures(front, "up")[address(dead)] == 0, "it counts as down")
        dead.asked.clear()
        for index in range(6):
            ask = {"model": "big", "messages": [{"role": "user", "content": f"go on {index}"}]}
            assert text_of(sdk(front).chat.completions.create(**ask, stream=True)) == f"go on {index} "
        assert not dead.asked and len(good.asked) >= 6


def test_everybody_down_is_said_with_a_time(start, unused_url):
    urls = f"{unused_url()},{unused_url()}"
    front = start("--upstream", f"big={urls}", wait=False)
    wait_until(lambda: set(figures(front, "up").values()) == {0}, "both count as down")
    for stream in (True, False):
        body = {"model": "big", "messages": says("x"), "stream": stream}
        refused = httpx.post(f"{front.url}/v1/chat/completions", json=body)
        assert refused.status_code == 503 and 1 <= int(refused.headers["retry-after"]) <= 30
        assert "down or busy" in refused.json()["error"]["message"]


@contextlib.contextmanager
def llama_servers(count):
    """Real llama-servers with the bundled model: their URLs."""
    binary, model = llama_server(), min((REPOSITORY / "models").glob("*.gguf"))
    ports = [free_port() for _ in range(count)]
    processes = []
    try:
        for port in ports:
            command = [binary, "-m", model, "--port", str(port), "-np", "4", "-c", "4096", "-t", "1", "--jinja"]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for port in ports:
            transport = httpx.HTTPTransport(retries=50)
            with httpx.Client(transport=transport) as client:
                health = f"http://127.0.0.1:{port}/health"
                wait_until(lambda: _status(client, health) == 200, "llama-server starts")
        yield [f"http://127.0.0.1:{port}" for port in ports], processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _status(client, url):
    try:
        return client.get(url).status_code
    except httpx.HTTPError:
        return None


def test_three_real_llama_servers_lose_nothing_and_one_may_die(start):
    with llama_servers(3) as (urls, processes):
        front = start("--upstream", "tiny=" + ",".join(urls))

        def one(index):
            question = [{"role": "user", "content": f"Question {index}: what is token streaming?"}]
            ask = {"model": "tiny", "messages": question, "temperature": 0, "max_tokens": 30}
            return text_of(sdk(front).chat.completions.create(**ask, stream=True))

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            assert all(pool.map(one, range(36)))
        assert all(count > 0 for count in figures(front, "requests_total").values())
        processes[0].kill()
        processes[0].wait()
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            assert all(pool.map(one, range(24)))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells the timers of connections")
def test_a_connection_to_an_upstream_is_probed_while_it_is_silent(start):
    """So that a machine that is gone, which closes nothing, is noticed."""
    behind = start("--simulate", "1")
    front = start("--upstream", behind.url)
    port = int(behind.url.rsplit(":", 1)[1])

    def is_probed():
        # proc_net_tcp: local and remote address, state (1 is open), queues, and the timer (2 is keepalive).
        rows = [line.split() for line in open("/proc/net/tcp").read().splitlines()[1:]]
        return any(row[2].endswith(f":{port:04X}") and row[3] == "01" and row[5].startswith("02:") for row in rows)

    ask = {"model": "x", "messages": says("slow"), "stream": True}
    with httpx.stream("POST", f"{front.url}/v1/chat/completions", json=ask, timeout=PATIENCE_S):
        wait_until(is_probed, "no timer for probes")
