"""lm-eval's log-likelihood and generation tasks against the server whose URL is the argument, on a task
that this program writes: of two answers to a question the likelier is the one that the model gives."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import requests

url = sys.argv[1]
QUESTIONS = ["What is Loquent?", "What is a token?", "What is a stream?", "Who are you?"]


def prompt(question):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def says(question):
    body = {"prompt": prompt(question), "max_tokens": 24, "temperature": 0}
    return requests.post(f"{url}/v1/completions", json=body).json()["choices"][0]["text"]


# The task's templates put a space between a question and an answer, so the answers begin behind the
# first word of what the model says.
rows = []
for question in QUESTIONS:
    first, _, rest = says(question).partition(" ")
    rows.append({"text": prompt(question) + first, "good": rest, "bad": " ".join(reversed(rest.split()))})

TASK = """
task: loquent_local
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{[good, bad]}}}}"
doc_to_target: 0
metric_list: [{{metric: acc}}]
"""

with tempfile.TemporaryDirectory() as folder:
    folder = Path(folder)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "task.yaml").write_text(TASK.format(rows=folder / "rows.jsonl"))
    model = f"model=loquent-tiny,base_url={url}/v1/completions,tokenizer_backend=remote,num_concurrent=4"
    command = [Path(sys.executable).with_name("lm_eval"), "--model", "local-completions", "--model_args", model]
    command += ["--tasks", "loquent_local", "--include_path", folder, "--output_path", folder / "out"]
    # The task is local: nothing is to be fetched.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(next((folder / "out").rglob("results*.json")).read_text())
    accuracy = results["results"]["loquent_local"]["acc,none"]
    assert accuracy == 1.0, f"{accuracy}: {done.stdout}"
    print(f"accuracy {accuracy} of {len(rows)} questions")
