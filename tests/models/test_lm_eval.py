"""EleutherAI's lm-eval, unmodified, on two small tasks of this file: the log-probabilities of its choices are
llama.cpp's, and so is the score of what it lets the model write."""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "target/models/lm_eval/bin/lm_eval"
#: Mean distance of a choice's log-probability at the two engines: what their kernels round explains no more.
CHOICE_NATS = 0.25
#: Facts that a small model can know: what the answer is and what it is not.
FACTS = [
    ("The capital of France is", "Paris", "Berlin", "Madrid", "Oslo"),
    ("The capital of Japan is", "Tokyo", "Seoul", "Beijing", "Hanoi"),
    ("The capital of Egypt is", "Cairo", "Tunis", "Athens", "Lima"),
    ("Water freezes at zero degrees", "Celsius", "Fahrenheit", "Kelvin", "north"),
    ("A baby cat is called a", "kitten", "puppy", "calf", "chick"),
    ("A baby dog is called a", "puppy", "kitten", "foal", "lamb"),
    ("The opposite of hot is", "cold", "warm", "red", "tall"),
    ("The opposite of up is", "down", "left", "over", "near"),
    ("The first month of the year is", "January", "June", "March", "October"),
    ("The last day of the working week is", "Friday", "Monday", "Sunday", "Tuesday"),
    ("Bees make", "honey", "milk", "cheese", "paper"),
    ("Cows give", "milk", "honey", "eggs", "wool"),
    ("Hens lay", "eggs", "bricks", "milk", "honey"),
    ("The colour of grass is", "green", "purple", "blue", "pink"),
    ("The sky on a clear day is", "blue", "green", "brown", "orange"),
    ("Snow is", "white", "black", "green", "hot"),
    ("The planet closest to the Sun is", "Mercury", "Neptune", "Jupiter", "Saturn"),
    ("People breathe in", "oxygen", "helium", "sand", "gold"),
    ("The author of Hamlet is William", "Shakespeare", "Wordsworth", "Blake", "Golding"),
    ("Two plus two equals", "four", "nine", "seven", "one"),
    ("A triangle has three", "sides", "wheels", "legs", "names"),
    ("A bicycle has two", "wheels", "engines", "roofs", "doors"),
    ("Fish live in", "water", "trees", "books", "fire"),
    ("At night we see the moon and the", "stars", "sun", "lunch", "grass"),
]
#: What can be told from the text alone: the last word of a line is that of the line before it.
SERIES = [
    ("one, two, three, four,", "five"),
    ("Monday, Tuesday, Wednesday,", "Thursday"),
    ("a, b, c, d,", "e"),
    ("1, 2, 3, 4, 5,", "6"),
    ("2, 4, 6, 8,", "10"),
    ("red, red, red, red,", "red"),
    ("10, 20, 30, 40,", "50"),
    ("January, February, March,", "April"),
    ("cat, dog, cat, dog, cat,", "dog"),
    ("A1, A2, A3, A4,", "A5"),
    ("north, south, north, south,", "north"),
    ("5, 4, 3, 2,", "1"),
    ("first, second, third,", "fourth"),
    ("yes, no, yes, no, yes,", "no"),
    ("x, xx, x, xx, x,", "xx"),
    ("100, 200, 300,", "400"),
]

#: What lm-eval reads of a task beside its data.
TASKS = {
    "facts": """
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
metric_list: [{metric: acc}]
""",
    "series": """
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{next}}"
generation_kwargs: {until: [",", "\\n"], max_gen_toks: 8, temperature: 0}
filter_list: [{name: first, filter: [{function: remove_whitespace}, {function: take_first}]}]
metric_list: [{metric: exact_match, ignore_case: true, ignore_punctuation: true}]
""",
}


@pytest.fixture(scope="module")
def lm_eval(tmp_path_factory):
    """Runs one task against a URL; returns its results and its samples, in the tasks' order."""
    if not PROGRAM.exists():
        pytest.skip("lm-eval is not installed: tools/test-models does it")
    folder = tmp_path_factory.mktemp("lm_eval")
    write_tasks(folder)

    def run(url, task, **settings):
        out = folder / f"{task}-{len(list(folder.glob('out*')))}"
        settings = {"model": "any", "base_url": f"{url}/v1/completions", "num_concurrent": 1, **settings}
        command = [PROGRAM, "--model", "local-completions", "--tasks", task, "--include_path", folder]
        command += ["--model_args", ",".join(f"{name}={value}" for name, value in settings.items())]
        command += ["--output_path", out, "--log_samples"]
        # The tasks are local: nothing is to be fetched.
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        results = json.loads(next(out.rglob("results*.json")).read_text())["results"][task]
        samples = [json.loads(line) for line in next(out.rglob("samples*.jsonl")).read_text().splitlines()]
        return results, sorted(samples, key=lambda sample: sample["doc_id"])

    return run


def write_tasks(folder):
    rows = {
        "facts": [{"text": text, "choices": list(choices)} for text, *choices in FACTS],
        "series": [{"text": text, "next": following} for text, following in SERIES],
    }
    for task, body in TASKS.items():
        data = folder / f"{task}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows[task]))
        source = (
            f"task: {task}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test\n"
        )
        (folder / f"{task}.yaml").write_text(source + body)


def likelihood(reference, text, choice):
    """The log-probability of `choice` after `text` at llama.cpp's server."""
    before, whole = reference.tokens(text), reference.tokens(f"{text} {choice}")
    assert whole[: len(before)] == before
    return sum(score for score, _ in reference.scores(whole, len(before)))


@pytest.mark.timeout(900)
def test_choices_are_as_likely_as_at_llama_cpp(lm_eval, serve, smollm2, llama_cpp):
    server = serve(smollm2, "--context", "1024")
    results, samples = lm_eval(server.url, "facts", tokenizer_backend="remote")
    ours = [[float(answer[0][0]) for answer in sample["resps"]] for sample in samples]
    with llama_cpp(smollm2, 1024) as reference:
        theirs = [[likelihood(reference, text, choice) for choice in choices] for text, *choices in FACTS]
    pairs = [(a, b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)]
    apart = sum(abs(a - b) for a, b in pairs) / len(pairs)
    accuracy = sum(max(one) == one[0] for one in theirs) / len(theirs)
    print(f"facts: accuracy {results['acc,none']:.3f} (llama.cpp {accuracy:.3f}), {apart:.3f} nats apart in the mean")
    assert apart <= CHOICE_NATS
    assert abs(results["acc,none"] - accuracy) <= 2 * standard_error(accuracy, len(FACTS))
    assert results["acc,none"] > 0.5, "it knows more than chance would"


@pytest.mark.timeout(900)
def test_what_is_written_scores_as_at_llama_cpp(lm_eval, serve, smollm2, llama_cpp):
    server = serve(smollm2, "--context", "1024")
    ours, our_samples = lm_eval(server.url, "series", tokenizer_backend="none", tokenized_requests=False)
    with llama_cpp(smollm2, 1024) as reference:
        theirs, their_samples = lm_eval(reference.url, "series", tokenizer_backend="none", tokenized_requests=False)
    written = [[sample["resps"][0][0].strip() for sample in samples] for samples in (our_samples, their_samples)]
    same = sum(a == b for a, b in zip(*written, strict=True))
    scores = [result["exact_match,first"] for result in (ours, theirs)]
    print(f"series: exact match {scores[0]:.3f} (llama.cpp {scores[1]:.3f}), {same} of {len(SERIES)} written alike")
    assert abs(scores[0] - scores[1]) <= sum(standard_error(score, len(SERIES)) for score in scores)
    assert scores[0] > 0.3, "most series are easy"


def standard_error(share, count):
    return math.sqrt(max(share * (1 - share), 1 / count) / count)
