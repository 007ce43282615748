"""`loquent doctor` finds real faults: a blocked UDP port, a proxy that holds streams back, a wrong clock, an expired
certificate, a truncated model, too few descriptors."""

import contextlib
import email.utils
import http.client
import json
import os
import resource
import shutil
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import httpx
import pytest

from authority import certificate
from conftest import BINARY, free_port
from relay import HIDDEN_HOST, need_hidden_host

#: The simulated engine starts at once, and the checks concern the way to it.
SIMULATED = ("--simulate", "inf")


class Checkup:
    """What `loquent doctor --json` found."""

    def __init__(self, *args, env=None, **kwargs):
        # The environment of whoever runs the tests may hold flags of a server.
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LOQUENT_")}
        command = [BINARY, "doctor", "--json", *args]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=90, env={**clean, **(env or {})}, **kwargs
        )
        assert done.returncode in (0, 1), done.stderr
        self.sheet = json.loads(done.stdout)
        self.code = done.returncode
        assert (self.sheet["verdict"] == "fail") == (self.code == 1), self.sheet

    def of(self, check):
        """The worst finding of `check`, and of several as bad ones the last."""
        found = [one for one in self.sheet["checks"] if one["check"] == check]
        assert found, f"no {check} in {self.sheet}"
        return max(reversed(found), key=lambda one: ["skip", "ok", "warn", "fail"].index(one["verdict"]))

    def verdict(self, check):
        return self.of(check)["verdict"]


class Proxy:
    """An HTTP proxy in front of a server, on the port of the same number or a free one, with a fault of its own."""

    def __init__(self, server_url, port=0, hold=False, date_shift_s=None):
        upstream = urlsplit(server_url)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                connection = http.client.HTTPConnection(upstream.hostname, upstream.port, timeout=60)
                connection.request("GET", self.path)
                response = connection.getresponse()
                body = iter([response.read()]) if hold else iter(response.read1, b"")
                self.send_response_only(response.status)
                for name, value in response.getheaders():
                    if name.lower() in ("transfer-encoding", "connection", "content-length"):
                        continue
                    if name.lower() == "date" and date_shift_s is not None:
                        value = email.utils.formatdate(time.time() + date_shift_s, usegmt=True)
                    self.send_header(name, value)
                self.send_header("via", "1.1 meddler")
                self.end_headers()
                for piece in body:
                    self.wfile.write(piece)
                    self.wfile.flush()
                connection.close()

            def log_message(self, *_):
                pass

        self.listener = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.listener.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.listener.server_port}"
        self.thread = threading.Thread(target=self.listener.serve_forever, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown()
        self.listener.server_close()
        self.thread.join(10)


@pytest.fixture(scope="module")
def paced():
    """A server that answers at once, shared by the tests."""
    from conftest import Server

    running = Server(*SIMULATED).wait()
    yield running
    running.stop()


# This machine.


def test_a_machine_without_faults(server):
    found = Checkup("--port", str(free_port()))
    checks = {one["check"] for one in found.sheet["checks"]}
    assert checks >= {"processor", "gpu", "memory", "descriptors", "port", "clock"}
    assert found.code == 0, found.sheet
    assert "kernels" in found.of("processor")["found"] or "llama.cpp" in found.of("processor")["found"]


def test_a_server_that_runs_already_is_no_fault(server):
    found = Checkup("--port", str(urlsplit(server.url).port))
    assert found.verdict("port") == "ok"
    assert "--url" in found.of("port")["found"]


def test_a_port_in_use_is_found():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = Checkup("--port", str(taken.getsockname()[1]))
    assert found.verdict("port") == "fail"
    assert "--port" in found.of("port")["advice"]


def test_too_few_descriptors_are_found():
    def limit(most):
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    assert Checkup("--port", str(free_port()), preexec_fn=limit(128)).verdict("descriptors") == "fail"
    few = Checkup("--port", str(free_port()), preexec_fn=limit(1024))
    assert few.verdict("descriptors") == "warn"
    assert "LimitNOFILE" in few.of("descriptors")["advice"]


def test_a_truncated_model_is_found(tmp_path):
    whole = tmp_path / "whole.gguf"
    shutil.copy("models/loquent-tiny.gguf", whole)
    assert Checkup(str(whole), "--port", str(free_port())).verdict("model") == "ok"
    half = tmp_path / "half.gguf"
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    found = Checkup(str(half), "--port", str(free_port()))
    assert found.verdict("model") == "fail"
    assert "truncated" in found.of("model")["found"]
    assert Checkup(str(tmp_path / "none.gguf"), "--port", str(free_port())).verdict("model") == "fail"


@pytest.mark.parametrize("days, verdict", [(60, "ok"), (7, "warn"), (-3, "fail")])
def test_the_end_of_a_certificate_is_found_in_its_file(tmp_path, days, verdict):
    _, chain, key = certificate(tmp_path, days)
    found = Checkup("--port", str(free_port()), "--tls-cert", chain, "--tls-key", key)
    assert found.verdict("certificate") == verdict, found.sheet


# The way to a server.


def test_a_way_without_faults(paced):
    found = Checkup("--url", paced.url)
    assert found.code == 0, found.sheet
    for check in ("server", "clock", "streaming", "udp"):
        assert found.verdict(check) == "ok", found.of(check)


def test_a_server_that_is_not_there_is_a_failure():
    found = Checkup("--url", f"http://127.0.0.1:{free_port()}")
    assert found.verdict("server") == "fail"
    assert "nothing listens" in found.of("server")["found"]


def test_a_missing_key_is_found(start):
    server = start(*SIMULATED, "--api-key", "secret")
    without = Checkup("--url", server.url)
    assert without.verdict("key") == "fail"
    assert without.verdict("streaming") == "skip"
    assert Checkup("--url", server.url, "--api-key", "secret").code == 0


def test_a_server_without_quic_is_warned_of(start):
    server = start(*SIMULATED, "--no-quic")
    found = Checkup("--url", server.url)
    assert (found.code, found.verdict("udp")) == (0, "warn")


@pytest.mark.parametrize("lost, words", [("both", "dropped on the way"), ("answers", "answers are lost")])
def test_a_blocked_udp_port_is_found(relays, lost, words):
    _, relay = relays(*SIMULATED)
    assert Checkup("--url", relay.url).verdict("udp") == "ok"
    if lost == "both":
        relay.dark = True
    else:
        # The relay's second direction leads to the client.
        whole = relay._pass_datagram
        relay._pass_datagram = lambda direction, *rest: whole(direction, *rest) if direction == 0 else None
    found = Checkup("--url", relay.url)
    assert found.verdict("udp") == "fail"
    assert words in found.of("udp")["found"]
    assert found.verdict("streaming") == "ok", "TCP still passes"


def test_a_port_that_only_tcp_is_passed_on_from_is_found(start):
    need_hidden_host()
    proxy = None
    while proxy is None:
        server = start("--host", HIDDEN_HOST, *SIMULATED)
        # Another test may have the same port on the other address.
        with contextlib.suppress(OSError):
            proxy = Proxy(server.url, port=urlsplit(server.url).port)
    with proxy:
        found = Checkup("--url", proxy.url)
    assert found.verdict("udp") == "fail"
    assert "nothing listens on UDP" in found.of("udp")["found"]


def test_a_proxy_that_holds_streams_back_is_found(paced):
    with Proxy(paced.url) as honest:
        found = Checkup("--url", honest.url)
        assert found.verdict("streaming") == "ok", found.of("streaming")
        assert "meddler" in found.of("server")["found"]
    with Proxy(paced.url, hold=True) as proxy:
        found = Checkup("--url", proxy.url)
    assert found.verdict("streaming") == "fail", found.of("streaming")
    assert "meddler" in found.of("streaming")["found"] and found.of("streaming")["advice"]


@pytest.mark.parametrize("ignore, verdict", [("", "ok"), ("proxy_ignore_headers X-Accel-Buffering;", "fail")])
def test_nginx_holds_streams_back_where_it_is_told_to(paced, tmp_path, ignore, verdict):
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed (Debian: apt-get install nginx-light)")
    port = free_port()
    folders = "".join(
        f"{kind}_temp_path {tmp_path};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}\n"
        f"http {{ access_log off; {folders} server {{ listen 127.0.0.1:{port}; location / {{"
        f" proxy_pass {paced.url}; {ignore} }} }} }}\n"
    )
    running = subprocess.Popen([nginx, "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "error.log")])
    try:
        with httpx.Client(transport=httpx.HTTPTransport(retries=8)) as client:
            assert client.get(f"http://127.0.0.1:{port}/health").status_code == 200
        found = Checkup("--url", f"http://127.0.0.1:{port}")
        assert found.verdict("streaming") == verdict, found.of("streaming")
    finally:
        running.terminate()
        running.wait(20)


@pytest.mark.parametrize("shift_s, verdict", [(5, "ok"), (-120, "warn"), (7200, "fail")])
def test_a_wrong_clock_is_found(paced, shift_s, verdict):
    with Proxy(paced.url, date_shift_s=shift_s) as proxy:
        found = Checkup("--url", proxy.url)
    assert found.verdict("clock") == verdict, found.of("clock")


@pytest.mark.parametrize("days, verdict, words", [(60, "ok", "59 days"), (-3, "fail", "expired")])
def test_the_certificate_that_a_server_presents_is_checked(start, tmp_path, days, verdict, words):
    authority, chain, key = certificate(tmp_path, days)
    # Its readiness is asked for by the test's own client, which does not know the authority.
    server = start(*SIMULATED, "--tls-cert", chain, "--tls-key", key, wait=False)
    url = f"https://localhost:{urlsplit(server.url).port}"
    found = Checkup("--url", url, env={"SSL_CERT_FILE": authority})
    assert found.verdict("certificate") == verdict, found.sheet
    assert words in found.of("certificate")["found"]
    if verdict == "ok":
        assert found.code == 0, found.sheet
        stranger = Checkup("--url", url)
        assert "authority" in stranger.of("certificate")["found"]


def test_people_get_lines_without_colours_in_a_pipe(server):
    done = subprocess.run([BINARY, "doctor", "--url", "http://127.0.0.1:1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "\n  fail  server " in done.stdout and "→" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stdout.endswith("1 failure, 0 warnings.\n")
