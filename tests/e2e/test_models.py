"""Several models in one server: loaded when they are asked for, unloaded when their memory is needed."""

import json
import os
import random
import re
import shutil
import subprocess
import threading
import time
import uuid
from pathlib import Path

import httpx
import pytest

from conftest import BINARY, REPOSITORY

# How long the mixed load lasts; `make soak-models` says 600.
SOAK_S = float(os.environ.get("LOQUENT_SOAK_S", "8"))
SHAPE = ("tiny", "--layers", "2", "--vocab-size", "2000", "--quant", "Q8_0")
PROMPTS = ["What is token streaming?", "Hello", "How do I resume an answer?"]
# Logits of random weights are so alike that rounding would decide between them, and that of a batch or of a prompt's
# rest is another: so one answer at a time in each model, and each has its whole prompt computed (`cache_salt`).
EXACT = ("--context", "1024", "--max-batch-size", "1")
TWO = ("--max-loaded-models", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the bundled model and two of random weights, which say something else."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copy(REPOSITORY / "models" / "loquent-tiny.gguf", folder / "small.gguf")
    for seed, name in enumerate(["noise", "other=noise"], 1):
        file = folder / f"{name}.gguf"
        shape_model = Path(BINARY).with_name("shape-model")
        subprocess.run([shape_model, *SHAPE, "--seed", str(seed), "--out", file], check=True)
    return folder


@pytest.fixture(scope="module")
def flags(folder):
    """Three models; the path of the third has an equals sign."""
    named = {"small": "small", "noise": "noise", "odd": "other=noise"}
    return [part for name, file in named.items() for part in ("-m", f"{name}={folder}/{file}.gguf")]


def body(model, prompt, tokens=40, **more):
    messages = [{"role": "user", "content": prompt}]
    exact = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True, "cache_salt": uuid.uuid4().hex}
    return {"model": model, "messages": messages, **exact, **more}


def ask(http, model, prompt, tokens=40):
    response = http.post("/v1/chat/completions", json=body(model, prompt, tokens))
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["model"] == model
    return answer["choices"][0]["message"]["content"]


def stream(http, model, prompt, tokens=40, **more):
    """The text of a streamed answer and the comments before it."""
    text, comments, done = "", [], False
    with http.stream("POST", "/v1/chat/completions", json=body(model, prompt, tokens, stream=True, **more)) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith(":"):
                comments.append(line)
            done = done or line == "data: [DONE]"
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    assert done, text
    return text, comments


def states(http):
    return {model["id"]: model["status"]["value"] for model in http.get("/v1/models").json()["data"]}


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def test_a_request_names_its_model(start, flags):
    with httpx.Client(base_url=start(*flags, *EXACT).url, timeout=60) as http:
        assert set(states(http).values()) == {"unloaded"}
        texts = {model: ask(http, model, "Hello") for model in states(http)}
        assert len(set(texts.values())) == 3, "each has an answer of its own"
        assert set(states(http).values()) == {"loaded"}
        unknown = http.post("/v1/chat/completions", json=body("large", "Hello"))
        assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"
        assert all(f"'{model}'" in unknown.json()["error"]["message"] for model in states(http))
        assert ask(http, "odd", "Hello") == texts["odd"]
        unnamed = http.post("/v1/chat/completions", json={**body("", "Hello"), "model": None}).json()
        assert unnamed["model"] == "small"
        tokens = http.post("/tokenize", json={"model": "noise", "prompt": "Hello"}).json()
        again = http.post("/detokenize", json={"model": "noise", "tokens": tokens["tokens"]}).json()
        assert again["prompt"] == "Hello"


def test_the_least_recently_used_makes_room(start, flags):
    with httpx.Client(base_url=start(*flags, *EXACT, *TWO).url, timeout=60) as http:
        for model in ["small", "noise", "small", "odd"]:
            ask(http, model, "Hello")
        assert states(http) == {"small": "loaded", "noise": "unloaded", "odd": "loaded"}
        metrics = http.get("/metrics").text
        assert 'loquent_model_unloads_total{model="noise"} 1' in metrics
        assert 'loquent_model_loaded{model="odd"} 1' in metrics
        assert 'loquent_model_requests_total{model="small"} 2' in metrics


def test_a_stream_that_waits_for_its_model_is_told_so(start, flags):
    room = ("--context", "16384", "--max-batch-size", "1", "--max-loaded-models", "1")
    with httpx.Client(base_url=start(*flags, *room).url, timeout=120) as http:
        expected = ask(http, "noise", "Hello")
        told, waited = threading.Event(), {}

        def wait(kind, more):
            waited[kind] = ""
            asked = body("noise", "Hello", stream=True, **more)
            with (
                httpx.Client(base_url=http.base_url, timeout=120) as other,
                other.stream("POST", "/v1/chat/completions", json=asked) as response,
            ):
                for line in response.iter_lines():
                    if line.startswith(":"):
                        waited[kind] += line
                    if line.startswith("data: {"):
                        chunk = json.loads(line[6:])
                        if chunk.get("prompt_progress", {}).get("total") == 0:
                            told.set()
                        waited[kind] += "".join(it["delta"].get("content") or "" for it in chunk["choices"])

        threads = [
            threading.Thread(target=wait, args=("silent", {})),
            threading.Thread(target=wait, args=("asked", {"return_progress": True})),
        ]
        # Far longer than it takes until the one that asked is told; then its reader leaves.
        long = body("small", "Hello", 15000, stream=True)
        with http.stream("POST", "/v1/chat/completions", json=long) as first:
            lines = first.iter_lines()
            next(line for line in lines if line.startswith("data: "))
            for thread in threads:
                thread.start()
            assert told.wait(60)
            assert states(httpx.Client(base_url=http.base_url)) == {
                "small": "loaded", "noise": "unloaded", "odd": "unloaded"
            }
        for thread in threads:
            thread.join(120)
        assert waited == {"silent": expected, "asked": expected}


def test_an_answer_is_resumed_after_its_model_has_gone(start, flags):
    with httpx.Client(base_url=start(*flags, *EXACT, "--max-loaded-models", "1").url, timeout=60) as http:
        whole, _ = stream(http, "small", "Hello", 200)
        asked = body("small", "Hello", 200, stream=True, resumable=True)
        seen, last = "", "0"
        with http.stream("POST", "/v1/chat/completions", json=asked) as response:
            stream_id = response.headers["x-loquent-stream-id"]
            token = response.headers["x-loquent-stream-token"]
            for line in response.iter_lines():
                if line.startswith("id: "):
                    last = line[4:]
                if line.startswith("data: {"):
                    seen += "".join(it["delta"].get("content") or "" for it in json.loads(line[6:])["choices"])
                if len(seen) > 20 and line == "":
                    break
        ask(http, "noise", "Hello")
        assert states(http)["small"] == "unloaded"
        headers = {"last-event-id": last, "x-loquent-stream-token": token}
        with http.stream("GET", f"/v1/streams/{stream_id}", headers=headers) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    seen += "".join(it["delta"].get("content") or "" for it in json.loads(line[6:])["choices"])
        assert seen == whole
        assert states(http)["small"] == "unloaded", "reading does not load it"


def test_models_are_loaded_and_unloaded_by_request(start, flags):
    with httpx.Client(base_url=start(*flags, *EXACT).url, timeout=60) as http:
        assert http.post("/models/load", json={"model": "noise"}).json() == {"success": True}
        until(lambda: states(http)["noise"] == "loaded")
        assert http.post("/v1/models/unload", json={"model": "noise"}).json() == {"success": True}
        until(lambda: states(http)["noise"] == "unloaded")
        assert http.post("/v1/models/unload", json={"model": "noise"}).status_code == 400
        assert http.post("/v1/models/load", json={"model": "large"}).status_code == 404
        loaded = http.post("/api/v1/models/load", json={"model": "odd"}).json()
        assert loaded["status"] == "loaded" and loaded["instance_id"] == "odd" and loaded["type"] == "llm"
        assert http.post("/api/v1/models/unload", json={"instance_id": "odd"}).json() == {"instance_id": "odd"}
        until(lambda: states(http)["odd"] == "unloaded")


def test_ollamas_clients_see_which_models_are_loaded_and_let_them_go(start, flags):
    with httpx.Client(base_url=start(*flags, *EXACT).url, timeout=60) as http:
        tags = {model["name"]: model["size"] for model in http.get("/api/tags").json()["models"]}
        assert set(tags) == {"small", "noise", "odd"} and min(tags.values()) > 1000
        assert http.get("/api/ps").json()["models"] == []
        assert http.post("/api/generate", json={"model": "noise:latest"}).json()["done_reason"] == "load"
        [running] = http.get("/api/ps").json()["models"]
        assert running["name"] == "noise" and running["size"] > tags["noise"]
        assert http.post("/api/show", json={"model": "odd"}).json()["capabilities"]
        chat = {"model": "noise", "messages": [{"role": "user", "content": "Hello"}], "stream": False, "keep_alive": 0}
        assert http.post("/api/chat", json={**chat, "options": {"num_predict": 8}}).json()["done"]
        until(lambda: http.get("/api/ps").json()["models"] == [])


def test_the_only_model_goes_when_it_is_idle(start, folder):
    with httpx.Client(base_url=start("-m", f"mine={folder}/noise.gguf", "--model-idle-s", "1").url, timeout=60) as http:
        first = ask(http, "mine", "Hello")
        until(lambda: states(http) == {"mine": "unloaded"})
        assert ask(http, "mine", "Hello") == first


def test_a_folder_and_a_file_of_settings_name_models(start, folder, tmp_path):
    with httpx.Client(base_url=start("--models-dir", str(folder)).url, timeout=60) as http:
        assert list(states(http)) == ["noise", "other=noise", "small"]
    settings = tmp_path / "loquent.toml"
    settings.write_text(f'[models]\nfirst = "{folder}/noise.gguf"\nsecond = "{folder}/other=noise.gguf"\n')
    with httpx.Client(base_url=start("--config", str(settings)).url, timeout=60) as http:
        assert list(states(http)) == ["first", "second"]
        assert ask(http, "second", "Hello") != ask(http, "first", "Hello")


def test_a_model_that_cannot_be_loaded_fails_its_requests_only(start, flags, folder, tmp_path):
    broken = tmp_path / "broken.gguf"
    shutil.copy(folder / "noise.gguf", broken)
    server = start(*flags, "-m", f"broken={broken}", *EXACT)
    broken.unlink()
    with httpx.Client(base_url=server.url, timeout=60) as http:
        refused = http.post("/v1/chat/completions", json=body("broken", "Hello"))
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        assert "broken" in refused.json()["error"]["message"] and str(tmp_path) not in refused.text
        # Nobody tries again at once, and the others answer.
        assert http.post("/v1/chat/completions", json=body("broken", "Hello")).status_code == 503
        assert 'loquent_model_load_failures_total{model="broken"} 1' in http.get("/metrics").text
        assert ask(http, "noise", "Hello")


def resident_mib(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


class Load:
    """Clients that ask three models at once, of which memory holds two."""

    def __init__(self, server, expected, seconds):
        self.server, self.expected = server, expected
        self.end = time.monotonic() + seconds
        self.failures, self.answers, self.memory, self.loaded = [], 0, [], []
        self.lock = threading.Lock()

    def client(self, seed):
        chance = random.Random(seed)
        with httpx.Client(base_url=self.server.url, timeout=120) as http:
            while time.monotonic() < self.end and not self.failures:
                (model, prompt), expected = chance.choice(list(self.expected.items()))
                try:
                    if chance.random() < 0.5:
                        text, _ = stream(http, model, prompt)
                    else:
                        text = ask(http, model, prompt)
                    assert text == expected, f"{model} said {text!r} and not {expected!r}"
                except Exception as error:  # whatever it is, it counts
                    self.failures.append(f"{model}: {error!r}")
                with self.lock:
                    self.answers += 1
                time.sleep(chance.random() * 0.3)

    def operator(self):
        """Watches, and unloads a model now and then."""
        chance = random.Random(0)
        with httpx.Client(base_url=self.server.url, timeout=60) as http:
            while time.monotonic() < self.end and not self.failures:
                self.loaded.append(sum(state == "loaded" for state in states(http).values()))
                self.memory.append(resident_mib(self.server.process))
                if chance.random() < 0.1:
                    http.post("/v1/models/unload", json={"model": chance.choice(["small", "noise", "odd"])})
                time.sleep(0.1)

    def run(self, clients):
        threads = [threading.Thread(target=self.client, args=(seed,)) for seed in range(clients)]
        threads.append(threading.Thread(target=self.operator))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@pytest.mark.timeout(SOAK_S + 120)
def test_three_models_under_mixed_load_where_memory_holds_two(start, flags):
    server = start(*flags, *EXACT, *TWO)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        expected = {(model, prompt): ask(http, model, prompt) for model in states(http) for prompt in PROMPTS}
        load = Load(server, expected, SOAK_S)
        load.run(clients=6)
        assert not load.failures, load.failures
        assert max(load.loaded) <= 2
        metrics = http.get("/metrics").text
        unloads = sum(float(it) for it in re.findall(r"loquent_model_unloads_total\{.*\} (\d+)", metrics))
    half = len(load.memory) // 2
    first, second = max(load.memory[:half]), max(load.memory[half:])
    print(f"{load.answers} answers, {unloads:.0f} unloads, at most {second:.0f} MiB (first half {first:.0f} MiB)")
    assert load.answers > 10 and unloads > 2
    assert second < first + 32, "memory grows"
