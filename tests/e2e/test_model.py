"""The bundled model, as committed, answers the held-out questions as its card says."""

import concurrent.futures
import json

import httpx
import pytest

from conftest import REPOSITORY

HELD_OUT = REPOSITORY / "tools" / "train-tiny" / "heldout"


@pytest.mark.parametrize(
    ("kind", "least"),
    # A little below the card's figures: kernels round differently.
    [("paraphrase", 0.89), ("unknown", 0.90), ("third_turn", 0.78)]
)
def test_accuracy_on_held_out_questions(server, kind, least):
    cases = [json.loads(line) for line in (HELD_OUT / f"{kind}.jsonl").read_text().splitlines()]
    assert len(cases) >= 50

    def is_right(case):
        body = {"messages": case["messages"], "temperature": 0, "max_tokens": 1000}
        response = http.post(f"{server.url}/v1/chat/completions", json=body)
        answer = response.json()["choices"][0]["message"]["content"].strip()
        expected = case["expect"]
        return answer in ([expected] if isinstance(expected, str) else expected)

    with httpx.Client(timeout=120) as http, concurrent.futures.ThreadPoolExecutor(8) as pool:
        right = sum(pool.map(is_right, cases))
    print(f"{kind}: {right} of {len(cases)}")
    assert right / len(cases) >= least
