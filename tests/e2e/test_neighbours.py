"""Commands of other servers' users: llama-server's flags, names of models, and models that are not for chats."""

import os
import shutil
import struct
import subprocess

import httpx
import pytest

from conftest import BINARY, REPOSITORY

QUESTION = [{"role": "user", "content": "What is token streaming?"}]
BUNDLED = REPOSITORY / "models" / "loquent-tiny.gguf"


@pytest.fixture
def file(tmp_path):
    return str(shutil.copy(BUNDLED, tmp_path / "my-model.Q8_0.gguf"))


def names(server):
    """What each route calls the models."""
    cards = [card["id"] for card in httpx.get(f"{server.url}/v1/models").json()["data"]]
    tags = [tag["name"] for tag in httpx.get(f"{server.url}/api/tags").json()["models"]]
    assert cards == tags
    assert httpx.get(f"{server.url}/props").json()["model_alias"] == cards[0]
    return cards


def answer(server, path="/v1/chat/completions", **more):
    body = {"messages": QUESTION, "max_tokens": 4, **more}
    response = httpx.post(f"{server.url}{path}", json=body)
    assert response.status_code == 200, response.text
    return response


def test_flags_of_llama_server_start_a_model(start, file):
    server = start("-m", file, "-ngl", "0", "-np", "2", "--ctx-size", "512")
    assert names(server) == ["my-model.Q8_0"] == [answer(server).json()["model"]]
    card = httpx.get(f"{server.url}/v1/models").json()["data"][0]
    assert card["max_model_len"] == 512
    renamed = start("-m", file, "-a", "other", "--n-gpu-layers", "0", "--parallel", "1", "-c", "256")
    assert names(renamed) == ["other"]
    assert names(start("-m", file, "--alias", "third")) == ["third"]


def test_a_model_has_the_name_of_its_file_however_it_is_served(start, file, tmp_path):
    assert names(start("--models-dir", str(tmp_path))) == ["my-model.Q8_0"]
    assert names(start("-m", file, "-m", "tiny")) == ["my-model.Q8_0", "loquent-tiny"]
    assert names(start("-m", file, "--model-idle-s", "60")) == ["my-model.Q8_0"]


def test_a_model_without_a_chat_template_says_so(start, tmp_path, server):
    key = b"tokenizer.chat_template"
    content = BUNDLED.read_bytes()
    assert content.count(key) == 1
    base = tmp_path / "base.gguf"
    base.write_bytes(content.replace(key, key[:-1] + b"X"))
    bare = start("-m", str(base))
    assert any("no chat template" in line for line in bare.log), bare.log
    for stream in [True, False]:
        assert "base model" in answer(bare, stream=stream).headers["x-loquent-warning"]
    assert "x-loquent-warning" not in answer(server).headers


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind programs to processors")
def test_more_threads_than_processors_are_lessened_with_a_warning(start):
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        server = start("--threads", "64")
    finally:
        os.sched_setaffinity(0, allowed)
    assert any("64 threads" in line and "computing with 1" in line for line in server.log), server.log
    assert answer(server).json()["usage"]["completion_tokens"] == 4


def serve_refuses(path):
    """What `serve` says of a file that it refuses."""
    done = subprocess.run([BINARY, "serve", "--port", "0", "-m", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and str(path) in done.stderr, done.stderr
    return done.stderr


def test_parts_of_a_model_are_refused_with_advice(file, tmp_path):
    subprocess.run([BINARY, "split", file, "--stages", "2"], check=True, capture_output=True, timeout=60)
    [entry] = tmp_path.glob("*-entry.gguf")
    assert "--stages" in serve_refuses(entry)
    for stage in tmp_path.glob("*-stage-?-of-2.gguf"):
        assert "`loquent stage`" in serve_refuses(stage)
    projector = tmp_path / "mmproj.gguf"
    projector.write_bytes(gguf_of("clip"))
    assert "projector" in serve_refuses(projector)


def gguf_of(architecture):
    """A GGUF file that says its architecture and nothing else."""
    text = 8  # the type of a string
    key, value = b"general.architecture", architecture.encode()
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", text, len(value)) + value
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry
