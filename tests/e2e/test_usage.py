"""Usage by key: counted once, kept over restarts and replicas, and budgets that refuse what is beyond them."""

import csv
import io
import signal
import time

import httpx
import openai
import pytest

KEYS = """
[[key]]
name = "ann"
key = "sk-ann"
tokens_per_day = {budget}

[[key]]
name = "bob"
key = "sk-bob"
admin = true
"""


@pytest.fixture
def key_file(tmp_path):
    def write(budget=1_000_000):
        file = tmp_path / "keys"
        file.write_text(KEYS.format(budget=budget))
        file.chmod(0o600)
        return ("--api-key-file", str(file))

    return write


def ask(server, key="sk-ann", tokens=8, **more):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
    question = [{"role": "user", "content": "What is token streaming?"}]
    return client.chat.completions.create(
        model="any", messages=question, max_tokens=tokens, temperature=0, **more
    ).usage


def usage(server, secret="sk-ann", **query):
    headers = {"authorization": f"Bearer {secret}"}
    return httpx.get(f"{server.url}/v1/usage", params=query, headers=headers)


def usage_of(server, requests, secret="sk-ann", **query):
    """The usage once it has this number of requests: it is written every two seconds."""
    until = time.monotonic() + 30
    while True:
        found = usage(server, secret, **query).raise_for_status().json()
        if found["total"]["requests"] >= requests or time.monotonic() > until:
            assert found["total"]["requests"] == requests
            return found
        time.sleep(0.05)


def test_usage_is_what_the_answers_said_and_survives_restarts(start, key_file, tmp_path):
    flags = (*key_file(), "--store", str(tmp_path / "store"))
    prompt = completion = cached = 0
    # An end by SIGTERM writes the last counts; one by SIGKILL loses at most those of two seconds.
    for end in (signal.SIGTERM, signal.SIGKILL):
        server = start(*flags)
        for stream in (False, True):
            told = ask(server) if not stream else streamed(server)
            prompt += told.prompt_tokens
            completion += told.completion_tokens
            cached += told.prompt_tokens_details.cached_tokens
        if end == signal.SIGKILL:
            usage_of(server, 4)
        server.process.send_signal(end)
        server.process.wait(20)
    found = usage_of(start(*flags), 4)
    assert found["total"] == {
        "requests": 4,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    assert {day["key"] for day in found["data"]} == {"ann"}


def streamed(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-ann", max_retries=0)
    question = [{"role": "user", "content": "What is token streaming?"}]
    chunks = client.chat.completions.create(
        model="any", messages=question, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    return [chunk.usage for chunk in chunks][-1]


def test_a_key_sees_its_own_usage_and_an_admin_all(start, key_file):
    server = start(*key_file())
    ask(server)
    ask(server, key="sk-bob")
    usage_of(server, 2, "sk-bob", key="*")
    assert usage_of(server, 1)["data"][0]["key"] == "ann"
    assert usage_of(server, 1, "sk-bob", key="ann")["data"][0]["key"] == "ann"
    for other in ("bob", "*"):
        refused = usage(server, key=other)
        assert refused.status_code == 403 and "admin" in refused.json()["error"]["message"]
    table = usage(server, "sk-bob", key="*", format="csv")
    assert table.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert sorted(row["key"] for row in rows) == ["ann", "bob"]
    assert all(int(row["total_tokens"]) > 8 for row in rows)
    assert usage(server, start_date="2026-02-30").status_code == 400
    assert usage(server, "wrong").status_code == 401


def test_a_server_without_keys_says_that_it_counts_none(start):
    refused = httpx.get(f"{start().url}/v1/usage")
    assert refused.status_code == 403 and "/metrics" in refused.json()["error"]["message"]


def test_a_spent_budget_refuses_and_a_new_key_file_opens_it(start, key_file):
    server = start(*key_file(budget=30))
    ask(server)
    with pytest.raises(openai.RateLimitError) as refused:
        for _ in range(10):
            ask(server)
    assert refused.value.code == "insufficient_quota"
    assert 0 < int(refused.value.response.headers["retry-after"]) <= 86_400
    assert "30 tokens per day" in refused.value.message
    ask(server, key="sk-bob")
    budget = usage(server).json()["budgets"][0]
    assert (budget["period"], budget["limit"], budget["remaining"]) == ("day", 30, 0)
    key_file(budget=1_000_000)
    until = time.monotonic() + 30
    while usage(server).json()["budgets"][0]["remaining"] == 0 and time.monotonic() < until:
        time.sleep(0.05)
    ask(server)


def test_replicas_share_a_budget_and_their_usage_adds_up(start, key_file, redis):
    flags = (*key_file(budget=60), "--store", redis.url)
    servers = [start(*flags), start(*flags)]
    used = [ask(server) for server in servers]
    tokens = sum(one.total_tokens for one in used)
    assert usage_of(servers[0], 2)["total"]["total_tokens"] == tokens
    # Each has spent half: together they have nothing left.
    until = time.monotonic() + 30
    asked = 2
    while time.monotonic() < until:
        try:
            ask(servers[asked % 2])
            asked += 1
        except openai.RateLimitError as refused:
            assert refused.code == "insufficient_quota"
            break
    assert 60 <= usage_of(servers[1], asked)["total"]["total_tokens"]
    # One that starts anew knows it as soon as it has read the ledger.
    fresh = start(*flags)
    until = time.monotonic() + 30
    while usage(fresh).json()["budgets"][0]["remaining"] > 0 and time.monotonic() < until:
        time.sleep(0.05)
    with pytest.raises(openai.RateLimitError):
        ask(fresh)
