"""Another server in the engine's place, through openai-python: what it says passes."""

import concurrent.futures
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import httpx
import openai
import pytest

from conftest import BINARY, PATIENCE_S, REPOSITORY

QUESTION = [{"role": "user", "content": "What is token streaming?"}]
TOOL = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}


def sdk(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def front(server, start):
    """A server that passes everything on to the shared one."""
    return start("--upstream", server.url)


def text_of(stream):
    return "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)


@pytest.mark.parametrize("interval", [1, 3, 8, "auto"])
def test_the_same_text_comes_at_every_interval(client, front, interval):
    ask = {"model": "x", "messages": QUESTION, "temperature": 0, "max_tokens": 60}
    direct = client.chat.completions.create(**ask).choices[0].message.content
    chunks = list(
        sdk(front).chat.completions.create(
            **ask, stream=True, stream_options={"include_usage": True}, extra_body={"stream_interval": interval}
        )
    )
    assert text_of(chunks) == direct
    assert chunks[-1].usage.completion_tokens > 0 and chunks[0].model == "loquent-tiny"


def test_whole_answers_models_and_errors_pass(client, front):
    ask = {"model": "x", "messages": QUESTION, "temperature": 0, "max_tokens": 20}
    whole = sdk(front).chat.completions.create(**ask)
    assert whole.choices[0].message.content == client.chat.completions.create(**ask).choices[0].message.content
    assert [model.id for model in sdk(front).models.list()] == ["loquent-tiny"]
    for stream in (True, False):
        with pytest.raises(openai.BadRequestError) as error:
            sdk(front).chat.completions.create(model="x", messages=[], stream=stream)
        assert error.value.param == "messages"


def test_tools_and_logprobs_pass(start):
    behind = start("--simulate", "inf")
    front = start("--upstream", behind.url, "--stream-interval", "4")
    script = '<tool_call>{"name": "time", "arguments": {"zone": "Zürich"}}</tool_call>'
    chunks = list(
        sdk(front).chat.completions.create(
            model="x",
            messages=[{"role": "user", "content": "say=" + script}],
            tools=[TOOL],
            stream=True,
            logprobs=True,
            stream_options={"include_usage": True},
        )
    )
    choices = [choice for chunk in chunks for choice in chunk.choices]
    calls = [call for choice in choices for call in choice.delta.tool_calls or []]
    assert calls[0].function.name == "time" and calls[0].id
    assert json.loads("".join(call.function.arguments for call in calls)) == {"zone": "Zürich"}
    assert choices[-1].finish_reason == "tool_calls"
    entries = sum(len(choice.logprobs.content) for choice in choices if choice.logprobs)
    # The end token counts, and has neither text nor an entry.
    assert entries == chunks[-1].usage.completion_tokens - 1


def test_several_completions_and_text_prompts_pass(front, client):
    ask = {"model": "x", "prompt": ["One", "Two"], "max_tokens": 5, "temperature": 0, "n": 2}
    direct = [choice.text for choice in client.completions.create(**ask).choices]
    joined = [""] * 4
    for chunk in sdk(front).completions.create(**ask, stream=True):
        for choice in chunk.choices:
            joined[choice.index] += choice.text
    assert joined == direct


def test_an_upstream_that_dies_ends_the_stream_with_an_error(start):
    behind = start("--simulate", "50")
    front = start("--upstream", behind.url)
    stream = sdk(front).chat.completions.create(
        model="x", messages=[{"role": "user", "content": "tokens=500"}], stream=True
    )
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        for seen, _ in enumerate(stream):
            if seen == 5:
                behind.process.kill()
    # It asks the upstream once a second at most.
    deadline = time.monotonic() + PATIENCE_S
    while httpx.get(f"{front.url}/ready").status_code != 503:
        assert time.monotonic() < deadline, "an upstream that is gone counts as ready"
        time.sleep(0.1)
    with pytest.raises(openai.InternalServerError) as error:
        sdk(front).chat.completions.create(model="x", messages=QUESTION)
    assert error.value.status_code == 502


def test_the_operators_key_is_for_those_with_a_key(start):
    behind = start("--simulate", "50", "--api-key", "operators")
    command = [BINARY, "serve", "--port", "0", "--upstream", behind.url, "--upstream-api-key", "operators"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert refused.returncode != 0 and "--open" in refused.stderr
    keys = ("--upstream", behind.url, "--upstream-api-key", "operators", "--api-key", "own")
    front = start(*keys)
    ask = {"model": "x", "messages": [{"role": "user", "content": "tokens=5"}]}
    for key, status in (("own", 200), ("operators", 401), ("none", 401)):
        headers = {"authorization": f"Bearer {key}"}
        for path, body in (("/v1/chat/completions", ask), ("/tokenize", {"prompt": "x"}), ("/no/such/route", {})):
            answered = httpx.post(f"{front.url}{path}", json=body, headers=headers).status_code
            assert answered == (404 if path.startswith("/no") and status == 200 else status), (key, path)


def llama_server():
    """The path of a llama-server: by LLAMA_SERVER, built by bench/peers, or installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = cache / "loquent/peers/bin/llama-server"
    path = os.environ.get("LLAMA_SERVER") or (str(built) if built.exists() else shutil.which("llama-server"))
    if not path:
        pytest.skip("no llama-server: set LLAMA_SERVER to its path")
    return path


@pytest.fixture
def llama():
    """A llama-server with the bundled model: its base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = min((REPOSITORY / "models").glob("*.gguf"))
    command = [llama_server(), "-m", model, "--port", str(port), "-np", "4", "-c", "4096", "-t", "1", "--jinja"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.1)
        else:
            pytest.fail("llama-server did not start")
        yield url
    finally:
        process.kill()
        process.wait()


def test_a_real_llama_server_loses_nothing(llama, start):
    front = start("--upstream", llama)
    direct = openai.OpenAI(base_url=f"{llama}/v1", api_key="none", max_retries=3)
    ask = {"model": "x", "messages": QUESTION, "temperature": 0, "max_tokens": 50}
    expected = direct.chat.completions.create(**ask).choices[0].message.content
    client = sdk(front)

    def one(_):
        return text_of(client.chat.completions.create(**ask, stream=True))

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one, range(40)))
    assert len(answers) == 40 and all(answers)
    assert answers.count(expected) >= 30, "batched, a few may differ by the kernels' rounding"


def test_an_address_where_nobody_answers_is_named_at_the_start(start):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    front = start("--upstream", f"http://127.0.0.1:{port}", wait=False)
    deadline = time.monotonic() + PATIENCE_S
    while not any("no server answers" in line and str(port) in line for line in front.log):
        assert time.monotonic() < deadline, front.log
        time.sleep(0.05)
