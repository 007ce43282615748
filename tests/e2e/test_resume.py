"""Answers that outlive their reader's connection, over server-sent events."""

import contextlib
import json
import shutil
import signal
import ssl
import subprocess
import sys

import httpx
import pytest

PACE = ("--simulate", "200")
BODY = {
    "stream": True,
    "resumable": True,
    "messages": [{"role": "user", "content": "tokens=300"}],
}
# Reads until it has seen some text, says what it saw, and waits to be killed.
READER = """
import sys, json, httpx
url, body, events = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
with httpx.stream("POST", url, json=body, timeout=60) as response:
    print(response.headers["x-loquent-stream-id"], response.headers["x-loquent-stream-token"])
    for line in response.iter_lines():
        if line:
            print(line, flush=True)
"""


@pytest.fixture(scope="module")
def paced():
    from conftest import Server

    running = Server(*PACE, "--resume-grace-s", "20").wait()
    yield running
    running.stop()


@pytest.fixture
def whole(paced):
    """The text that every reader must get."""
    body = {**BODY, "stream": False, "resumable": False}
    answer = httpx.post(f"{paced.url}/v1/chat/completions", json=body, timeout=60).json()
    return answer["choices"][0]["message"]["content"]


def read(lines, events=None):
    """Text and last id of an event stream, and whether it was done; stops after `events`."""
    text, last, done, seen = "", None, False, 0
    for line in lines:
        if line.startswith("id: "):
            last = line[4:]
        elif line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
            seen += 1
            if events and seen >= events and last:
                break
    return text, last, done


@contextlib.contextmanager
def resumed(server, name, last, **params):
    headers = {"x-loquent-stream-token": name[1]}
    if last is not None:
        headers["last-event-id"] = last
    url = f"{server.url}/v1/streams/{name[0]}"
    with httpx.stream("GET", url, headers=headers, params=params, timeout=60) as response:
        yield response


def begin(server, http, events):
    """Begins an answer, reads `events` of it and leaves; its name and what was read."""
    with http.stream("POST", f"{server.url}/v1/chat/completions", json=BODY) as response:
        assert response.status_code == 200
        name = (response.headers["x-loquent-stream-id"], response.headers["x-loquent-stream-token"])
        return name, read(response.iter_lines(), events)


def test_a_killed_reader_goes_on_where_it_ended(paced, whole):
    url = f"{paced.url}/v1/chat/completions"
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, url, json.dumps(BODY), "40"],
        stdout=subprocess.PIPE,
        text=True,
    )
    name = reader.stdout.readline().split()
    first, last, done = read(map(str.strip, reader.stdout), 40)
    reader.send_signal(signal.SIGKILL)
    reader.wait(10)
    reader.stdout.close()
    assert first and not done
    with resumed(paced, name, last) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        rest, _, done = read(response.iter_lines())
    assert done
    assert first + rest == whole


def test_a_resume_of_a_resume_and_by_query(paced, whole):
    with httpx.Client(timeout=60) as http:
        name, (text, last, _) = begin(paced, http, 20)
    for _ in range(3):
        with resumed(paced, name, last) as response:
            more, last, done = read(response.iter_lines(), 20)
            text += more
            assert not done
    url = f"{paced.url}/v1/streams/{name[0]}?token={name[1]}&from={last}"
    with httpx.stream("GET", url, timeout=60) as response:
        rest, _, done = read(response.iter_lines())
    assert done and text + rest == whole
    with resumed(paced, name, None) as response:  # and from its beginning, after its end
        assert read(response.iter_lines())[0] == whole


def test_two_readers_read_one_answer_at_once(paced, whole):
    with httpx.Client(timeout=60) as http:
        with http.stream("POST", f"{paced.url}/v1/chat/completions", json=BODY) as response:
            name = [response.headers[f"x-loquent-stream-{part}"] for part in ("id", "token")]
            lines = response.iter_lines()
            begun = read(lines, 20)[0]
            with resumed(paced, name, "0") as second:
                assert read(second.iter_lines())[0] == whole
            assert begun + read(lines)[0] == whole


def test_strangers_learn_nothing(paced):
    with httpx.Client(timeout=60) as http:
        name, (_, last, _) = begin(paced, http, 5)
        wrong = (name[0], name[1][:-1] + ("0" if name[1][-1] != "0" else "1"))
        unknown = (wrong[1], name[1])
        answers = []
        for who in (wrong, unknown, ("x", "y")):
            with resumed(paced, who, last) as response:
                answers.append((response.status_code, response.read()))
            url = f"{paced.url}/v1/streams/{who[0]}"
            gone = http.delete(url, headers={"x-loquent-stream-token": who[1]})
            answers.append((gone.status_code, gone.content))
        assert set(answers) == {(404, answers[0][1])}
        with resumed(paced, name, str(int(last) + 10_000_000)) as response:
            assert response.status_code == 404
        assert http.delete(f"{paced.url}/v1/streams/{name[0]}?token={name[1]}").status_code == 204


def test_delete_stops_the_generation(paced):
    with httpx.Client(timeout=60) as http:
        body = {**BODY, "ignore_eos": True, "max_tokens": 5000}
        with http.stream("POST", f"{paced.url}/v1/chat/completions", json=body) as response:
            name = [response.headers[f"x-loquent-stream-{part}"] for part in ("id", "token")]
            lines = response.iter_lines()
            read(lines, 5)
            url = f"{paced.url}/v1/streams/{name[0]}"
            assert http.delete(url, headers={"x-loquent-stream-token": name[1]}).status_code == 204
            with pytest.raises(httpx.RemoteProtocolError):
                for _ in lines:
                    pass
        assert http.delete(url, headers={"x-loquent-stream-token": name[1]}).status_code == 404
        with resumed(paced, name, None) as response:
            assert response.status_code == 404


def test_what_is_not_resumable_has_no_name(paced):
    body = {**BODY, "resumable": False}
    with httpx.stream("POST", f"{paced.url}/v1/chat/completions", json=body) as response:
        assert "x-loquent-stream-id" not in response.headers


def test_where_quic_is(start):
    server = start("--simulate", "inf")
    offers = [httpx.get(f"{server.url}{path}").json() for path in ("/.well-known/loquent", "/v1/delivery")]
    # A document may have members that mean nothing.
    offer, alias = [{name: one[name] for name in one if name != "grease"} for one in offers]
    assert offer == alias
    assert offer["version"] == 1 and offer["path"] == "/loquent/1"
    assert offer["port"] == int(server.url.rsplit(":", 1)[1])
    assert len(bytes.fromhex(offer["certificate_sha256"])) == 32
    without = start("--simulate", "inf", "--no-quic")
    assert httpx.get(f"{without.url}/.well-known/loquent").status_code == 404


def test_https_from_files(start, tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate of this test")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*make, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    server = start("--simulate", "inf", "--tls-cert", cert, "--tls-key", key, wait=False)
    assert server.url.startswith("https://")
    context = ssl.create_default_context(cafile=cert)
    offer = httpx.get(f"{server.url}/.well-known/loquent", verify=context).json()
    assert offer["certificate_sha256"] is None  # an authority's: no hash to trust
