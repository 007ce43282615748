"""openai-python, unmodified, against the real server."""

import concurrent.futures

import httpx
import openai
import pytest

from test_http import until

# llama.cpp's kernels add in another order when a batch has more rows: that moves a
# log-probability by at most so much, and can only turn a choice that was as close as that.
ROUNDING = 0.1

QUESTION = [{"role": "user", "content": "What is token streaming?"}]


def collect(stream):
    """The text, finish reason and usage of a chat stream."""
    text, finish, usage = "", None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return text, finish, usage


def exact(start):
    """A server whose cache neither rounds nor depends on what was asked before, and its client."""
    server = start("--kv-type", "f32", "--no-prefix-cache")
    return server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ask(client, **extra):
    return client.chat.completions.create(
        model="loquent-tiny", messages=QUESTION, temperature=0, **extra
    )


def test_streamed_and_whole_answers_agree(client):
    whole = ask(client)
    text, finish, usage = collect(ask(client, stream=True, stream_options={"include_usage": True}))
    assert whole.model == "loquent-tiny"
    assert whole.choices[0].finish_reason == finish == "stop"
    assert text == whole.choices[0].message.content
    assert len(text) > 20
    assert usage.completion_tokens == whole.usage.completion_tokens > 5
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_max_tokens_cuts_with_the_reason_length(client):
    answer = ask(client, max_tokens=7)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 7


def test_exact_counts_at_sixteen_concurrent_over_kept_connections(client):
    def one(_):
        _text, finish, usage = collect(
            ask(
                client,
                stream=True,
                max_tokens=50,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
        )
        return finish, usage.completion_tokens

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        results = list(pool.map(one, range(40)))
    assert results == [("length", 50)] * 40


@pytest.mark.parametrize("interval", [1, 3, 8, "auto"])
def test_every_interval_streams_the_same_text(client, interval):
    text, finish, _ = collect(ask(client, stream=True, extra_body={"stream_interval": interval}))
    assert (text, finish) == (ask(client).choices[0].message.content, "stop")


def test_a_larger_interval_sends_fewer_chunks(client):
    def chunks(interval):
        stream = ask(
            client,
            stream=True,
            max_tokens=64,
            extra_body={"ignore_eos": True, "stream_interval": interval},
        )
        return sum(bool(chunk.choices[0].delta.content) for chunk in stream)

    assert chunks(1) > 5 * chunks(8) > 0


def test_n_completions_each_with_its_index(client):
    answer = ask(client, n=3, max_tokens=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 1, "greedy is greedy"
    assert answer.usage.completion_tokens == 15
    ends = {}
    for chunk in ask(client, n=3, max_tokens=5, stream=True):
        for choice in chunk.choices:
            ends[choice.index] = choice.finish_reason or ends.get(choice.index)
    assert ends == {0: "length", 1: "length", 2: "length"}


def test_a_seed_repeats_and_other_seeds_differ(start):
    # A draw that falls between two tokens must not hang on the last bit.
    _server, sdk = exact(start)

    def sample(seed):
        answer = sdk.chat.completions.create(
            model="any",
            messages=QUESTION,
            temperature=2,
            seed=seed,
            max_tokens=24,
            extra_body={"ignore_eos": True},
        )
        return answer.choices[0].message.content

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(5)}) > 1


def test_stop_strings_end_the_text_before_themselves(client):
    whole = ask(client).choices[0].message.content
    stop = whole[len(whole) // 2 : len(whole) // 2 + 4]
    expected = whole[: whole.index(stop)]
    answer = ask(client, stop=[stop, "\u0000never"])
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].finish_reason == "stop"
    text, finish, _ = collect(ask(client, stop=stop, stream=True))
    assert (text, finish) == (expected, "stop")


def test_logprobs_come_for_every_token_streamed_or_not(client):
    whole = ask(client, logprobs=True, top_logprobs=3, max_tokens=8)
    entries = whole.choices[0].logprobs.content
    assert len(entries) == 8
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.token == entry.top_logprobs[0].token, "greedy takes the best"
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
    joined = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert joined == whole.choices[0].message.content
    for interval in (1, 8):
        streamed = []
        for chunk in ask(
            client,
            logprobs=True,
            top_logprobs=3,
            max_tokens=8,
            stream=True,
            extra_body={"stream_interval": interval},
        ):
            if chunk.choices and chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.content
        assert [entry.token for entry in streamed] == [entry.token for entry in entries]
        for one, other in zip(streamed, entries, strict=True):
            assert one.bytes == other.bytes and len(one.top_logprobs) == 3
            assert abs(one.logprob - other.logprob) < ROUNDING


def test_logit_bias_forbids_and_forces(client):
    first = ask(client, logprobs=True, top_logprobs=2, max_tokens=1)
    ids = client.post("../tokenize", cast_to=object, body={
        "prompt": first.choices[0].logprobs.content[0].token, "add_special_tokens": False,
    })["tokens"]
    assert len(ids) == 1
    other = ask(client, logit_bias={ids[0]: -100}, max_tokens=1)
    assert other.choices[0].message.content != first.choices[0].message.content


def test_penalties_change_a_repeating_answer(client):
    plain = ask(client, max_tokens=300, extra_body={"ignore_eos": True})
    fined = ask(
        client, max_tokens=300, frequency_penalty=2, presence_penalty=2, extra_body={"ignore_eos": True}
    )
    words = [answer.choices[0].message.content.split() for answer in (plain, fined)]
    variety = [len(set(some)) / len(some) for some in words]
    assert variety[1] > variety[0], "penalties on repeated tokens make the words more varied"


def test_text_completions_stream_and_take_token_ids(client):
    whole = client.completions.create(model="x", prompt="Token streaming is", max_tokens=6, temperature=0)
    assert whole.usage.completion_tokens <= 6
    ids = client.post("../tokenize", cast_to=object, body={"prompt": "Token streaming is"})["tokens"]
    again = client.completions.create(model="x", prompt=ids, max_tokens=6, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in again) == whole.choices[0].text


def test_several_prompts_in_one_text_completion(client):
    answer = client.completions.create(
        model="x", prompt=["One", "Two"], max_tokens=3, temperature=0, extra_body={"ignore_eos": True}
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == 6


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["loquent-tiny"]
    assert client.models.retrieve("loquent-tiny").id == "loquent-tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_the_sdk_waits_for_retry_after_when_its_key_has_used_up_its_minute(start, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('[[key]]\nname = "team"\nkey = "sk-team"\nrequests_per_minute = 30\n')
    keys.chmod(0o600)
    server = start("--simulate", "inf", "--api-key-file", str(keys))
    sdk = openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-team", max_retries=0)
    ask = {"model": "any", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}

    def refusal():
        """Asks until the budget is used up."""
        for _ in range(100):
            try:
                sdk.chat.completions.create(**ask)
            except openai.RateLimitError as error:
                return error
        raise AssertionError("30 requests a minute were never refused")

    refused = refusal()
    assert (refused.code, refused.type) == ("rate_limit_exceeded", "requests")
    assert refused.response.headers["x-ratelimit-limit-requests"] == "30"
    assert refused.response.headers["retry-after"] in ("1", "2")
    # With retries it waits for as long as it was told, and gets its answer at the first of them.
    assert sdk.with_options(max_retries=1).chat.completions.create(**ask).choices

    # A new file counts at once; a broken one does not.
    keys.write_text('[[key]]\nname = "team"\nkey = "sk-team"\n')
    until(lambda: "x-ratelimit-limit-requests" not in httpx.get(
        f"{server.url}/v1/models", headers={"authorization": "bearer sk-team"}).headers)
    keys.write_text("[[key]]\nname = ")
    until(lambda: any("stay as they were" in line for line in server.log))
    assert sdk.chat.completions.create(**ask).choices
    assert not any("sk-team" in line for line in server.log)


def test_any_model_name_is_served_unless_strict(client, start):
    assert client.chat.completions.create(model="gpt-4o", messages=QUESTION, max_tokens=1).model == "loquent-tiny"
    strict = start("--strict-model", "--served-model-name", "mine")
    sdk = openai.OpenAI(base_url=f"{strict.url}/v1", api_key="none", max_retries=0)
    assert sdk.chat.completions.create(model="mine", messages=QUESTION, max_tokens=1).model == "mine"
    with pytest.raises(openai.NotFoundError, match="mine"):
        sdk.chat.completions.create(model="gpt-4o", messages=QUESTION, max_tokens=1)


QUESTIONS = [
    "What is token streaming?",
    "What is a KV cache?",
    "How do I start the server?",
    "What does TTFT mean?",
    "Why is TCP bad for token streams?",
    "What is continuous batching?",
    "Who are you?",
    "What is prefill?",
    "What is the capital of France?",
    "How does resume work?",
    "What is the stream interval?",
    "Hello!",
    "What is quantisation?",
    "Tell me a long story.",
    "What is QUIC?",
    "Explain token streaming in detail.",
]


def test_sixteen_different_greedy_answers_are_the_same_together_and_alone(start):
    server, sdk = exact(start)

    def one(question):
        answer = sdk.chat.completions.create(
            model="x",
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=60,
            logprobs=True,
            top_logprobs=2,
        )
        return answer.choices[0].logprobs.content

    alone = [one(question) for question in QUESTIONS]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(one, QUESTIONS))
    assert server.metric("decode_batch_size_sum") > server.metric("decode_batch_size_count"), "nothing was batched"
    equal, largest = 0, 0.0
    for single, batched in zip(alone, together, strict=True):
        for before, after in zip(single, batched):
            if before.token != after.token:
                best, second = before.top_logprobs
                assert best.logprob - second.logprob < 2 * ROUNDING, "no rounding explains this"
                break
            largest = max(largest, abs(before.logprob - after.logprob))
        else:
            equal += len(single) == len(batched)
    print(f"{equal} of 16 answers equal, log-probabilities within {largest:.4f}")
    assert largest < ROUNDING and equal >= 14
