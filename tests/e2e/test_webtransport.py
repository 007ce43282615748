"""The chat page over WebTransport in Chromium: loss, blackouts, reloads, hidden tabs."""

import itertools
import json
import re

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright

from test_page import FLAGS

# Time in which an answer of a test is over, whatever happened to it on the way.
PATIENCE_MS = 60_000

# Shows the demonstration model's answers as fast as they come.
AS_IT_COMES = """
    sessionStorage.getItem("loquent:settings") ?? sessionStorage.setItem("loquent:settings", '{"readingPace":false}')
"""


@pytest.fixture(scope="module")
def browser(chromium):
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser):
    """Opens the page at a URL in a tab of its own."""
    contexts = []
    problems = []

    def open_it(url, expected="WebTransport"):
        contexts.append(browser.new_context())
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.add_init_script(AS_IT_COMES)
        page.goto(url)
        # It names the transport once the connection stands, or cannot be had.
        expect(page.locator("#transport")).to_have_text(expected, timeout=PATIENCE_MS)
        page.click("text=Settings")
        page.fill("#temperature", "0")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert problems == []


def dense(text):
    """A text without its white space: the page shows line ends as paragraphs."""
    return "".join(text.split())


def whole_answer(server, question, max_tokens=None):
    """The same answer, not streamed, without white space."""
    request = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": max_tokens}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=request, timeout=60)
    return dense(answer.json()["choices"][0]["message"]["content"])


def ask(page, question, max_tokens=None):
    """Asks, and returns the article of the answer."""
    if max_tokens is not None:
        page.fill("#max-tokens", str(max_tokens))
    page.fill("#prompt", question)
    page.press("#prompt", "Enter")
    return page.locator("article.assistant").last


def kept(page):
    """The article of an answer after a reload, which shows its turns before their text."""
    article = page.locator("article.assistant").last
    expect(article.locator(".text")).not_to_be_empty()
    return article


def text_of(article):
    return dense(article.locator(".text").evaluate("element => element.textContent"))


def finished(article):
    """Waits until all of the answer is on the page; returns its footer."""
    expect(article).to_have_attribute("aria-busy", "false", timeout=PATIENCE_MS)
    expect(article).not_to_have_class(re.compile("failed"))
    return article.locator("footer").text_content()


def wait_for_characters(page, count):
    script = "count => document.querySelector('article.assistant .text')?.textContent.length > count"
    page.wait_for_function(script, arg=count, timeout=PATIENCE_MS)


def test_an_answer_comes_by_datagram(server, open_page):
    page = open_page(server.url)
    before = server.metric("delivery_datagrams_total")
    answer = ask(page, "What is token streaming?")
    footer = finished(answer)
    # A short answer has no rate.
    assert re.match(r"WebTransport · first token \d+ ms · (\d+ tokens/s · )?\d+ tokens", footer)
    assert text_of(answer) == whole_answer(server, "What is token streaming?")
    assert server.metric("delivery_datagrams_total") > before
    assert len(page.workers) == 1


def test_through_loss_the_text_is_that_of_a_clean_run(open_page, relays):
    for seed in range(1, 4):
        # A fifth of all datagrams is lost, in runs of two on average.
        server, relay = relays("--simulate", "50", seed=seed, stay_good=0.875, stay_bad=0.5)
        page = open_page(relay.url)
        question = f"Does loss {seed} matter?"
        answer = ask(page, question, 150)
        assert "WebTransport" in finished(answer)
        assert text_of(answer) == whole_answer(server, question, 150)
        assert relay.lost > 20 and relay.passed > 50, f"{relay.lost} lost of {relay.lost + relay.passed}"


@pytest.mark.parametrize("delivery", ["webtransport", "sse"])
def test_a_reload_in_the_middle_loses_and_repeats_nothing(start, open_page, delivery):
    server = start("--simulate", "40")
    page = open_page(server.url)
    page.select_option("#delivery", delivery)
    question = "Tell me something long."
    ask(page, question, 160)
    wait_for_characters(page, 150)
    page.reload()
    answer = kept(page)
    assert len(text_of(answer)) > 100, "the first part was kept"
    footer = finished(answer)
    whole = whole_answer(server, question, 160)
    assert text_of(answer) == whole
    assert "resumed" in footer, "and the rest was resumed"
    assert server.metric("generation_tokens_total") == 320, "one generation was streamed, one was not"
    page.reload()
    answer = kept(page)
    finished(answer)
    assert text_of(answer) == whole


def test_an_answer_that_another_window_resumes_is_whole_in_both(start, open_page):
    # Slow enough that the other window is there before the end, on a busy machine too.
    server = start("--simulate", "16")
    page = open_page(server.url)
    question = "And in another window?"
    ask(page, question, 160)
    wait_for_characters(page, 150)
    # What a browser does with a tab that is duplicated.
    kept = json.dumps(page.evaluate("() => ({ ...sessionStorage })"))
    other = page.context.new_page()
    other.add_init_script(f"if (sessionStorage.length === 0) Object.assign(sessionStorage, {kept})")
    other.goto(server.url)
    first = page.locator("article.assistant").last
    second = other.locator("article.assistant").last
    assert "resumed" in finished(second)
    assert "resumed" not in finished(first)
    whole = whole_answer(server, question, 160)
    assert text_of(second) == whole
    assert text_of(first) == whole


def test_when_datagrams_stop_for_good_the_answer_finishes_over_tcp(open_page, relays):
    server, relay = relays("--simulate", "20")
    page = open_page(relay.url)
    question = "And if UDP is blocked?"
    answer = ask(page, question, 240)
    wait_for_characters(page, 200)
    assert "WebTransport" in answer.locator("footer").text_content()
    relay.dark = True
    footer = finished(answer)
    assert text_of(answer) == whole_answer(server, question, 240)
    assert "SSE" in footer and "resumed" in footer


def test_where_udp_is_blocked_the_answer_comes_over_tcp_at_once(open_page, relays):
    server, relay = relays("--simulate", "100")
    relay.dark = True
    page = open_page(relay.url, expected="SSE")
    answer = ask(page, "Hello?", 20)
    footer = finished(answer)
    assert footer.startswith("SSE")
    number, unit = re.search(r"first token ([\d.]+) (ms|s)\b", footer).groups()
    # It waits for no connection any more; the rest is a busy machine's.
    assert float(number) * {"ms": 1, "s": 1_000}[unit] < 20_000
    assert text_of(answer) == whole_answer(server, "Hello?", 20)


def quiet_share(shown_at):
    """Share of the time in pauses of at least 400 ms. A share, because on a busy machine any one pause may be long."""
    pauses = [later - sooner for sooner, later in itertools.pairwise(shown_at)]
    return sum(pause for pause in pauses if pause >= 400) / sum(pauses)


def test_a_hidden_tab_is_served_rarely_and_whole(start, open_page):
    server = start("--simulate", "50")
    page = open_page(server.url)
    page.evaluate("""() => {
        window.shownAt = [];
        // Of the text alone: the line of facts below it has a clock of its own.
        const isText = ({target}) => (target.parentElement ?? target).closest('.text') !== null;
        const note = (changes) => changes.some(isText) && window.shownAt.push(performance.now());
        const log = document.getElementById('log');
        new MutationObserver(note).observe(log, {subtree: true, childList: true, characterData: true});
        window.setHidden = (hidden) => {
            const value = hidden ? 'hidden' : 'visible';
            Object.defineProperty(document, 'visibilityState', {value, configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
            window.shownAt.length = 0;
        };
    }""")
    answer = ask(page, "Who looks?", 400)
    wait_for_characters(page, 50)
    page.evaluate("setHidden(true)")
    page.wait_for_timeout(4_000)
    hidden = page.evaluate("shownAt")
    page.evaluate("setHidden(false)")
    # By the number of changes: what was held for the hidden page comes in one.
    for _ in range(200):
        if len(seen := page.evaluate("shownAt")) > 20:
            break
        page.wait_for_timeout(50)
    assert quiet_share(hidden) > 0.6, f"a hidden page is served once a second, not at {hidden} ms"
    assert quiet_share(seen) < 0.4, f"a page that is seen again is served at once, not at {seen} ms"
    finished(answer)
    assert text_of(answer) == whole_answer(server, "Who looks?", 400)


def test_stopping_ends_the_generation(start, open_page):
    server = start("--simulate", "30")
    page = open_page(server.url)
    answer = ask(page, "Go on forever.", 2000)
    wait_for_characters(page, 60)
    page.keyboard.press("Escape")
    expect(answer.locator("footer")).to_contain_text("stopped")
    running = httpx.Client(base_url=server.url)
    while server.metric("num_requests_running") > 0:
        running.get("/health")
    assert server.metric("generation_tokens_total") < 500


def test_a_question_waits_for_the_key(start, open_page):
    server = start("--simulate", "50", "--api-key", "secret")
    page = open_page(server.url)
    ask(page, "Who are you?", 10)
    expect(page.locator(".key-notice")).to_contain_text("answers only with an API key")
    assert page.locator("article").count() == 0, "the question was not sent"
    page.fill("#wanted-key", "secret")
    page.click("text=Use it")
    expect(page.locator(".key-notice")).to_have_count(0)
    page.press("#prompt", "Enter")
    assert "10 tokens" in finished(page.locator("article.assistant").last)
    assert page.locator("article").count() == 2
