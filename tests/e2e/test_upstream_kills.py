"""Upstream servers that die, hang or break off under answers of every API and transport: real processes, killed and
stopped, and connections that are reset or end in the middle of a chunk."""

import concurrent.futures
import contextlib
import json
import signal

import httpx
import pytest

from conftest import PATIENCE_S
from test_connect import Proxy
from test_upstreams import figures, wait_until
from wire import Break, Wire

TEXT = "One two three four five six seven eight nine ten, and so it goes on for a while. " * 2


def chat(prompt):
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}]}


def responses(prompt):
    return "/v1/responses", {"input": prompt, "store": False}


def messages(prompt):
    return "/v1/messages", {"max_tokens": 4000, "messages": [{"role": "user", "content": prompt}]}


def ollama(prompt):
    return "/api/chat", {"messages": [{"role": "user", "content": prompt}]}


APIS = (chat, responses, messages, ollama)


def text_and_end(api, event):
    """What one event of a stream adds to the text, and whether it says that the answer is whole."""
    match api.__name__:
        case "chat":
            choice = (event.get("choices") or [{}])[0]
            return choice.get("delta", {}).get("content") or "", bool(choice.get("finish_reason"))
        case "responses":
            text = event.get("delta", "") if event["type"] == "response.output_text.delta" else ""
            return text, event["type"] == "response.completed"
        case "messages":
            return event.get("delta", {}).get("text", ""), event["type"] == "message_stop"
        case "ollama":
            return event.get("message", {}).get("content", ""), event.get("done", False)


def read(api, url, prompt, begun):
    """Reads an answer to its end: its text, and whether it is whole. Calls `begun` at its first text."""
    path, body = api(prompt)
    text, whole = "", False
    with httpx.stream("POST", url + path, json={"model": "sim", "stream": True, **body}, timeout=PATIENCE_S) as stream:
        assert stream.status_code == 200, stream.read()
        for line in stream.iter_lines():
            data = line.removeprefix("data:").strip()
            if not data.startswith("{"):
                continue
            more, end = text_and_end(api, json.loads(data))
            if more and not text:
                begun()
            text, whole = text + more, whole or end
    return text, whole


FAULTS = [signal.SIGKILL, signal.SIGSTOP, Break.RESET, Break.CUT]


@pytest.mark.parametrize("fault", FAULTS, ids=["kill", "stop", "reset", "cut"])
def test_every_api_goes_on_when_a_server_dies_or_hangs(start, tmp_path, fault):
    behind = [start("--simulate", "40", "--max-batch-size", "32") for _ in range(3)]
    with contextlib.ExitStack() as wires:
        ways = [wires.enter_context(Wire(server.url)) for server in behind]
        upstream = "sim=" + ",".join(way.url for way in ways)
        front = start("--upstream", upstream, "--upstream-timeout-s", "2", "--max-inflight-requests", "256")
        proxy = Proxy(front.url, tmp_path)
        wires.callback(proxy.stop)
        assert proxy.decided() == "QUIC"
        urls, begun = (front.url, proxy.url), []
        asks = [(api, url, f"say={index} {TEXT}") for index in range(4) for api in APIS for url in urls]
        with concurrent.futures.ThreadPoolExecutor(len(asks)) as pool:
            answers = [pool.submit(read, *ask, lambda: begun.append(1)) for ask in asks]
            wait_until(lambda: len(begun) == len(asks), "all answers begin")
            running = [server.metric("num_requests_running") for server in behind]
            victim = running.index(max(running))
            assert running[victim] >= len(asks) / len(behind) / 2
            if isinstance(fault, Break):
                ways[victim].break_all(fault)
            else:
                behind[victim].process.send_signal(fault)
                # One that is stopped could not be ended.
                wires.callback(behind[victim].process.send_signal, signal.SIGCONT)
            for (api, url, prompt), answer in zip(asks, answers, strict=True):
                way = "QUIC" if url == proxy.url else "SSE"
                assert answer.result(PATIENCE_S) == (prompt.removeprefix("say="), True), (api.__name__, way)
        assert sum(figures(front, "moved_requests_total").values()) >= running[victim] / 2


def test_another_server_goes_on_with_exactly_the_text_so_far(start):
    """The bundled model on two real engines, one of which dies under chats and plain completions."""
    behind = [start("--max-batch-size", "16") for _ in range(2)]
    front = start("--upstream", "tiny=" + ",".join(server.url for server in behind))
    greedy = {"model": "tiny", "temperature": 0, "ignore_eos": True}

    def question(index, text=""):
        """A request, or the one for the rest behind `text`."""
        words = f"Question {index}: how does a token reach its reader?"
        if index % 2:
            return "/v1/completions", {"prompt": words + text}
        messages = [{"role": "user", "content": words}]
        if not text:
            return "/v1/chat/completions", {"messages": messages}
        messages.append({"role": "assistant", "content": text})
        return "/v1/chat/completions", {"messages": messages, "continue_final_message": True}

    def text_in(choice):
        return choice.get("text") or choice.get("delta", choice.get("message", {})).get("content") or ""

    def ask(index, begun):
        path, body = question(index)
        body |= greedy | {"max_tokens": 400, "stream": True}
        text, finish, seam = "", None, None
        with httpx.stream("POST", front.url + path, json=body, timeout=PATIENCE_S) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                if "continued" in event:
                    seam = text, event["continued"]["after_tokens"]
                for choice in event["choices"]:
                    text, finish = text + text_in(choice), choice["finish_reason"] or finish
                if text:
                    begun.add(index)
        return text, finish, seam

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        begun = set()
        answers = [pool.submit(ask, index, begun) for index in range(16)]
        wait_until(lambda: len(begun) == 16, "all answers begin")
        victim = max(behind, key=lambda server: server.metric("num_requests_running"))
        victim.process.kill()
        answers = [answer.result() for answer in answers]
    survivor = next(server for server in behind if server is not victim)
    assert any(seam for _, _, seam in answers), "the server had answers under way"
    for index, (text, finish, seam) in enumerate(answers):
        assert finish == "length"
        if seam is None:
            continue
        before, tokens = seam
        path, body = question(index, before.rstrip())
        rest = httpx.post(survivor.url + path, json=body | greedy | {"max_tokens": 400 - tokens}, timeout=PATIENCE_S)
        rest = text_in(rest.json()["choices"][0])
        space = before[len(before.rstrip()) :]
        assert text == before + rest.removeprefix(space), (index, before[-20:])
