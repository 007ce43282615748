"""llama-server's own API from the real engine, as its clients use it."""

import json

import httpx
import pytest
from openai import OpenAI

PROMPT = "Token streaming means"


def complete(http, **more):
    answer = http.post("/completion", json={"prompt": PROMPT, "temperature": 0, "n_predict": 12, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(http, **more):
    body = {"prompt": PROMPT, "temperature": 0, "n_predict": 12, "stream": True, **more}
    with http.stream("POST", "/completion", json=body) as response:
        assert response.status_code == 200
        return [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]


def test_an_answer_streamed_or_not_has_the_same_tokens_and_the_settings_that_held(http):
    whole = complete(http, return_tokens=True, n_probs=3, seed=7)
    *pieces, end = events(http, n_probs=3, seed=7)
    assert "".join(piece["content"] for piece in pieces) == whole["content"] != ""
    assert [token for piece in pieces for token in piece["tokens"]] == whole["tokens"]
    assert len(whole["tokens"]) == whole["tokens_predicted"] == end["tokens_predicted"]
    assert end["stop"] and end["stop_type"] == whole["stop_type"]
    for token, entry in zip(whole["tokens"], whole["completion_probabilities"], strict=True):
        assert entry["id"] == token and len(entry["top_logprobs"]) == 3
        # Without a temperature the likeliest token is chosen.
        assert entry["top_logprobs"][0]["logprob"] == pytest.approx(entry["logprob"], abs=1e-4)
    for settings in (whole["generation_settings"], end["generation_settings"]):
        assert settings["seed"] == 7 and settings["n_predict"] == 12 and settings["temperature"] == 0
    for timings in (whole["timings"], end["timings"]):
        assert timings["prompt_n"] + timings["cache_n"] == whole["tokens_evaluated"]
        assert timings["predicted_n"] == whole["tokens_predicted"] and timings["predicted_ms"] > 0


def test_the_seed_that_was_drawn_gives_the_answer_again(http):
    wild = {"temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0}
    first, other = complete(http, **wild), complete(http, **wild)
    assert first["content"] != other["content"]
    assert complete(http, **wild, seed=first["generation_settings"]["seed"])["content"] == first["content"]


def test_only_the_members_come_that_a_request_names(http):
    some = complete(http, response_fields=["content", "generation_settings/n_predict", "nothing"])
    assert set(some) == {"content", "generation_settings/n_predict"} and some["generation_settings/n_predict"] == 12


def test_prompts_are_texts_tokens_and_mixtures(http):
    tokens = http.post("/tokenize", json={"content": PROMPT, "add_special": True}).json()["tokens"]
    several = complete(http, prompt=[tokens, PROMPT, {"prompt_string": PROMPT}])
    assert [one["index"] for one in several] == [0, 1, 2]
    assert len({one["content"] for one in several}) == 1
    mixed = complete(http, prompt=[*tokens, " that", tokens[-1]])
    assert mixed["tokens_evaluated"] > len(tokens) + 1
    # The prompt is computed for the next request.
    prompt = "A prompt that is computed ahead of its answer, " * 8
    assert complete(http, prompt=prompt, n_predict=0)["tokens_predicted"] == 0
    assert complete(http, prompt=prompt)["timings"]["cache_n"] > 0


def test_a_text_may_be_forbidden(http):
    text = complete(http, n_predict=1)["content"]
    assert complete(http)["content"].startswith(text)
    for bias in ([[text, False]], {text: -100}):
        assert not complete(http, logit_bias=bias)["content"].startswith(text)


def test_pieces_are_the_text_of_their_tokens(http):
    text = "Grüße, 世界! 🚆"
    pieces = http.post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    parts = [piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"]) for piece in pieces]
    assert b"".join(parts).decode().strip() == text
    ids = [piece["id"] for piece in pieces]
    assert http.post("/tokenize", json={"content": text}).json()["tokens"] == ids
    assert http.post("/detokenize", json={"tokens": ids}).json()["content"].strip() == text


def test_a_chats_tokens_are_those_that_its_answer_counts(http, client: OpenAI):
    messages = [{"role": "user", "content": "What is token streaming?"}]
    counted = http.post("/v1/chat/completions/input_tokens", json={"messages": messages}).json()
    answer = client.chat.completions.create(
        model="any", messages=messages, max_tokens=4, extra_body={"timings_per_token": True}
    )
    assert counted == {"object": "response.input_tokens", "input_tokens": answer.usage.prompt_tokens}
    assert answer.timings["predicted_n"] == answer.usage.completion_tokens
    assert answer.system_fingerprint.startswith("fp_")
    again = client.completions.create(model="any", prompt="a", max_tokens=1, stream=True)
    assert {chunk.system_fingerprint for chunk in again} == {answer.system_fingerprint}


def test_a_seed_and_a_template_of_the_command_line_hold(start):
    template = "{% for message in messages %}[{{ message.content }}]{% endfor %}"
    server = start("--seed", "11", "--temperature", "1.5", "--chat-template", template)
    shown = httpx.post(f"{server.url}/apply-template", json={"messages": [{"role": "user", "content": "hi"}]})
    assert shown.json()["prompt"] == "[hi]"

    def ask(**more):
        body = {"prompt": PROMPT, "n_predict": 16, **more}
        return httpx.post(f"{server.url}/completion", json=body, timeout=60).json()

    first = ask()
    assert first["generation_settings"]["seed"] == 11
    assert ask()["content"] == first["content"]
    assert ask(seed=12)["content"] != first["content"]
