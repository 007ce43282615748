"""Starts the real binary for tests with unmodified clients, as tests/e2e does."""

import importlib.util
import shutil
from pathlib import Path

import pytest

# By its path: several folders of tests have a file of that name.
PATH = Path(__file__).parents[1] / "e2e" / "conftest.py"
SPEC = importlib.util.spec_from_file_location("e2e_conftest", PATH)
E2E = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(E2E)

chromium, server, start = E2E.chromium, E2E.server, E2E.start

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="session")
def serve():
    """Starts servers that several tests share."""
    running = []

    def start_server(*args, ready=True):
        running.append(E2E.Server(*args))
        return running[-1].wait() if ready else running[-1].wait_announced()

    yield start_server
    for one in running:
        one.stop()


@pytest.fixture(scope="session")
def node():
    """The path of Node.js."""
    return shutil.which("node") or pytest.skip("Node.js is not installed")


@pytest.fixture(scope="session")
def browser(chromium):
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield running
        running.close()
