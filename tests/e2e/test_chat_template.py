"""A chat template other than the model's own, and defaults of its variables."""

import shutil
import subprocess

import httpx

from conftest import BINARY, REPOSITORY

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{{ '/think' if enable_thinking is defined and enable_thinking else '/no' }} {{ style | default('plain') }}"
)
HELLO = [{"role": "user", "content": "hi"}]


def prompt(server, **more):
    answer = httpx.post(f"{server.url}/apply-template", json={"messages": HELLO, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["prompt"]


def test_a_template_of_the_operator_holds_and_requests_set_its_variables(start, tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    defaults = '{"enable_thinking": true, "style": "terse"}'
    server = start("--chat-template", str(file), "--chat-template-kwargs", defaults)
    assert prompt(server) == "<user>hi/think terse"
    assert prompt(server, chat_template_kwargs={"style": "long"}) == "<user>hi/think long"
    assert prompt(server, chat_template_kwargs={"enable_thinking": False}) == "<user>hi/no terse"
    # What a request says of its reasoning comes before the default.
    assert prompt(server, reasoning_effort="none") == "<user>hi/no terse"
    assert httpx.get(f"{server.url}/props").json()["chat_template"] == TEMPLATE
    body = {"messages": HELLO, "max_tokens": 2}
    assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_a_broken_template_is_refused_when_the_server_starts(tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text("{% for")
    serve = [BINARY, "serve", "--port", "0", "--chat-template", file]
    ended = subprocess.run(serve, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and str(file) in ended.stderr, ended.stderr
    models = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for model in models:
        shutil.copy(REPOSITORY / "models/loquent-tiny.gguf", model)
    several = [BINARY, "serve", "--port", "0", "--chat-template", file, "--model", models[0], "--model", models[1]]
    file.write_text(TEMPLATE)
    ended = subprocess.run(several, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0 and "--chat-template is for one model" in ended.stderr, ended.stderr
