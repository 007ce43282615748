"""Tokens of an identity provider in the place of keys, with openai-python, unmodified."""

import base64
import http.server
import json
import subprocess
import threading
import time

import httpx
import openai
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from conftest import BINARY
from test_usage import usage_of


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value, size=None):
    return encoded(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


class Provider:
    """An identity provider with a key of each kind."""

    def __init__(self, name):
        self.name = name
        self.rsa = rsa.generate_private_key(65537, 2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())

    def key_set(self):
        rsa_key, ec_key = self.rsa.public_key().public_numbers(), self.ec.public_key().public_numbers()
        both = [
            {"kty": "RSA", "alg": "RS256", "n": number(rsa_key.n), "e": number(rsa_key.e)},
            {"kty": "EC", "crv": "P-256", "x": number(ec_key.x, 32), "y": number(ec_key.y, 32)},
        ]
        return json.dumps({"keys": [{**key, "kid": f"{self.name}-{key['kty']}", "use": "sig"} for key in both]})

    def token(self, kind="EC", **claims):
        claims = {"sub": "ann", "aud": "loquent", "exp": int(time.time()) + 600, **claims}
        head = {"alg": {"EC": "ES256", "RSA": "RS256"}[kind], "kid": f"{self.name}-{kind}"}
        text = f"{encoded(json.dumps(head).encode())}.{encoded(json.dumps(claims).encode())}"
        if kind == "RSA":
            signature = self.rsa.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        else:
            r, s = decode_dss_signature(self.ec.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
            signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
        return f"{text}.{encoded(signature)}"


@pytest.fixture
def provider():
    return Provider("one")


@pytest.fixture
def key_set(provider, tmp_path):
    file = tmp_path / "jwks.json"
    file.write_text(provider.key_set())
    return file


def ask(server, token):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=token, max_retries=0)
    question = [{"role": "user", "content": "What is token streaming?"}]
    return client.chat.completions.create(model="any", messages=question, max_tokens=4, store=True)


def test_whoever_has_a_token_is_a_client_of_its_own(start, provider, key_set):
    server = start("--jwt-keys", str(key_set), "--jwt-audience", "loquent", "--api-key", "sk-key")
    answer = ask(server, provider.token("EC"))
    assert ask(server, provider.token("RSA", sub="bob")).choices
    assert ask(server, "sk-key").choices
    stored = f"{server.url}/v1/chat/completions/{answer.id}"
    for token, status in [
        (provider.token("RSA"), 200),  # ann's, by another of the provider's keys
        (provider.token(sub="bob"), 404),
        ("sk-key", 404),
        (Provider("one").token(), 401),
        (provider.token()[:-6] + "AAAAAA", 401),
    ]:
        found = httpx.get(stored, headers={"authorization": f"Bearer {token}"})
        assert found.status_code == status
    with pytest.raises(openai.AuthenticationError) as old:
        ask(server, provider.token(exp=int(time.time()) - 60))
    assert "expired" in old.value.message
    with pytest.raises(openai.AuthenticationError) as foreign:
        ask(server, provider.token(aud="other"))
    assert "audience" in foreign.value.message
    assert httpx.get(f"{server.url}/v1/models").status_code == 401


def test_a_table_limits_each_subject_and_names_admins(start, provider, key_set, tmp_path):
    table = tmp_path / "keys.toml"

    def write(text):
        new = tmp_path / "new"
        new.write_text(text)
        new.chmod(0o600)
        new.rename(table)

    write('[jwt]\nrequests_per_minute = 2\nadmins = ["bob"]\n')
    flags = ["--jwt-keys", str(key_set), "--jwt-audience", "loquent", "--api-key-file", str(table)]
    server = start(*flags)
    ann, bob = provider.token(), provider.token(sub="bob")
    # Requests that arrive while the budget refills do not change what comes of more than it holds.
    with pytest.raises(openai.RateLimitError, match="2 requests per minute"):
        for _ in range(5):
            ask(server, ann)
    assert ask(server, bob).choices, "each has a budget of its own"

    def reads_all(token):
        answer = httpx.get(f"{server.url}/v1/usage?key=%2A", headers={"authorization": f"Bearer {token}"})
        return answer.status_code

    assert (reads_all(ann), reads_all(bob)) == (403, 200)
    write('[jwt]\nadmins = ["ann"]\n')
    until = time.monotonic() + 30
    while (reads_all(ann), reads_all(bob)) != (200, 403):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert [ask(server, ann).usage.total_tokens > 0 for _ in range(3)] == [True] * 3


def test_a_table_for_tokens_opens_no_server_without_them(tmp_path):
    table = tmp_path / "keys.toml"
    table.write_text("[jwt]\nweight = 2\n")
    table.chmod(0o600)
    ended = subprocess.run([BINARY, "serve", "--simulate", "inf", "--port", "0", "--api-key-file", table],
                           capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0 and "--jwt-keys" in ended.stderr


def test_usage_is_counted_by_subject(start, provider, key_set):
    server = start("--jwt-keys", str(key_set), "--jwt-audience", "loquent")
    used = ask(server, provider.token()).usage
    headers = {"authorization": f"Bearer {provider.token()}"}
    until = time.monotonic() + 30
    while not (days := httpx.get(f"{server.url}/v1/usage", headers=headers).json()["data"]):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert [(day["key"], day["total_tokens"]) for day in days] == [("jwt:ann", used.total_tokens)]


def test_what_a_subject_has_used_survives_a_restart(start, provider, key_set, tmp_path):
    flags = ("--jwt-keys", str(key_set), "--jwt-audience", "loquent", "--store", str(tmp_path / "store"))
    tokens = 0
    for requests in (1, 2):
        # The new process does not know the subject before its first request.
        server = start(*flags)
        tokens += ask(server, provider.token()).usage.total_tokens
        assert usage_of(server, requests, provider.token())["total"]["total_tokens"] == tokens
        server.terminate()
        server.process.wait(20)


def test_keys_are_fetched_from_a_url_and_a_new_file_replaces_the_old(start, provider, key_set):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = provider.key_set().encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as source:
        threading.Thread(target=source.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{source.server_address[1]}/jwks"
        server = start("--jwt-keys", url, "--jwt-audience", "loquent")
        assert ask(server, provider.token()).choices
        source.shutdown()
    server = start("--jwt-keys", str(key_set), "--jwt-audience", "loquent")
    later = Provider("two")
    key_set.write_text(later.key_set())
    until = time.monotonic() + 30
    while True:
        try:
            assert ask(server, later.token()).choices
            break
        except openai.AuthenticationError:
            assert time.monotonic() < until
            time.sleep(0.1)
    with pytest.raises(openai.AuthenticationError):
        ask(server, provider.token())


@pytest.mark.parametrize(
    "keys, said",
    [("http://id.example/jwks", "use https"), ("/nonexistent/jwks.json", "jwks.json"), (__file__, "no JSON")],
)
def test_keys_that_cannot_be_used_are_named_at_the_start(keys, said):
    command = [BINARY, "serve", "--port", "0", "--jwt-keys", keys, "--jwt-audience", "loquent"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert "--jwt-keys" in ended.stderr and said in ended.stderr
