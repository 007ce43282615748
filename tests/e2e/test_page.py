"""The chat page in a real browser."""

import re

import pytest
from playwright.sync_api import expect, sync_playwright

from conftest import PATIENCE_S

# Playwright gives up after five seconds what a busy machine may take for an answer.
expect.set_options(timeout=PATIENCE_S * 1000)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture
def page(chromium, server):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        opened = browser.new_page()
        problems = []
        opened.on("pageerror", lambda error: problems.append(str(error)))
        opened.goto(server.url)
        yield opened
        browser.close()
        assert problems == []


def test_it_streams_an_answer_and_measures_it(page):
    expect(page.locator("#model")).to_have_text("loquent-tiny")
    page.fill("#prompt", "What is token streaming?")
    page.press("#prompt", "Enter")
    answer = page.locator("article.assistant")
    expect(answer.locator("footer")).to_have_text(re.compile(r"first token \d+ ms · \d+ tokens/s · \d+ tokens"))
    assert len(answer.locator(".text").inner_text()) > 20
    expect(page.locator("#send")).to_be_visible()


def test_it_stops_when_told_and_keeps_what_came(page, server):
    page.click("text=Settings")
    page.fill("#temperature", "0")
    page.click("text=Tell me a long story.")
    expect(page.locator("article.assistant .text")).not_to_be_empty()
    if page.locator("#stop").is_visible():
        page.click("#stop")
    expect(page.locator("#send")).to_be_visible()
    assert page.locator("article.assistant .text").inner_text()


def test_an_error_is_shown(page):
    page.click("text=Settings")
    page.fill("#max-tokens", "5")
    page.fill("#prompt", "word " * 9000)
    page.press("#prompt", "Enter")
    expect(page.locator("article.failed")).to_contain_text("longer than the model can read")


def test_answers_are_text_never_markup(page):
    page.fill("#prompt", "<img src=x onerror=\"document.title='hacked'\">")
    page.press("#prompt", "Enter")
    expect(page.locator("article.assistant footer")).to_contain_text("first token")
    assert page.locator("article img").count() == 0
    assert page.title() == "Loquent"
