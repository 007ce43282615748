"""OpenAI's JavaScript SDK on a web page of another port, in a real browser."""

import functools
import http.server
import threading
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
MODULES = Path(__file__).parent / "node_modules"

# Imports are resolved by the browser: the SDK's ES modules name each other by relative paths.
PAGE = b"<!doctype html><meta charset=utf-8><title>app</title><link rel=icon href=data:,>"

ASK = """async ([url, key, prompt]) => {
    const { default: OpenAI } = await import("/openai/index.mjs");
    const client = new OpenAI({ baseURL: url + "/v1", apiKey: key, maxRetries: 0, dangerouslyAllowBrowser: true });
    const messages = [{ role: "user", content: prompt }];
    try {
        const stream = await client.chat.completions.create({ model: "any", messages, stream: true, max_tokens: 20 });
        let pieces = [];
        for await (const chunk of stream) pieces.push(chunk.choices[0]?.delta?.content ?? "");
        return { text: pieces.join(""), pieces: pieces.length };
    } catch (error) {
        return { name: error.constructor.name, status: error.status, code: error.code, message: error.message };
    }
}"""


class App(http.server.SimpleHTTPRequestHandler):
    """A web application of another port: an empty page, and the SDK."""

    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

    def do_GET(self):
        if self.path != "/":
            return super().do_GET()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def app():
    if not (MODULES / "openai/index.mjs").exists():
        pytest.skip("tests/e2e/node_modules is missing: tools/setup installs it")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(App, directory=MODULES))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(chromium):
    with sync_playwright() as playwright:
        # The name has this machine's address, as after DNS rebinding.
        rebound = "--host-resolver-rules=MAP evil.example 127.0.0.1"
        running = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS, rebound])
        yield running
        running.close()


def ask(browser, origin, url, key="none", prompt="What is token streaming?"):
    """What the SDK makes of a request from a page of `origin`."""
    page = browser.new_page()
    try:
        page.goto(origin)
        return page.evaluate(ASK, [url, key, prompt])
    finally:
        page.close()


def test_the_sdk_streams_from_another_port_of_this_machine(app, browser, server):
    answer = ask(browser, app, server.url)
    assert answer.get("pieces", 0) > 2 and answer["text"], answer


def test_the_sdk_reads_why_it_is_refused(app, browser, start):
    server = start("--api-key", "secret")
    refused = ask(browser, app, server.url, key="wrong")
    assert (refused["name"], refused["status"]) == ("AuthenticationError", 401), refused
    assert ask(browser, app, server.url, key="secret").get("text")
    long = ask(browser, app, server.url, key="secret", prompt="word " * 9000)
    assert (long["status"], long["code"]) == (400, "context_length_exceeded"), long


def test_a_page_that_has_rebound_its_name_reads_nothing(browser, server):
    port = httpx.URL(server.url).port
    page = browser.new_page()
    response = page.goto(f"http://evil.example:{port}/v1/models")
    assert response.status == 403
    assert response.json()["error"]["code"] == "host_not_allowed"
    page.close()
