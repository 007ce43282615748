"""A scripted model, the real binary in front of it, and a home of the agent's own: what its tests work with."""

import importlib.util
import json
import os
import signal
import socket
from pathlib import Path

import pytest
from scripted_model import FIRST, LAST, ScriptedModel

# Programs inherit that SIGINT is ignored, as it is where a shell has started the tests in the background.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# By its path: several folders of tests have a file of that name.
PATH = Path(__file__).parents[1] / "e2e" / "conftest.py"
SPEC = importlib.util.spec_from_file_location("e2e_conftest", PATH)
E2E = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(E2E)

# What tests/e2e/documented.py takes from the file of this name.
BINARY, REPOSITORY, PATIENCE_S = E2E.BINARY, E2E.REPOSITORY, E2E.PATIENCE_S
WORD = "word-0a1b2c3d"
# Far longer than any client takes, on a busy machine too.
SECONDS = 200
RESULTS = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "agents" / "results.json"


class Server(E2E.Server):
    """`loquent serve` on one port for all its lives, so that a client finds it again after it was killed."""

    def __init__(self, upstream, port):
        self.port = port
        arguments = ("serve", "--port", str(port), "--upstream", upstream, "--context", "32768")
        E2E.Running.__init__(self, *arguments, env={"LOQUENT_LOG": "warn"})


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def model():
    scripted = ScriptedModel()
    yield scripted
    scripted.stop()


@pytest.fixture
def serve(model):
    """Starts the server; once more on the same port after it was stopped."""
    running = []

    def start():
        running.append(Server(model.url, running[0].port if running else free_port()))
        return running[-1].wait()

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def processes():
    """Ends what a test has started, each by its id."""
    started = []
    yield started
    for process in started:
        process.end()


@pytest.fixture
def run(serve, processes, tmp_path):
    """Runs a client once against the server; `run.server` is that."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "note.txt").write_text(f"{WORD}\n")

    def start(client, mode, prompt, **more):
        process = client.start(mode, f"PLEASE {prompt}", place, start.server.url, **more)
        processes.append(process)
        return process

    start.server, start.place = serve(), place
    return start


def whole(process):
    """All that it printed, after a clean end."""
    assert process.wait(SECONDS) == 0, process.said()
    return process.printed


def assert_streamed(process, model):
    """Holds that the beginning of a long answer is shown before its end is there, and the end then."""
    process.wait_for(FIRST, SECONDS)
    assert LAST not in process.printed
    model.gate.set()
    assert LAST.strip() in whole(process)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    cell = getattr(item.function, "column", None)
    if cell and report.when == "call":
        report.user_properties.append(("cell", (item.callspec.params["client"].name, cell, told(report))))
    return report


def told(report):
    """What a cell of the table says of one test."""
    if hasattr(report, "wasxfail"):
        return f"no: {report.wasxfail.removeprefix('reason: ')}" if report.skipped else "failed"
    return "yes" if report.passed else "failed"


# Client, then column: "yes", "failed", or "no" and why. With pytest-xdist the reports of all workers come here.
CELLS = {}


def pytest_runtest_logreport(report):
    for name, value in report.user_properties:
        if name == "cell":
            client, cell, outcome = value
            CELLS.setdefault(client, {})[cell] = outcome


def pytest_sessionfinish(session):
    """Keeps what ran, for tools/agents to write the table from."""
    if CELLS and not hasattr(session.config, "workerinput"):
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(CELLS, indent=1) + "\n")
