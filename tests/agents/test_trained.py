"""SDKs against a small trained model (`tools/models smollm2`): what they are told is what they asked for."""

import json
import os
from pathlib import Path

import pytest
from sdks import SDKS

from conftest import E2E, SECONDS, whole

pytestmark = pytest.mark.timeout(4 * SECONDS)
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
MODEL = CACHE / "loquent" / "models" / "smollm2.gguf"
FILLING = [client for client in SDKS if "structured" not in client.lacks]


@pytest.fixture(scope="module")
def trained():
    if not MODEL.exists():
        pytest.skip(f"{MODEL} is not there: tools/models smollm2")
    # A window that a small model fills soon, if it finds no end.
    server = E2E.Server("--model", str(MODEL), "--context", "2048").wait()
    yield server
    server.stop()


def run(client, mode, prompt, place, url, processes):
    processes.append(client.start(mode, prompt, place, url))
    return whole(processes[-1])


@pytest.mark.parametrize("client", SDKS, ids=str)
def test_an_answer_is_streamed(client, trained, processes, tmp_path):
    assert run(client, "stream", "Name three colours.", tmp_path, trained.url, processes).strip()


@pytest.mark.parametrize("client", FILLING, ids=str)
def test_an_object_has_what_its_schema_has(client, trained, processes, tmp_path):
    """And nothing else: a model left to itself goes on to invent members."""
    printed = run(client, "schema", "The capital of France is Paris. Name its city.", tmp_path, trained.url, processes)
    assert json.loads(printed.strip().splitlines()[-1]).keys() == {"city"}
