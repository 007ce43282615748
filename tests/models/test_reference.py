"""What trained models write and think of a text, against llama.cpp's own server and against 32-bit floats.

llama.cpp rounds activations to 8 bits in other places than Loquent's kernels, and so does another build of itself. So
the texts can part where two tokens are almost equally likely, and shares and distances are compared here. What is
compared bit for bit stands in test_same.py and in crates/engine.
"""

import argparse
import functools
import math

import pytest

from conftest import BINARY
from formats import tokens_per_s

from . import kernels
from .ask import agreement, chat_prompt, greedy, perplexity, scores, tokens

#: How often both must find the same token the likeliest. Of this text, which is hard for the model, llama.cpp's builds
#: for AVX2 and AVX-512 agree in 93.0 to 96.6 % of 500 places, by format.
SAME = 0.91
#: How far logarithms of perplexities may lie apart that measure the same: twice what those builds do.
NOISE = 0.01
#: Tokens of the text that are scored.
SCORED = 500
QUICKLY = 120
#: Weights of SmolLM2 in each format that Loquent has kernels for, but not in IQ2: without measured importances little
#: of so small a model is left.
FORMATS = ["Q4_1", "F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q5_1", "Q5_0", "Q4_0", "IQ4_NL", "IQ4_XS",
           "Q3_K", "Q2_K", "IQ3_S", "IQ3_XXS"]
QUESTIONS = {
    "What is the capital of Norway?": "Oslo",
    "What is the capital of France?": "Paris",
    "What is the capital of Italy?": "Rome",
    "What is the capital of Germany?": "Berlin",
}


@pytest.fixture(scope="module")
def server(serve, smollm2):
    return serve(smollm2, "--context", "2048")


@pytest.fixture(scope="module")
def reference(smollm2, llama_cpp):
    with llama_cpp(smollm2, 2048) as running:
        yield running


@pytest.mark.quick
def test_greedy_answers_are_llama_cpps(server, reference):
    answers = []
    for question, known in QUESTIONS.items():
        prompt = chat_prompt(question)
        assert reference.tokens(prompt) == tokens(server, prompt)
        theirs = reference.greedy(prompt, 24)
        ours, _ = greedy(server, prompt, 24, ignore_eos=False)
        assert known in ours
        assert known in theirs
        answers.append((ours, theirs))
    assert sum(ours == theirs for ours, theirs in answers) > len(answers) / 2, answers


@pytest.mark.quick
def test_it_agrees_with_llama_cpp_on_a_text(server, reference, text):
    wanted = tokens(server, text)[:QUICKLY]
    ours, theirs = scores(server, wanted), reference.scores(wanted)
    assert agreement(ours, theirs) >= SAME
    assert perplexity(ours) == pytest.approx(perplexity(theirs), rel=0.02)


@pytest.fixture(scope="module")
def wanted(server, text):
    return tokens(server, text)[:SCORED]


def scores_of_floats(serve, path, wanted, folder):
    """What llama.cpp's kernels find with a model's weights as 32-bit floats, and a cache of them."""
    pytest.importorskip("gguf", reason="pip install -r tests/models/requirements.txt")
    from .quantise import copy_of

    path = copy_of(path, "F32", folder / "F32.gguf")
    server = serve(path, "--context", "2048", "--kernels", "llama.cpp", "--kv-type", "f32")
    found = scores(server, wanted)
    server.stop()
    path.unlink()
    return found


@pytest.fixture(scope="module")
def floats(serve, smollm2, wanted, tmp_path_factory):
    return scores_of_floats(serve, smollm2, wanted, tmp_path_factory.mktemp("floats"))


def check_perplexity(serve, path, wanted, floats, reference, note):
    """Each kind of kernels is as near to floats as llama.cpp's server, and mostly finds the same likeliest token."""
    exact, theirs = perplexity(floats), reference.scores(wanted)
    allowed = abs(math.log(perplexity(theirs) / exact)) + NOISE
    wrong = []
    for how in kernels.ALL:
        server = serve(path, "--context", "2048", "--kernels", how)
        ours = scores(server, wanted)
        server.stop()
        same, distance = agreement(ours, theirs), abs(math.log(perplexity(ours) / exact))
        note(how, **{
            "perplexity": f"{perplexity(ours):.3f}", "llama.cpp's": f"{perplexity(theirs):.3f}",
            "of 32-bit floats": f"{exact:.3f}", "same likeliest token": f"{100 * same:.1f} %"})
        if distance > allowed or same < SAME:
            wrong.append(f"{how}: {distance:.4f} from floats, {allowed:.4f} allowed; {100 * same:.1f} % the same")
    assert not wrong, wrong


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FORMATS)
def test_perplexity_is_as_near_to_floats_as_llama_cpps(
        serve, smollm2, llama_cpp, wanted, floats, report, tmp_path, name):
    from .quantise import copy_of

    path = smollm2 if name == "Q4_1" else copy_of(smollm2, name, tmp_path / f"{name}.gguf")
    with llama_cpp(path, 2048) as reference:
        check_perplexity(serve, path, wanted, floats, reference, functools.partial(report.note, "SmolLM2-135M", name))


@pytest.mark.timeout(900)
def test_gemmas_perplexity_is_as_near_to_floats(serve, gemma, llama_cpp, text, report, tmp_path):
    server = serve(gemma, "--context", "2048")
    wanted = tokens(server, text)[:SCORED]
    server.stop()
    floats = scores_of_floats(serve, gemma, wanted, tmp_path)
    note = functools.partial(report.note, "Gemma 3 270M", "Q4_K_M")
    with llama_cpp(gemma, 2048) as reference:
        check_perplexity(serve, gemma, wanted, floats, reference, note)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FORMATS)
def test_tokens_per_second(smollm2, report, tmp_path, name):
    """A measurement: only a quiet machine's figures mean anything, and none of them is held against another."""
    from .quantise import copy_of

    path = smollm2 if name == "Q4_1" else copy_of(smollm2, name, tmp_path / f"{name}.gguf")
    for how in kernels.ALL[:2]:
        one, many = tokens_per_s(argparse.Namespace(loquent=BINARY), path, how)
        assert one > 0
        assert many > 0
        report.note("SmolLM2-135M", name, how, **{"tokens/s, 1 stream": f"{one:.0f}", "16 streams": f"{many:.0f}"})


