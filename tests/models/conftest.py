"""Trained models for the tests of this folder, and servers that compute them."""

import importlib.util
import os
import pathlib
import platform

import pytest

from conftest import Server

from .kernels import EXACT
from .report import Report

HERE = pathlib.Path(__file__).parent
FOLDER = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "loquent/models"


def model(name):
    path = FOLDER / f"{name}.gguf"
    if not path.exists():
        pytest.skip(f"the trained model {name} is not in the cache: tools/models {name}")
    return path


@pytest.fixture(scope="session")
def smollm2():
    """The file of SmolLM2-135M-Instruct, Q4_1."""
    return model("smollm2")


@pytest.fixture(scope="session")
def gemma():
    """The file of Gemma 3 270M, Q4_K_M: 5 of its 6 layers see the last 512 tokens only."""
    return model("gemma3-270m")


@pytest.fixture(scope="session")
def llama_cpp():
    """The class that runs llama.cpp's own server."""
    if not importlib.util.find_spec("xllamacpp"):
        pytest.skip("llama.cpp is not installed: pip install -r tests/models/requirements.txt")
    from .llama_cpp import LlamaCpp

    return LlamaCpp


@pytest.fixture(scope="session")
def text():
    """A text of about 2,200 tokens."""
    return (HERE / "text.txt").read_text()


@pytest.fixture(scope="module")
def serve():
    """Starts servers that the tests of a file share: of a model, with further arguments."""
    running = []

    def start(path, *args):
        running.append(Server("--model", str(path), "--no-quic", "--no-profile", *args))
        return running[-1].wait()

    yield start
    for one in running:
        one.stop()


@pytest.fixture(scope="session")
def exact():
    """The flags of kernels whose results depend on nothing else in the batch or the cache."""
    if EXACT is None:
        pytest.skip(f"Loquent has no kernels for this processor ({platform.machine()}), and others round by the batch")
    return ("--kernels", EXACT)


@pytest.fixture(scope="session")
def report():
    """What the run finds out about the models, which it writes to target/models.md."""
    found = Report()
    yield found
    found.write(HERE.parents[1] / "target/models.md")
