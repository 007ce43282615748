"""Models that clients have the server download: LM Studio's routes and Ollama's, from a hub on this machine."""

import hashlib
import json
import shutil
import threading
import time

import httpx
import ollama
import pytest

from conftest import PATIENCE_S, REPOSITORY
from hub_stand_in import COMMIT, REPO, entry

DOWNLOAD = "/api/v1/models/download"
MODEL = (REPOSITORY / "models" / "loquent-tiny.gguf").read_bytes()
KEYS = """
[[key]]
name = "ops"
key = "sk-ops"
admin = true

[[key]]
name = "alice"
key = "sk-alice"
"""


@pytest.fixture
def real_hub(hub):
    """The hub with the bundled model, whose second half comes once `more` is set."""
    sha256 = hashlib.sha256(MODEL).hexdigest()
    hub.listing = lambda handler: handler.json({"sha": COMMIT, "siblings": [entry("model.gguf", len(MODEL), sha256)]})
    hub.more, hub.ranges = threading.Event(), []

    def content(handler):
        begins = int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        hub.ranges.append(begins)
        span = {"content_range": f"bytes {begins}-{len(MODEL) - 1}/{len(MODEL)}"} if begins else {}
        handler.head(206 if begins else 200, content_length=len(MODEL) - begins, **span)
        half = max(begins, len(MODEL) // 2)
        handler.wfile.write(MODEL[begins:half])
        handler.wfile.flush()
        hub.more.wait(PATIENCE_S)
        handler.wfile.write(MODEL[half:])

    hub.content = content
    yield hub
    hub.more.set()


@pytest.fixture
def serving(start, real_hub, tmp_path):
    """Starts a server whose hub is `real_hub`, with an empty cache."""
    places = {"HF_ENDPOINT": real_hub.url, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "home")}
    return lambda *args, **more: start(*args, env=places, **more)


def eventually(found):
    """What `found` returns, once that is something."""
    deadline = time.monotonic() + PATIENCE_S
    while not (it := found()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return it


def ask(url, model):
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["model"]


def status(url, job):
    return httpx.get(f"{url}{DOWNLOAD}/status/{job}").raise_for_status().json()


def ended(url, job):
    """The status of a download once it has ended."""
    return eventually(lambda: (now := status(url, job))["status"] != "downloading" and now)


def test_a_downloaded_model_is_served_without_a_restart(serving, real_hub):
    url = serving().url
    assert ask(url, "gpt-4o") == "loquent-tiny"
    job = httpx.post(f"{url}{DOWNLOAD}", json={"model": REPO}).raise_for_status().json()
    assert (job["status"], job["requested"]) == ("downloading", REPO)
    half = eventually(lambda: (now := status(url, job["job_id"]))["downloaded_bytes"] and now)
    assert half["downloaded_bytes"] == len(MODEL) // 2 and half["total_size_bytes"] == len(MODEL)
    assert half["bytes_per_second"] > 0 and half["estimated_completion"].endswith("Z")
    # The same again is the same download; another has to wait.
    assert httpx.post(f"{url}{DOWNLOAD}", json={"model": REPO}).json()["job_id"] == job["job_id"]
    other = httpx.post(f"{url}{DOWNLOAD}", json={"model": "some/other-GGUF"})
    assert other.status_code == 429 and REPO in other.json()["error"]["message"] and "retry-after" in other.headers
    real_hub.more.set()
    done = ended(url, job["job_id"])
    assert (done["status"], done["model"]) == ("completed", "model"), done
    names = {model["id"]: model["status"]["value"] for model in httpx.get(f"{url}/v1/models").json()["data"]}
    assert names == {"loquent-tiny": "loaded", "model": "unloaded"}
    # By its name, by the name that was asked for, and unknown names as before.
    assert [ask(url, name) for name in ("model", REPO, "gpt-4o")] == ["model", "model", "loquent-tiny"]
    assert httpx.post(f"{url}/v1/models/unload", json={"model": "model"}).status_code == 200
    again = httpx.post(f"{url}{DOWNLOAD}", json={"model": REPO}).json()
    assert eventually(lambda: status(url, again["job_id"])["status"] == "completed")
    assert len(httpx.get(f"{url}/v1/models").json()["data"]) == 2
    listed = httpx.get(f"{url}{DOWNLOAD}").json()["data"]
    assert [one["job_id"] for one in listed] == [again["job_id"], job["job_id"]]


def test_the_next_server_serves_what_was_downloaded(serving, real_hub, tmp_path):
    real_hub.more.set()
    first = serving()
    job = httpx.post(f"{first.url}{DOWNLOAD}", json={"model": REPO}).json()["job_id"]
    eventually(lambda: status(first.url, job)["status"] == "completed")
    first.process.terminate()
    assert first.process.wait(PATIENCE_S) == 0
    url = serving().url
    names = {model["id"]: model["status"]["value"] for model in httpx.get(f"{url}/v1/models").json()["data"]}
    assert names == {"loquent-tiny": "loaded", "model": "unloaded"}
    assert [ask(url, name) for name in ("model", REPO, "gpt-4o")] == ["model", "model", "loquent-tiny"]
    # Not what has gone since, and nothing that a line of the file makes of a path.
    shutil.rmtree(next((tmp_path / "cache").glob("models--*")))
    with (tmp_path / "cache" / "loquent-downloads.txt").open("a") as file:
        file.write(f"{REPOSITORY / 'models' / 'loquent-tiny.gguf'}\n../../etc/passwd\n")
    assert [model["id"] for model in httpx.get(f"{serving().url}/v1/models").json()["data"]] == ["loquent-tiny"]


def test_with_exact_names_a_downloaded_model_has_two(serving, real_hub):
    url = serving("--strict-model").url
    real_hub.more.set()
    job = httpx.post(f"{url}{DOWNLOAD}", json={"model": REPO}).json()["job_id"]
    eventually(lambda: status(url, job)["status"] == "completed")
    assert [ask(url, name) for name in ("model", REPO, "loquent-tiny")] == ["model", "model", "loquent-tiny"]
    unknown = httpx.post(f"{url}/v1/completions", json={"model": "gpt-4o", "prompt": "x"})
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"


def test_a_stopped_download_goes_on_where_it_was(serving, real_hub):
    url = serving().url
    job = httpx.post(f"{url}{DOWNLOAD}", json={"model": REPO, "quantization": "model.gguf"}).json()["job_id"]
    eventually(lambda: status(url, job)["downloaded_bytes"])
    assert httpx.delete(f"{url}{DOWNLOAD}/status/{job}").status_code == 200
    real_hub.more.set()
    assert ended(url, job)["status"] == "paused"
    again = httpx.post(f"{url}{DOWNLOAD}", json={"model": REPO}).json()["job_id"]
    assert ended(url, again)["status"] == "completed"
    assert real_hub.ranges[0] == 0 and real_hub.ranges[-1] > 0


def test_ollamas_clients_pull(serving, real_hub):
    llama = ollama.Client(host=serving().url)
    real_hub.more.set()
    parts = list(llama.pull(f"hf.co/{REPO}", stream=True))
    assert parts[-1].status == "success"
    assert llama.chat(model=f"hf.co/{REPO}", messages=[{"role": "user", "content": "Hello"}]).message.content
    real_hub.listing = lambda handler: handler.head(404, content_length=0)
    with pytest.raises(ollama.ResponseError, match="no model"):
        llama.pull("some/other")


def test_what_cannot_be_downloaded_is_told_and_nothing_is_served(serving, real_hub, tmp_path):
    url = serving().url
    (tmp_path / "secret.gguf").write_bytes(MODEL)
    real_hub.listing = lambda handler: handler.head(404, content_length=0)
    for name in ("no/such-GGUF", str(tmp_path / "secret.gguf"), "../secret.gguf", "nonsense", "a/b:../c.gguf"):
        job = httpx.post(f"{url}{DOWNLOAD}", json={"model": name}).raise_for_status().json()["job_id"]
        end = ended(url, job)
        assert end["status"] == "failed" and end["error"], end
    # A file that is no model.
    bad = b"GGUF" + bytes(1000)
    described = entry("model.gguf", len(bad), hashlib.sha256(bad).hexdigest())
    real_hub.listing = lambda handler: handler.json({"sha": COMMIT, "siblings": [described]})
    real_hub.content = lambda handler: handler.whole(bad)
    job = httpx.post(f"{url}{DOWNLOAD}", json={"model": REPO}).json()["job_id"]
    assert ended(url, job)["status"] == "failed"
    assert len(httpx.get(f"{url}/v1/models").json()["data"]) == 1
    for body in ({}, {"model": 7}, {"model": ""}, {"model": "x" * 9999}):
        assert httpx.post(f"{url}{DOWNLOAD}", json=body).status_code == 400, body
    assert httpx.get(f"{url}{DOWNLOAD}/status/job_0").status_code == 404


def test_administrators_alone_download(serving, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    url = serving("--api-key-file", str(keys)).url
    alice, ops = ({"Authorization": f"Bearer sk-{name}"} for name in ("alice", "ops"))
    one = f"{DOWNLOAD}/status/x"
    for method, path in (("POST", DOWNLOAD), ("GET", DOWNLOAD), ("GET", one), ("DELETE", one)):
        assert httpx.request(method, f"{url}{path}", json={"model": REPO}, headers=alice).status_code == 403
        assert httpx.request(method, f"{url}{path}", json={"model": REPO}).status_code == 401
    pull = httpx.post(f"{url}/api/pull", json={"model": REPO}, headers=alice)
    assert pull.status_code == 403, pull.text
    assert httpx.get(f"{url}{DOWNLOAD}", headers=ops).json() == {"data": []}


def test_a_download_at_the_start_is_told_to_programs(start_json, real_hub, tmp_path):
    real_hub.more.set()
    places = {"HF_ENDPOINT": real_hub.url, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "home")}
    said = [json.loads(line).get("message", "") for line in start_json("--hf", REPO, env=places).log]
    size = f"{len(MODEL) / 2**20:.2f} MiB"
    assert f"Downloading model.gguf: {size}" in said and "Downloaded model.gguf and verified it." in said, said


def test_a_server_that_cannot_grow_says_so(serving):
    url = serving("--simulate", "inf").url
    refused = httpx.post(f"{url}{DOWNLOAD}", json={"model": REPO})
    assert refused.status_code == 404 and "simulated" in refused.json()["error"]["message"]


def test_a_server_ends_although_a_download_waits(serving):
    server = serving()
    job = httpx.post(f"{server.url}{DOWNLOAD}", json={"model": REPO}).json()["job_id"]
    eventually(lambda: status(server.url, job)["downloaded_bytes"])
    server.process.terminate()
    assert server.process.wait(timeout=PATIENCE_S) == 0
