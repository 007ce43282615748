"""Questions to a Loquent server, and what its answers say."""

import json
import math
import uuid

import httpx

PATIENCE_S = 600


def post(server, path, body):
    answer = httpx.post(server.url + path, json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


def alone_in_cache():
    """The member of a request that shares no cached prefix with any other."""
    return {"cache_salt": uuid.uuid4().hex}


def greedy(server, prompt, count, **more):
    """The likeliest `count` tokens after `prompt`: their text, and the log-probability of each."""
    ask = {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, "logprobs": 1, **more}
    choice = post(server, "/v1/completions", ask)["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def tokens(server, text):
    return post(server, "/tokenize", {"prompt": text})["tokens"]


def chat_prompt(text):
    """A question as SmolLM2's template writes it, without its system message."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def scores(server, prompt):
    """For each token of `prompt` but the first: its log-probability and the likeliest token there, as text."""
    ask = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0, **alone_in_cache()}
    scored = post(server, "/v1/completions", ask)["choices"][0]["logprobs"]
    likeliest = [max(top, key=top.get) for top in scored["top_logprobs"][1:]]
    return list(zip(scored["token_logprobs"][1:], likeliest, strict=True))


def perplexity(scored):
    return math.exp(-sum(score for score, _ in scored) / len(scored))


def agreement(one, other):
    """The share of places where both find the same token the likeliest."""
    return sum(a[1] == b[1] for a, b in zip(one, other, strict=True)) / len(one)


def events(lines, count=None):
    """Texts and the last id of an event stream, whether it was done; stops after `count` texts."""
    texts, last, done, data, id = [], None, False, None, None
    for line in lines:
        if line.startswith("id: "):
            id = line[4:]
        elif line.startswith("data: "):
            data = line[6:]
        elif not line and data is not None:
            last, done = id or last, data == "[DONE]"
            if done:
                break
            chunk = json.loads(data)
            assert "error" not in chunk, chunk
            texts += [choice["text"] for choice in chunk["choices"]]
            data = None
            if count is not None and len(texts) >= count:
                break
    return texts, last, done
