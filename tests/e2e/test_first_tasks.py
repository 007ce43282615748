"""What a first-time user sets out to do, done with README and the documents alone.

Every command, file and address comes out of the documents' own text (`documented`); a test puts in its own ports and
files, and sees whether the task is done. Each text is that of the bundled model.
"""

import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import httpx
import pytest

import documented
from conftest import BINARY, REPOSITORY, Server, free_port
from lossy import LossyPath
from test_connect import Proxy

MODEL = REPOSITORY / "models" / "loquent-tiny.gguf"
QUESTION = "What is token streaming?"
ANSWER = "Token streaming means that each token of an answer is sent to the reader as soon as the model has produced it"
CHAT = {"stream": True, "messages": [{"role": "user", "content": QUESTION}]}


@pytest.fixture
def serve():
    """Runs a documented `loquent serve` on a free port instead of its own."""
    running = []

    def start(arguments, env=None):
        assert arguments[0] == "serve"
        # Server chooses the port; others must not reach a test's server.
        for flag, *values in (("--port",), ("--quic-port",), ("--host", "127.0.0.1")):
            if flag in arguments:
                arguments = documented.replaced(arguments, flag, *values)
        running.append(Server(*arguments[1:], env=env))
        return running[-1].wait()

    yield start
    for server in running:
        server.stop()


def loquent(arguments, env, **options):
    """What a documented command prints; it has to succeed."""
    run = subprocess.run([BINARY, *arguments], env=env, capture_output=True, text=True, timeout=120, **options)
    assert run.returncode == 0, run.stderr
    return run.stdout


def one_line(text):
    """The text without the line breaks of a narrow terminal."""
    return " ".join(text.split())


def streamed(client, path="/v1/chat/completions", body=CHAT, **options):
    """The joined text of a streamed answer, which has to end as it should."""
    with client.stream("POST", path, json=body, **options) as response:
        assert response.status_code == 200, response.read()
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_1_serve_a_gguf_file_of_ones_own(serve, tmp_path):
    arguments = documented.command("loquent serve", ".gguf")
    at = next(i for i, argument in enumerate(arguments) if argument.endswith(".gguf"))
    mine = tmp_path / os.path.basename(arguments[at])
    shutil.copy(MODEL, mine)
    arguments[at] = str(mine)
    server = serve(arguments)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        assert streamed(http).startswith(ANSWER)


def test_2_chat_in_the_terminal(server, tmp_path):
    arguments = documented.command("loquent chat", QUESTION)
    env = documented.environment(tmp_path, LOQUENT_URL=server.url)
    arguments = [argument.replace(documented.SERVER, server.url) for argument in arguments]
    assert ANSWER in one_line(loquent(arguments, env))


def test_2_chat_in_the_terminal_without_a_server(tmp_path):
    arguments = documented.command("loquent run tiny", QUESTION)
    assert ANSWER in one_line(loquent(arguments, documented.environment(tmp_path)))


def test_3_connect_the_openai_sdk(server, tmp_path):
    program = documented.block("python", "from openai import OpenAI", "stream=True")
    assert documented.SERVER in program
    run = subprocess.run(
        [sys.executable, "-c", program.replace(documented.SERVER, server.url)],
        env=documented.environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.stdout.startswith(ANSWER), run.stderr


def test_4_connect_open_webui(start):
    recipe = documented.block("console", "OPENAI_API_BASE_URL", "open-webui")
    base, key = (re.search(rf"{name}=(\S+)", recipe)[1] for name in ("OPENAI_API_BASE_URL", "OPENAI_API_KEY"))
    host = re.search(r"//([^:/]+)", base)[1]
    server = start("--allowed-host", host)
    port = server.url.rsplit(":", 1)[1]
    # The container reaches the host by a name of its own.
    headers = {"Host": f"{host}:{port}", "Authorization": f"Bearer {key}"}
    path = base.split(":8080")[1]
    with httpx.Client(base_url=server.url + path, headers=headers, timeout=60) as app:
        [model] = app.get("/models").json()["data"]
        asked = CHAT | {"model": model["id"], "stream_options": {"include_usage": True}}
        assert streamed(app, "/chat/completions", asked).startswith(ANSWER)
        # A title for the conversation, as it asks for one after the first answer.
        title = {"model": model["id"], "stream": False, "max_completion_tokens": 20, "messages": CHAT["messages"]}
        assert app.post("/chat/completions", json=title).json()["choices"][0]["message"]["content"]


class ReverseProxy:
    """A web server that runs the documented configuration, but for its addresses and its certificate."""

    def __init__(self, installed, folder, upstream):
        program = os.path.basename(installed)
        self.port = free_port()
        address = upstream.removeprefix("http://")
        write = {"caddy": self._caddyfile, "nginx": self._nginx_conf}[program]
        config = folder / f"{program}.conf"
        config.write_text(write(folder).replace(documented.SERVER.removeprefix("http://"), address))
        options = {
            "caddy": ["run", "--adapter", "caddyfile", "--config"],
            "nginx": ["-p", str(folder), "-e", "stderr", "-c"],
        }
        environment = documented.environment(folder, XDG_DATA_HOME=str(folder), XDG_CONFIG_HOME=str(folder))
        self.process = subprocess.Popen([installed, *options[program], str(config)], env=environment)

    def _caddyfile(self, _folder):
        site = documented.block("caddy", "reverse_proxy")
        self.name = site.split()[0]
        own = site.replace(self.name, f"http://{self.name}:{self.port}", 1)
        return f"{{\n    admin off\n    auto_https off\n}}\n{own}"

    def _nginx_conf(self, folder):
        site = documented.block("nginx", "proxy_pass")
        self.name = re.search(r"server_name (\S+);", site)[1]
        site = re.sub(r"listen .*;", f"listen 127.0.0.1:{self.port};", site)
        site = re.sub(r"ssl_\w+ .*;", "", site)
        user = "user root;" if os.geteuid() == 0 else ""
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = " ".join(f"{kind}_temp_path {folder};" for kind in kinds)
        head = f"{user} daemon off; pid {folder}/nginx.pid; events {{}}"
        return f"{head}\nhttp {{ access_log off; {temporary}\n{site}}}\n"

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


@pytest.mark.parametrize("program", ["caddy", "nginx"])
def test_5_put_it_behind_a_reverse_proxy_with_a_key(serve, tmp_path, program):
    # Debian keeps it where only root's path leads.
    installed = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    if not installed:
        pytest.skip(f"{program} is not installed (Debian: apt-get install {program})")
    (tmp_path / "keys").write_text("the-key\n")
    (tmp_path / "keys").chmod(0o600)
    arguments = documented.command("loquent serve", "--trusted-proxy")
    arguments = documented.replaced(arguments, "--api-key-file", str(tmp_path / "keys"))
    # The documents say what a server on loopback needs besides.
    [name] = documented.phrase(r"loopback address, add `--allowed-host ([\w.]+)`")
    server = serve([*arguments, "--allowed-host", name, "--simulate", "50"])
    proxy = ReverseProxy(installed, tmp_path, server.url)
    try:
        transport = httpx.HTTPTransport(retries=8)
        url = f"http://127.0.0.1:{proxy.port}"
        with httpx.Client(base_url=url, transport=transport, headers={"Host": proxy.name}, timeout=60) as http:
            assert proxy.name == name and http.post("/v1/chat/completions", json=CHAT).status_code == 401
            key = {"Authorization": "Bearer the-key"}
            # At a port that is not the scheme's own, the page's Origin has it, and Host must have it too.
            site = f"{proxy.name}:{proxy.port}"
            page = {"Host": site, "Origin": f"http://{site}", **key}
            assert http.post("/v1/chat/completions", json=CHAT | {"max_tokens": 4}, headers=page).status_code == 200
            with http.stream(
                "POST", "/v1/chat/completions", json=CHAT | {"max_tokens": 1000, "ignore_eos": True}, headers=key
            ) as response:
                assert response.status_code == 200
                lines = response.iter_lines()
                assert next(line for line in lines if re.search(r'"content":"[^"]', line))
                # The first text is here while the server is still writing the rest.
                metrics = httpx.get(f"{server.url}/metrics", headers=key).text
                assert "\nloquent_num_requests_running 1\n" in metrics
    finally:
        proxy.stop()


class CollectingProxy(http.server.ThreadingHTTPServer):
    """A proxy that passes a response on when it has all of it, as some do with event streams."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            response = httpx.get(self.server.upstream + self.path, timeout=60)
            self.send_response(response.status_code)
            self.send_header("content-type", response.headers["content-type"])
            self.send_header("content-length", str(len(response.content)))
            self.end_headers()
            self.wfile.write(response.content)

        def log_message(self, *_):
            """Says nothing."""

    def __init__(self, upstream):
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.upstream = upstream
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


def test_6_see_why_it_stalls(server, tmp_path):
    arguments = documented.command("loquent doctor", "--url")
    env = documented.environment(tmp_path)

    def streaming(url):
        run = [BINARY, *documented.replaced(arguments, "--url", url), "--json"]
        found = subprocess.run(run, env=env, capture_output=True, text=True, timeout=120)
        checks = json.loads(found.stdout)["checks"]
        return next(check for check in checks if check["check"] == "streaming")

    assert streaming(server.url)["verdict"] == "ok"
    with CollectingProxy(server.url) as proxy:
        held = streaming(proxy.url)
        proxy.shutdown()
    assert held["verdict"] == "fail" and "proxy_buffering off" in held["advice"]


def test_7_survive_a_bad_network(serve, tmp_path):
    server = serve(documented.command("loquent serve", "--host 0.0.0.0"))
    arguments = documented.command("loquent connect", "--url http")
    assert arguments[:2] == ["connect", "--url"]
    program = documented.block("python", "from openai import OpenAI")
    program = program.replace(f'base_url="{documented.SERVER}/v1", api_key="none"', "")
    base, key = documented.phrase(r"OPENAI_BASE_URL=(\S+) OPENAI_API_KEY=(\S+) python")
    assert base == f"{documented.PROXY}/v1"
    path = LossyPath(int(server.url.rsplit(":", 1)[1]), loss=0.0, seed=3)
    proxy = Proxy(path.url, tmp_path / "state", *arguments[3:])
    try:
        assert proxy.decided() == "QUIC"
        # A tunnel, and then a train's network.
        path.loss = 1.0
        env = documented.environment(tmp_path, OPENAI_BASE_URL=f"{proxy.url}/v1", OPENAI_API_KEY=key)
        run = subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True)
        while path.dropped < 3 and run.poll() is None:
            time.sleep(0.01)
        path.loss = 0.2
        printed, _ = run.communicate(timeout=100)
        assert path.dropped >= 3, "the network was not bad"
        with httpx.Client(base_url=server.url, timeout=60) as http:
            assert printed == streamed(http) and printed.startswith(ANSWER)
    finally:
        proxy.stop()
        path.close()


def test_8_limit_users_by_keys(serve, tmp_path):
    keys = documented.block("toml", "[[key]]", "requests_per_minute")
    limit = int(re.search(r"requests_per_minute = (\d+)", keys)[1])
    secret, batch = "a-secret-of-the-test", re.search(r'key = \["([^"]+)"', keys)[1]
    keys = re.sub(r'(key_sha256 = )"\w+"', rf'\1"{hashlib.sha256(secret.encode()).hexdigest()}"', keys)
    (tmp_path / "keys.txt").write_text(keys)
    (tmp_path / "keys.txt").chmod(0o600)
    arguments = documented.command("loquent serve", "--api-key-file keys.txt")
    server = serve(documented.replaced(arguments, "--api-key-file", str(tmp_path / "keys.txt")))
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    with httpx.Client(base_url=server.url, timeout=60) as http:

        def status(key):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            return http.post("/v1/chat/completions", json=asked, headers=headers).status_code

        assert (status(None), status("wrong"), status(secret)) == (401, 401, 200)
        # Its bucket fills up again while it is emptied, by a request a second.
        answers = [status(batch) for _ in range(2 * limit)]
        assert answers[:limit] == [200] * limit and 429 in answers
        assert status(secret) == 200, "the one's limit is not the other's"


def test_9_run_it_as_a_service(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed (Debian: apt-get install systemd)")
    listed = subprocess.run(["git", "ls-files", "*loquent.service"], cwd=REPOSITORY, capture_output=True, text=True)
    [unit] = listed.stdout.split()
    text = (REPOSITORY / unit).read_text()
    command = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)[1]
    mine = tmp_path / "loquent.service"
    mine.write_text(text.replace(command, os.path.abspath(BINARY)))
    run = subprocess.run(["systemd-analyze", "verify", str(mine)], capture_output=True, text=True, timeout=60)
    complaints = [line for line in run.stderr.splitlines() if "loquent" in line]
    assert (run.returncode, complaints) == (0, []), run.stderr
    flags = re.search(r"^ExecStart=\S+ (.*)", text, re.MULTILINE)[1].split()
    assert flags[0] == "serve"
    known = loquent(["serve", "--help"], documented.environment(tmp_path))
    assert all(flag in known for flag in flags if flag.startswith("--"))


def test_10_measure_it(server, tmp_path):
    arguments = documented.command("loquent bench load", "--url")
    arguments = [argument.replace(documented.SERVER, server.url) for argument in arguments]
    report = loquent(arguments, documented.environment(tmp_path), cwd=tmp_path)
    assert "TTFT" in report and "TPOT" in report
