"""Long prompts of trained models: Gemma's sliding windows, and many prompts of 2,000 tokens at once."""

import threading

import pytest

from .ask import agreement, alone_in_cache, greedy, perplexity, scores, tokens
from .test_reference import SAME

#: Tokens that Gemma's layers with a window see.
WINDOW = 512
PROMPTS = 16
LENGTH = 2000


@pytest.mark.timeout(900)
def test_beyond_its_window_gemma_agrees_with_llama_cpp(serve, gemma, llama_cpp, text, report):
    server = serve(gemma, "--context", "2048")
    first, end = WINDOW + 40, WINDOW + 240
    wanted = tokens(server, text)[:end]
    ours = scores(server, wanted)[first - 1 :]
    with llama_cpp(gemma, 2048) as reference:
        theirs = reference.scores(wanted, first)
    same = agreement(ours, theirs)
    report.note("Gemma 3 270M, behind its window", "Q4_K_M", "the default", **{
        "perplexity": f"{perplexity(ours):.3f}", "llama.cpp's": f"{perplexity(theirs):.3f}",
        "same likeliest token": f"{100 * same:.1f} %"})
    assert same >= SAME
    assert perplexity(ours) == pytest.approx(perplexity(theirs), rel=0.03)


@pytest.mark.timeout(900)
def test_gemma_forgets_what_its_windows_do_not_reach_and_no_more(serve, gemma, exact, text):
    """How a prompt is cut into steps, and what of it comes from the cache, changes nothing behind the window either."""
    whole = serve(gemma, "--context", "2048", *exact)
    cut = serve(gemma, "--context", "2048", *exact, "--prefill-max-tokens", "96")
    prompt = tokens(whole, text)[: 2 * WINDOW + 100]
    expected = greedy(whole, prompt, 48, **alone_in_cache())
    assert greedy(cut, prompt, 48, **alone_in_cache()) == expected
    for length in (WINDOW - 30, WINDOW + 200):
        greedy(cut, prompt[:length], 1)
        assert greedy(cut, prompt, 48) == expected
    other = tokens(whole, text)[WINDOW + 300 : 3 * WINDOW + 400]
    assert greedy(whole, other, 48, **alone_in_cache()) != expected


def rotated(wanted, at):
    """A prompt of its own: the text from another place on, and from its beginning after its end."""
    start = at * len(wanted) // PROMPTS
    return (wanted[start:] + wanted[:start])[:LENGTH]


@pytest.mark.timeout(1800)
def test_sixteen_prompts_of_two_thousand_tokens(serve, smollm2, exact, text):
    server = serve(smollm2, "--context", "2304", "--max-batch-size", str(PROMPTS), "--kv-cells", str(PROMPTS * 2304),
                   *exact)
    wanted = tokens(server, text)
    prompts = [rotated(wanted, at) for at in range(PROMPTS)]
    assert {len(prompt) for prompt in prompts} == {LENGTH}
    answers = [None] * PROMPTS

    def one(at):
        answers[at] = greedy(server, prompts[at], 24, **alone_in_cache())

    threads = [threading.Thread(target=one, args=(at,)) for at in range(PROMPTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(1200)
    assert len({text for text, _ in answers}) > PROMPTS / 2, "they are different prompts"
    for at in (0, 5, 10, 15):
        assert answers[at] == greedy(server, prompts[at], 24, **alone_in_cache()), at
