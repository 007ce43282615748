"""Log-probabilities of prompts from the real engine: those of generating the same tokens one by one."""

import pytest

PROMPT = "Token streaming means that a server sends every token as soon as it is computed, not one text."
#: Activations are rounded to 8 bits, and differently in batches of other sizes and after other cached prefixes.
ROUNDING = 0.25


def complete(http, **more):
    answer = http.post("/v1/completions", json={"temperature": 0, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_prompts_log_probabilities_are_those_of_its_tokens_one_by_one(http):
    tokens = http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    whole = complete(http, prompt=PROMPT, echo=True, logprobs=3, max_tokens=0)
    (choice,) = whole["choices"]
    assert choice["text"] == PROMPT and choice["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 0
    scored = choice["logprobs"]
    assert len(scored["token_logprobs"]) == len(tokens) > 15
    assert scored["token_logprobs"][0] is None and scored["top_logprobs"][0] is None
    for at in range(1, len(tokens)):
        # The bias makes it the prompt's token; log-probabilities are those without it.
        one = complete(http, prompt=tokens[:at], max_tokens=1, logprobs=3, logit_bias={str(tokens[at]): 100})
        alone = one["choices"][0]["logprobs"]
        assert alone["token_logprobs"][0] == pytest.approx(scored["token_logprobs"][at], abs=ROUNDING), at
        assert max(alone["top_logprobs"][0].values()) == pytest.approx(
            max(scored["top_logprobs"][at].values()), abs=ROUNDING
        )


def test_openai_python_gets_them_streamed_or_not(client):
    ask = {"model": "any", "prompt": PROMPT, "echo": True, "logprobs": 1, "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**ask).choices[0]
    chunks = [chunk.choices[0] for chunk in client.completions.create(**ask, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    for name in ("tokens", "text_offset"):
        parts = [part for chunk in chunks if chunk.logprobs for part in getattr(chunk.logprobs, name)]
        assert parts == getattr(whole.logprobs, name), name
    for token, offset in zip(whole.logprobs.tokens, whole.logprobs.text_offset, strict=True):
        # The token that ended the text has none.
        assert token == "<|im_end|>" or whole.text[offset:].startswith(token), (token, offset)
