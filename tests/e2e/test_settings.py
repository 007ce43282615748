"""The file of settings and its precedence, `loquent config`, and a line of the log for each request."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import time

import httpx
import pytest

from conftest import BINARY, PATIENCE_S, READY, REPOSITORY, free_port

QUESTION = {"messages": [{"role": "user", "content": "What is token streaming?"}], "max_tokens": 8}
# A server whose answers take their time, with a log of every request.
SLOW = [BINARY, "serve", "--simulate", "50", "--log-level", "info"]


@pytest.fixture
def loquent(tmp_path):
    """Runs the binary to its end, in a home of its own."""
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    own = {name: value for name, value in os.environ.items() if not name.startswith("LOQUENT_")}

    def run(*args, **env):
        return subprocess.run(
            [BINARY, *args], capture_output=True, text=True, timeout=60, env={**own, **home, **env}
        )

    return run


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def held(done):
    """What `loquent config --json` says holds, and whence."""
    assert done.returncode == 0, done.stderr
    return {one["name"]: (one["value"], one["source"]) for one in json.loads(done.stdout)["settings"]}


def test_a_flag_wins_over_the_environment_and_that_over_the_file(loquent, tmp_path):
    write(tmp_path / "config" / "loquent" / "config.toml", "[serve]\nport = 1111\ncontext = 64\n")
    assert held(loquent("config", "--json"))["port"] == ("1111", "file")
    assert held(loquent("config", "--json", LOQUENT_PORT="2222"))["port"] == ("2222", "environment")
    settings = held(loquent("config", "--json", "serve", "--port", "3333", LOQUENT_PORT="2222"))
    assert settings["port"] == ("3333", "flag")
    assert settings["context"] == ("64", "file") and settings["host"] == ("127.0.0.1", "default")
    named = write(tmp_path / "named.toml", "log-level = 'warn'\n[serve]\nport = 4444\n")
    settings = held(loquent("config", "--json", LOQUENT_CONFIG=named))
    assert settings["port"] == ("4444", "file") and settings["context"][1] == "default"
    assert settings["log-level"] == ("warn", "file")
    shown = loquent("--config", named, "config", "--changed").stdout
    assert re.search(r"^port +4444 +file$", shown, re.M) and "host" not in shown, shown


def test_no_secret_is_shown(loquent, tmp_path):
    file = write(tmp_path / "c.toml", '[serve]\napi-key = ["sk-one", "sk-two"]\n')
    for more in ((), ("--json",)):
        shown = loquent("--config", file, "config", *more)
        assert "(hidden)" in shown.stdout and "sk-" not in shown.stdout + shown.stderr
    url = "http://ann:sk-three@127.0.0.1"
    for command in (("config",), ("config", "--json"), ("serve",)):
        shown = loquent(*command, LOQUENT_UPSTREAM=url)
        text = shown.stdout + shown.stderr
        assert "http://ann:(hidden)@127.0.0.1" in text and "sk-" not in text, text
    os.chmod(file, 0o644)
    warned = loquent("--config", file, "config").stderr
    assert f"chmod 600 {file}" in warned and f"chmod 640 {file}" in warned
    told = loquent("--config", file, "--log-format", "json", "config").stderr
    assert f"chmod 600 {file}" in json.loads(told)["message"]


def test_what_is_wrong_in_the_file_is_named_with_its_line(loquent, tmp_path):
    for text, words in (
        ("[serve]\nprot = 1\n", "line 2: there is no setting 'prot' in [serve]; did you mean 'port'?"),
        ("[serve]\nport = '1'\n", "line 2: port: expected a number, found a string"),
        ("[serve]\n\nport = 70000\n", "line 3: port: "),
        ("[serve\n", "line 1: "),
    ):
        file = write(tmp_path / "c.toml", text)
        for command in ("serve", "config", "chat"):
            done = loquent("--config", file, command)
            assert done.returncode == 2 and f"{file}, {words}" in done.stderr, done.stderr
        # Help is there even so.
        assert loquent("serve", "-h", LOQUENT_CONFIG=file).returncode == 0
    missing = loquent("serve", "--config", str(tmp_path / "none.toml"))
    assert missing.returncode == 2 and "none.toml" in missing.stderr


def test_the_file_is_held_to_the_rules_of_flags(loquent, tmp_path):
    file = write(tmp_path / "c.toml", "[serve]\nhf = 'a/b'\nsimulate = 5\n")
    done = loquent("serve", "--config", file)
    assert done.returncode == 2 and "cannot be used with" in done.stderr and file in done.stderr
    file = write(tmp_path / "c.toml", "[serve]\nhf = 'a/b'\n")
    # What contradicts a flag or a variable is left out, however the model is named.
    for typed in (["--model", "/nowhere.gguf"], ["/nowhere.gguf"]):
        done = loquent("serve", "--config", file, "--port", "0", *typed)
        assert done.returncode == 1 and "/nowhere.gguf" in done.stderr, done.stderr
    done = loquent("serve", "--config", file, "--port", "0", LOQUENT_MODEL="/nowhere.gguf")
    assert done.returncode == 1 and "/nowhere.gguf" in done.stderr, done.stderr
    file = write(tmp_path / "c.toml", "[connect]\nurl = 'nonsense'\n")
    # What a command cannot do without may come from the file.
    done = loquent("connect", "--config", file)
    assert done.returncode == 1 and "nonsense" in done.stderr, done.stderr


def test_a_variable_without_a_value_opens_no_server(loquent):
    for names, words in (
        (["LOQUENT_API_KEY"], "--api-key"),
        (["LOQUENT_ACME_DOMAIN"], "--acme-domain"),
        (["LOQUENT_JWT_KEYS", "LOQUENT_JWT_AUDIENCE"], "--jwt-audience"),
    ):
        done = loquent("serve", "--port", "0", "--simulate", "inf", **dict.fromkeys(names, ""))
        assert done.returncode == 1 and words in done.stderr, done.stderr
    # Any other is not set, for `loquent config` too.
    assert held(loquent("config", "--json", LOQUENT_PORT=""))["port"] == ("8080", "default")


def test_a_variable_that_is_no_setting_is_told(start, loquent):
    link = "tcp://10.0.0.1:8080"
    links = {"LOQUENT_SERVICE_HOST": "10.0.0.1", "LOQUENT_PORT_8080_TCP": link, "LOQUENT_PORT": link}
    server = start("--simulate", "inf", env={"LOQUENT_PROT": "1", "LOQUENT_BIN": BINARY, **links})
    told = [line for line in server.log if "there is no setting" in line]
    assert len(told) == 1 and "LOQUENT_PROT" in told[0] and "did you mean LOQUENT_PORT?" in told[0], server.log
    # What Kubernetes says about a service called "loquent" is no port to listen on.
    assert held(loquent("config", "--json", **links))["port"] == ("8080", "default")


def models(server):
    return [model["id"] for model in httpx.get(f"{server.url}/v1/models").raise_for_status().json()["data"]]


@pytest.mark.parametrize("name", ["LOQUENT_MODELS_DIR", "LOQUENT_MODELS"])
def test_a_folder_of_models_in_the_environment_is_served(start, loquent, tmp_path, name):
    shutil.copy(REPOSITORY / "models" / "loquent-tiny.gguf", tmp_path / "mine.gguf")
    folder = {name: str(tmp_path)}
    assert held(loquent("config", "--json", **folder))["models-dir"] == (str(tmp_path), "environment")
    assert models(start(env=folder)) == ["mine"]
    # It gives way to what is typed.
    assert models(start("tiny", env=folder)) == ["loquent-tiny"]
    far = start("--simulate", "inf")
    assert models(start("--upstream", far.url, env=folder)) == ["loquent-simulated"]


def test_the_level_of_the_log_has_two_names(loquent):
    level = lambda **env: held(loquent("config", "--json", **env))["log-level"]
    assert level(LOQUENT_LOG="debug") == level(LOQUENT_LOG_LEVEL="debug") == ("debug", "environment")
    assert level(LOQUENT_LOG="debug", LOQUENT_LOG_LEVEL="warn") == ("warn", "environment")


def test_a_wrong_setting_ends_with_a_status_of_its_own(loquent):
    """A supervisor starts the server again after another one (RestartPreventExitStatus= of docs/loquent.service)."""
    for typed, env in (
        (["--prot", "1"], {}),
        (["--port", "70000"], {}),
        ([], {"LOQUENT_PORT": "70000"}),
        ([], {"LOQUENT_CONFIG": "/nonexistent/config.toml"}),
    ):
        assert loquent("serve", *typed, **env).returncode == 2, (typed, env)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert loquent("serve", "--simulate", "inf", "--port", port, "--no-quic").returncode == 1
    # Nobody listens there any more: an identity provider that is not up yet.
    keys = f"http://127.0.0.1:{port}/jwks"
    done = loquent("serve", "--simulate", "inf", "--port", "0", "--jwt-keys", keys, "--jwt-audience", "loquent")
    assert done.returncode == 1 and "--jwt-keys" in done.stderr


def test_a_server_takes_its_settings_from_the_file(start, tmp_path):
    file = write(tmp_path / "c.toml", "log-level = 'info'\n[serve]\nno-quic = true\napi-key = 'k'\n")
    server = start("--config", file, "--simulate", "inf", env={"LOQUENT_LOG": ""})
    assert httpx.get(f"{server.url}/v1/models").status_code == 401
    assert httpx.get(f"{server.url}/v1/models", headers={"authorization": "Bearer k"}).status_code == 200
    assert "quic" not in httpx.get(f"{server.url}/v1/delivery").text


def lines_of(server, count):
    """The lines of requests, once there are `count`; the server is stopped, which writes them all."""
    server.process.terminate()
    assert server.process.wait(30) == 0
    server._reader.join(20)
    lines = [line for line in server.log if "loquent::requests" in line]
    assert len(lines) == count, "".join(server.log)
    return lines


def fields(line):
    return dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line))


def test_each_request_has_one_line_without_its_text(start, tmp_path):
    keys = write(tmp_path / "keys.toml", '[[key]]\nname = "team"\nkey = "sk-team"\n')
    server = start("--api-key-file", keys, env={"LOQUENT_LOG": "info"})
    client = httpx.Client(base_url=server.url, headers={"authorization": "Bearer sk-team"}, timeout=30)
    whole = client.post("/v1/chat/completions", json=QUESTION, headers={"x-request-id": "edge-1"})
    assert whole.status_code == 200 and whole.headers["x-request-id"] == "edge-1"
    streamed = client.post("/v1/chat/completions", json={**QUESTION, "stream": True, "resumable": True})
    assert streamed.text.rstrip().endswith("[DONE]")
    refused = httpx.post(f"{server.url}/v1/chat/completions", json=QUESTION)
    assert refused.status_code == 401
    wrong = client.post("/v1/chat/completions", json={"messages": "x"}, headers={"x-request-id": "a b"})
    assert wrong.status_code == 400 and wrong.headers["x-request-id"].startswith("req_")
    assert client.get("/v1/models").status_code == 200
    lines = [fields(line) for line in lines_of(server, 4)]
    first = next(line for line in lines if line["request"] == "edge-1")
    usage = whole.json()["usage"]
    assert first["key"] == '"team"' and first["model"] == '"loquent-tiny"'
    assert first["answer"] == f'"{whole.json()["id"]}"'
    assert int(first["prompt_tokens"]) == usage["prompt_tokens"] and first["tokens"] == "8"
    assert float(first["ttft_ms"]) <= float(first["total_ms"]) and float(first["tokens_per_s"]) > 0
    assert (first["transport"], first["end"]) == ("http", "length")
    second = next(line for line in lines if line["request"] == streamed.headers["x-request-id"])
    assert second["end"] == "length" and second["key"] == '"team"'
    third = next(line for line in lines if line["request"] == refused.headers["x-request-id"])
    assert third["status"] == "401" and third["error"] == '"invalid_api_key"' and "key" not in third
    fourth = next(line for line in lines if line["request"] == wrong.headers["x-request-id"])
    assert fourth["status"] == "400" and fourth["key"] == '"team"'
    log = "".join(server.log)
    assert "token streaming" not in log and "sk-" not in log
    assert whole.json()["choices"][0]["message"]["content"] not in log


def test_an_aborted_answer_has_its_line(start):
    server = start("--simulate", "50", env={"LOQUENT_LOG": "info"})
    body = {**QUESTION, "max_tokens": 5000, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=30) as response:
        for line in response.iter_lines():
            if '"content":"' in line:
                break
    line = fields(lines_of(server, 1)[0])
    assert line["end"] == "abort" and int(line["tokens"]) > 0 and float(line["ttft_ms"]) > 0


def test_a_log_for_programs_is_json_alone(start_json):
    server = start_json("--simulate", "inf")
    httpx.post(f"{server.url}/v1/chat/completions", json=QUESTION).raise_for_status()
    lines = [json.loads(line) for line in lines_of(server, 1) and server.log]
    request = next(line for line in lines if line["target"] == "loquent::requests")
    assert request["message"] == "answered" and request["tokens"] == 8 and request["end"] == "length"
    begun = next(line for line in lines if line["message"].startswith("Loquent serves"))
    assert begun["has_keys"] is False and begun["context_tokens"] > 0


def test_lines_can_be_left_out(start):
    server = start("--no-request-log", "--simulate", "inf", env={"LOQUENT_LOG": "info"})
    httpx.post(f"{server.url}/v1/chat/completions", json=QUESTION).raise_for_status()
    lines_of(server, 0)


def announced(reader):
    """Where the server can be reached whose banner is in the pipe `reader`."""
    said = b""
    while not (found := READY.search(said.decode(errors="replace"))) or b"Keys:" not in said:
        said += os.read(reader, 4096)
    return found[1]


def test_a_log_that_nobody_reads_holds_up_no_request():
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    command = [BINARY, "serve", "--port", "0", "--simulate", "inf", "--log-level", "info"]
    process = subprocess.Popen(command, stderr=writer)
    os.close(writer)
    try:
        with httpx.Client(base_url=announced(reader), timeout=30) as client:
            for _ in range(100):
                # About 300 bytes of log each: seven times what the pipe holds.
                client.post("/v1/chat/completions", json={**QUESTION, "max_tokens": 1}).raise_for_status()
            assert client.get("/health").status_code == 200
    finally:
        process.terminate()
        while os.read(reader, 1 << 16):
            pass
        assert process.wait(30) == 0
        os.close(reader)


def answers_although_it_stops(process, url, last=lambda: None):
    """An answer is whole that runs when the server is asked to stop, and then the server ends; `last` comes before."""
    body = {**QUESTION, "max_tokens": 100, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as response:
        lines = response.iter_lines()
        assert any('"content":"' in line for line in lines)
        last()
        process.terminate()
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]" and any('"finish_reason":"length"' in line for line in rest), rest[-3:]
    assert process.wait(30) == 0


def test_a_log_whose_reader_has_gone_ends_no_answer():
    # `loquent serve 2>&1 | tee log` and Ctrl-C, which ends `tee` at once.
    reader, writer = os.pipe()
    process = subprocess.Popen([*SLOW, "--port", "0"], stderr=writer)
    os.close(writer)
    try:
        url = announced(reader)
        answers_although_it_stops(process, url, last=lambda: os.close(reader))
    finally:
        process.kill()
        process.wait()


def test_a_log_on_a_full_disk_ends_no_answer():
    port = free_port()
    with open("/dev/full", "w") as full:
        process = subprocess.Popen([*SLOW, "--port", str(port)], stderr=full)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(PATIENCE_S * 20):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/ready").status_code == 200:
                    break
            time.sleep(0.05)
        # The line of this request comes from the thread of the log of requests, which goes on too.
        httpx.post(f"{url}/v1/chat/completions", json=QUESTION).raise_for_status()
        answers_although_it_stops(process, url)
    finally:
        process.kill()
        process.wait()
