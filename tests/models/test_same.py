"""A trained model writes the same text, byte for byte, whatever happens around the answer and however it is computed.

The servers use kernels whose results are the same bit for bit whatever else is in the batch or the cache
(docs/kernels.md), so the log-probability of each token is compared too.
"""

import os
import pathlib
import signal
import subprocess
import threading

import httpx
import pytest

from conftest import BINARY

from .ask import alone_in_cache, chat_prompt, events, greedy

QUESTIONS = [
    "What is the capital of Norway?",
    "Write a short poem about the sea.",
    "Explain in two sentences why the sky is blue.",
    "Name three animals that live in the forest, and say what each of them eats.",
    "Hello!",
    "How many legs does a spider have?",
    "Give me a recipe for pancakes. I have flour, milk, four eggs, butter, salt, sugar, and one lemon.",
    "Translate into French: The train leaves at eight o'clock in the morning.",
]
COUNT = 16
CONTEXT = ("--context", "2048")


@pytest.fixture(scope="module")
def server(serve, smollm2, exact):
    return serve(smollm2, *CONTEXT, *exact)


@pytest.fixture(scope="module")
def alone(server):
    """Each question's answer, computed alone and without anything from the cache."""
    return [answered(server, question) for question in QUESTIONS]


@pytest.mark.quick
def test_each_question_has_an_answer_of_its_own(alone):
    assert len({text for text, _ in alone}) == len(QUESTIONS)
    assert "Oslo" in alone[0][0], "it is a trained model"
    assert all(len(scores) == COUNT for _, scores in alone)


def answered(server, question):
    return greedy(server, chat_prompt(question), COUNT, **alone_in_cache())


def together(server):
    """The answers to all questions, asked at once."""
    answers = [None] * len(QUESTIONS)
    gate = threading.Barrier(len(QUESTIONS))

    def one(at):
        gate.wait(60)
        answers[at] = answered(server, QUESTIONS[at])

    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(QUESTIONS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return answers


@pytest.mark.quick
def test_batched_is_unbatched(server, alone):
    before = server.metric("engine_steps_total")
    assert together(server) == alone
    steps = server.metric("engine_steps_total") - before
    assert steps < COUNT * len(QUESTIONS) / 2, "most steps computed several answers"


@pytest.mark.quick
def test_with_the_prefix_cache_is_without(serve, smollm2, exact, server, alone):
    without = serve(smollm2, *CONTEXT, *exact, "--no-prefix-cache")
    prompts = [chat_prompt(QUESTIONS[6]), chat_prompt(QUESTIONS[6]) + alone[6][0]]
    for prompt in [*prompts, *prompts]:
        assert greedy(server, prompt, COUNT) == greedy(without, prompt, COUNT)
    assert server.metric("prefix_cache_hits_total") > 0
    assert without.metric("prefix_cache_hits_total") == 0


def test_drafted_is_undrafted(serve, smollm2, exact):
    plain, drafting = (serve(smollm2, *CONTEXT, *exact, "--draft-tokens", how) for how in ("off", "6"))
    prompt = chat_prompt("Repeat this line ten times: The quick brown fox jumps over the lazy dog.")
    assert greedy(drafting, prompt, 80) == greedy(plain, prompt, 80)
    assert drafting.metric("spec_decode_num_accepted_tokens_total") > 20


@pytest.mark.parametrize("stages", [pytest.param(2, marks=pytest.mark.quick), 3])
def test_split_in_stages_is_whole(serve, smollm2, exact, alone, tmp_path, stages):
    prefix = tmp_path / "part"
    split = [BINARY, "split", str(smollm2), "--stages", str(stages), "--out", str(prefix)]
    subprocess.run(split, check=True, capture_output=True, timeout=60)
    parts = [f"{prefix}-stage-{at}-of-{stages}.gguf" for at in range(1, stages + 1)]
    server = serve(f"{prefix}-entry.gguf", "--stages", ",".join(parts), *CONTEXT, *exact)
    assert together(server) == alone


def resumable(question, count):
    """The request of an answer that can be resumed."""
    return {"prompt": chat_prompt(question), "max_tokens": count, "temperature": 0, "ignore_eos": True, "stream": True,
            "resumable": True, **alone_in_cache()}


@pytest.mark.quick
def test_resumed_is_undisturbed(server, alone):
    parts, last = [], None
    body = resumable(QUESTIONS[1], COUNT)
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        name = [response.headers[f"x-loquent-stream-{part}"] for part in ("id", "token")]
        texts, last, done = events(response.iter_lines(), 7)
        parts += texts
    while not done:
        headers = {"x-loquent-stream-token": name[1], "last-event-id": last}
        with httpx.stream("GET", f"{server.url}/v1/streams/{name[0]}", headers=headers, timeout=60) as response:
            assert response.status_code == 200
            texts, last, done = events(response.iter_lines(), 7)
            assert texts or done
            parts += texts
    assert "".join(parts) == alone[1][0]


def children(pid):
    return [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()]


@pytest.mark.quick
@pytest.mark.skipif(not pathlib.Path("/proc/self/task").exists(), reason="only Linux names a process's children")
def test_with_its_engine_killed_is_undisturbed(serve, smollm2, exact):
    server = serve(smollm2, *CONTEXT, *exact, "--engine-process")
    count = 80
    undisturbed = greedy(server, chat_prompt(QUESTIONS[1]), count, **alone_in_cache())[0]
    body = resumable(QUESTIONS[1], count)
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as response:
        lines = response.iter_lines()
        parts, _, done = events(lines, 10)
        assert not done
        (engine,) = children(server.process.pid)
        os.kill(engine, signal.SIGKILL)
        texts, _, done = events(lines)
    assert done
    assert "".join(parts + texts) == undisturbed
    assert children(server.process.pid) != [engine], "another process computes"
