"""The checkpoint that vLLM reads, against the GGUF file that it was made of (bench/peers/checkpoint.py)."""

import pathlib

import pytest

from .asks import GREEDY
from .conftest import kind

TEXT = (pathlib.Path(__file__).parents[1] / "models/text.txt").read_text()
PLACES = 40
#: The file's weights have four bits and llama.cpp rounds activations to eight; the checkpoint's have sixteen.
LEAST_AGREEMENT = 0.85


@pytest.fixture
def llama(tmp_path):
    running = kind("llama-server")(tmp_path / "llama-server.log")
    yield running.wait()
    running.end()


def test_both_engines_find_the_same_token_the_likeliest(pool, llama):
    if pool.engine.name != "vllm":
        pytest.skip("it is about vLLM")
    (vllm,) = pool.alive(1)
    words = TEXT.split()
    same = 0
    for place in range(PLACES):
        at = 20 + place * (len(words) - 20) // PLACES
        body = {**GREEDY, "prompt": " ".join(words[at - 20 : at]), "max_tokens": 1}
        one, other = (engine.ask("/v1/completions", body)["choices"][0]["text"] for engine in (vllm, llama))
        same += one == other
    assert same / PLACES >= LEAST_AGREEMENT
    # A permutation of heads that is not undone, or a word that is split otherwise, would show in every answer.
    prompt = " ".join(words[:60])
    tokens = [engine.ask("/tokenize", {"prompt": prompt, "content": prompt})["tokens"] for engine in (vllm, llama)]
    assert tokens[0] == tokens[1]
