"""The chat page over WebTransport in Firefox, with and without loss."""

import json
import shutil
import subprocess

import pytest

from conftest import REPOSITORY
from test_webtransport import dense, whole_answer

DRIVER = REPOSITORY / "tests/e2e/firefox_page.mjs"


@pytest.fixture(scope="module")
def firefox():
    """The path of an installed Firefox that can be driven here."""
    path = shutil.which("firefox-esr") or shutil.which("firefox")
    if path is None:
        pytest.skip("no Firefox is installed (Debian: apt-get install firefox-esr)")
    if shutil.which("node") is None or not (DRIVER.parent / "node_modules/puppeteer-core").exists():
        pytest.skip("no node with puppeteer-core to drive Firefox (tools/setup e2e)")
    return path


@pytest.mark.parametrize("stay_good", [1.0, 0.875], ids=["clean", "lossy"])
def test_the_page_receives_over_webtransport(relays, firefox, tmp_path, stay_good):
    server, relay = relays("--simulate", "50", seed=7, stay_good=stay_good, stay_bad=0.5)
    question = "Does it work in Firefox?"
    command = ["node", DRIVER, firefox, relay.url, question, "120"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    shown = json.loads(run.stdout)
    assert shown["problems"] == []
    assert shown["footer"].startswith("WebTransport · first token")
    assert stay_good < 1 or "resumed" not in shown["footer"], "the end of a stream is no break"
    assert dense(shown["text"]) == whole_answer(server, question, 120)
    assert relay.passed > 50 and (relay.lost > 15) == (stay_good < 1)
