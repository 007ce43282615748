"""The AI SDK's useChat on a page of another port, in a real browser, straight at Loquent."""

import functools
import http.server
import json
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest

HERE = Path(__file__).parent
#: Tokens per second of the simulated engine, and tokens of an answer that lasts a while.
PACE, LONG = 100, 600


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the page, without a log."""

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def app(node, tmp_path_factory):
    """The page's address."""
    if not (HERE / "node_modules/esbuild").exists():
        pytest.skip("tests/clients/apps/node_modules is missing: tools/clients installs it")
    folder = tmp_path_factory.mktemp("page")
    subprocess.run([node, HERE / "bundle.mjs", folder], check=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def paced(serve):
    return serve("--simulate", str(PACE))


@pytest.fixture
def open_chat(app, browser, paced):
    """Opens the page at a chat; its errors fail the test."""
    pages, problems = [], []

    def opened(chat_id, context=None, status="ready", **options):
        page = (context or browser).new_page()
        pages.append(page)
        page.on("pageerror", lambda error: problems.append(str(error)))
        query = {"api": f"{paced.url}/v1/ui/chat", "id": chat_id, **options}
        page.goto(f"{app}/?{urlencode(query)}")
        page.wait_for_function("status => window.chat?.status === status", arg=status)
        return page

    yield opened
    for page in pages:
        page.close()
    assert problems == []


def send(page, text):
    page.evaluate("text => void chat.sendMessage({ text })", text)


def parts(page, kind, role="assistant"):
    """The parts of that kind in the messages of that role."""
    messages = page.evaluate("chat.messages")
    return [part for one in messages if one["role"] == role for part in one["parts"] if part["type"] == kind]


def text(page):
    return "".join(part["text"] for part in parts(page, "text"))


def wait_for_text(page, least):
    page.wait_for_function(
        "least => chat.messages.flatMap(one => one.role === 'assistant' ? one.parts : [])"
        ".some(part => part.type === 'text' && part.text.length > least)",
        arg=least,
    )


def wait_until_ready(page):
    page.wait_for_function("chat.status === 'ready' && chat.messages.at(-1)?.role === 'assistant'")


def whole(server, prompt):
    """What the server says to the same question in one piece."""
    body = {"messages": [{"role": "user", "content": prompt}]}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    return answer["choices"][0]["message"]["content"]


def test_an_answer_streams(open_chat, paced):
    page = open_chat("streams")
    send(page, "tokens=60")
    page.wait_for_function("chat.status === 'streaming'")
    wait_until_ready(page)
    assert text(page) == whole(paced, "tokens=60")
    assert page.evaluate("chat.error") is None


def test_a_reload_in_mid_answer_loses_and_doubles_nothing(open_chat, paced):
    page = open_chat("reload")
    send(page, f"tokens={LONG}")
    wait_for_text(page, 40)
    page.reload()
    page.wait_for_function("window.chat?.status === 'streaming'")
    assert len(text(page)) < len(whole(paced, f"tokens={LONG}")), "the reload came in mid-answer"
    wait_until_ready(page)
    assert text(page) == whole(paced, f"tokens={LONG}")
    assert len(page.evaluate("chat.messages")) == 2
    # Another reload finds nothing to resume.
    page.reload()
    page.wait_for_function("window.chat?.status === 'ready'")
    assert text(page) == whole(paced, f"tokens={LONG}")


def test_an_answer_that_ended_while_the_page_was_away_is_found(open_chat, paced, app):
    page = open_chat("away")
    send(page, "tokens=100")
    wait_for_text(page, 10)
    address = page.url
    page.goto(f"{app}/page.js")
    for _ in range(600):
        if paced.metric("num_requests_running") == 0:
            break
        page.wait_for_timeout(50)
    page.goto(address)
    page.wait_for_function("window.chat !== undefined")
    wait_until_ready(page)
    assert text(page) == whole(paced, "tokens=100")


def test_stop_ends_the_generation(open_chat, paced):
    before = paced.metric("generation_tokens_total")
    page = open_chat("stop")
    send(page, "tokens=5000")
    wait_for_text(page, 40)
    page.evaluate("stop()")
    for _ in range(600):
        if paced.metric("num_requests_running") == 0:
            break
        page.wait_for_timeout(50)
    assert paced.metric("generation_tokens_total") - before < 5000
    assert page.evaluate("chat.status") == "ready"
    kept = text(page)
    # A stopped answer stays stopped, and what came of it stays.
    page.reload()
    page.wait_for_function("window.chat?.status === 'ready'")
    assert text(page) == kept and kept


def test_two_pages_read_one_answer(open_chat, paced, browser):
    context = browser.new_context()
    first = open_chat("shared", context)
    send(first, f"tokens={LONG}")
    wait_for_text(first, 20)
    second = open_chat("shared", context, status="streaming")
    for page in (first, second):
        wait_until_ready(page)
        assert text(page) == whole(paced, f"tokens={LONG}")
    context.close()


def test_tools_run_on_the_page(open_chat, paced):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    page = open_chat("tools", tools=json.dumps(tools))
    send(page, 'say=<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>')
    wait_for_text(page, 10)
    wait_until_ready(page)
    (call,) = parts(page, "tool-weather")
    assert (call["state"], call["input"]) == ("output-available", {"city": "Rome"})
    # The simulated engine repeats what follows, and so a tag of the template.
    assert text(page).startswith("The sky over Rome is clear.")
    assert len(page.evaluate("chat.messages")) == 2, "the answer goes on in the same message"


def test_the_workflow_transport_reconnects_where_it_was(open_chat, paced):
    page = open_chat("workflow", transport="workflow", cut="4000")
    send(page, f"tokens={LONG}")
    wait_until_ready(page)
    assert page.evaluate("window.requests") == 2, "the connection was cut once"
    assert text(page) == whole(paced, f"tokens={LONG}")


class Reasoner(http.server.BaseHTTPRequestHandler):
    """A server behind Loquent that thinks before it speaks."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        deltas = [{"role": "assistant"}, {"reasoning_content": "Let me "}, {"reasoning_content": "think."}]
        deltas += [{"content": "Forty"}, {"content": "-two."}]
        for delta in deltas:
            self.chunk({"choices": [{"index": 0, "delta": delta}]})
        self.chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.wfile.write(b"data: [DONE]\n\n")

    def do_GET(self):
        body = b'{"object":"list","data":[]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def chunk(self, members):
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", **members}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *_):
        pass


def test_reasoning_of_an_upstream_server_is_a_part_of_its_own(open_chat, start):
    behind = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Reasoner)
    threading.Thread(target=behind.serve_forever, daemon=True).start()
    front = start("--upstream", f"http://127.0.0.1:{behind.server_port}", wait=False)
    page = open_chat("reasoning", api=f"{front.url}/v1/ui/chat")
    send(page, "What is it?")
    wait_until_ready(page)
    assert [part["text"] for part in parts(page, "reasoning")] == ["Let me think."]
    assert text(page) == "Forty-two."
    behind.shutdown()
    behind.server_close()
