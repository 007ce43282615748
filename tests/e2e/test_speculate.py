"""Draft tokens: answers and their ends are those of a server that drafts nothing."""

import json

import httpx
import pytest

TWICE = "Every token reaches the screen at once. " * 3
REQUESTS = [
    {"max_tokens": 80},
    {"max_tokens": 7},
    {"max_tokens": 80, "stop": ["screen"]},
    {"max_tokens": 80, "stream_interval": 8},
    {"max_tokens": 40, "logprobs": 2},
    {"max_tokens": 40, "temperature": 0.7, "seed": 11},
    {"max_tokens": 40, "frequency_penalty": 0.5, "logit_bias": {"40": -2}},
    {"max_tokens": 40, "n": 2, "temperature": 0.7, "seed": 3},
]


def answer(server, request):
    """Text, end and count of each completion, streamed."""
    body = {"prompt": TWICE, "temperature": 0, "ignore_eos": "stop" not in request, "stream": True,
            "stream_options": {"include_usage": True}, **request}
    texts, ends, tokens, usage = {}, {}, {}, None
    with httpx.Client(base_url=server.url, timeout=60) as http:
        with http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                usage = chunk["usage"] or usage
                for choice in chunk["choices"]:
                    index = choice["index"]
                    texts[index] = texts.get(index, "") + choice["text"]
                    ends[index] = choice["finish_reason"] or ends.get(index)
                    found = (choice.get("logprobs") or {}).get("tokens", [])
                    tokens.setdefault(index, []).extend(found)
    return texts, ends, tokens, usage["completion_tokens"]


@pytest.mark.parametrize("how", ["3", "9", "auto"])
def test_answers_are_the_same(start, how):
    plain = start("--kv-type", "f32", "--draft-tokens", "off")
    drafting = start("--kv-type", "f32", "--draft-tokens", how)
    for request in REQUESTS:
        assert answer(drafting, request) == answer(plain, request), request
    assert plain.metric("spec_decode_num_draft_tokens_total") == 0
    drafted = drafting.metric("spec_decode_num_draft_tokens_total")
    accepted = drafting.metric("spec_decode_num_accepted_tokens_total")
    assert drafted > 0, "the prompt repeats itself"
    if how != "auto":
        assert 0 < accepted <= drafted, "the model goes on with what it was told"
        assert drafting.metric("engine_steps_total") < plain.metric("engine_steps_total")


def test_a_text_that_repeats_itself_is_drafted(start):
    # One token again and again, so that every draft is right. Whether drafts pay is measured, and a busy
    # machine can look for a while as if they did not.
    circles = {"max_tokens": 200, "logit_bias": {"40": 100}}
    plain = start("--kv-type", "f32", "--draft-tokens", "off")
    drafting = start("--kv-type", "f32", "--draft-tokens", "auto")
    expected = answer(plain, circles)
    asked = 0
    while asked < 20:
        asked += 1
        assert answer(drafting, circles) == expected
        if drafting.metric("spec_decode_num_accepted_tokens_total") >= 100:
            break
    saved = 200 * asked - drafting.metric("engine_steps_total")
    assert saved >= 90, f"{saved} steps saved in {asked} answers"
