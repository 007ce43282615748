"""HTTPS without an authority: a certificate that the server makes and keeps, and one made by OpenSSL."""

import re
import subprocess

import httpx
import pytest

from conftest import BINARY, PATIENCE_S
from test_connect import Proxy

SHA256 = re.compile(r"SHA-256 ([0-9A-F:]{95})")


def fingerprint(server):
    return SHA256.search("".join(server.log))[1]


def chat(url, *flags):
    command = [BINARY, "chat", "--url", url, "--no-quic", *flags, "say=yes"]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.fixture
def kept(start, tmp_path):
    """Starts a server with the certificate that is kept in the test's folder."""

    def start_kept():
        flags = ("--simulate", "inf", "--tls-self-signed", "--tls-dir", str(tmp_path / "tls"))
        server = start(*flags, wait=False)
        context = httpx.create_ssl_context(verify=str(tmp_path / "tls/cert.pem"))
        with httpx.Client(verify=context) as client:
            assert client.get(f"{server.url}/health").status_code == 200
            told = client.get(f"{server.url}/.well-known/loquent").json()["https_certificate_sha256"]
        assert told == fingerprint(server).replace(":", "").lower()
        return server

    return start_kept


def test_a_kept_certificate_has_the_same_fingerprint_after_a_restart(kept):
    first = kept()
    first.stop()
    assert first.url.startswith("https://")
    assert fingerprint(kept()) == fingerprint(first)


def test_clients_trust_it_by_its_fingerprint_or_its_file_and_not_else(kept, tmp_path):
    server = kept()
    for flags in (
        ("--insecure-fingerprint", fingerprint(server)),
        ("--insecure-fingerprint", fingerprint(server).replace(":", "").lower()),
        ("--ca", str(tmp_path / "tls/cert.pem")),
    ):
        asked = chat(server.url, *flags)
        assert (asked.returncode, asked.stdout.strip()) == (0, "yes"), asked.stderr
    for flags in ((), ("--insecure-fingerprint", "00" * 32)):
        asked = chat(server.url, *flags)
        assert asked.returncode == 1 and "--insecure-fingerprint" in asked.stderr, asked.stderr
    wrong = chat(server.url, "--ca", str(tmp_path / "tls/key.pem"))
    assert wrong.returncode == 1 and "it has no certificate" in wrong.stderr


def test_a_load_test_trusts_it_as_the_chat_does(kept, tmp_path):
    server = kept()

    def load(*flags):
        command = [BINARY, "bench", "load", "--url", server.url, "-n", "2", "--max-tokens", "4", *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)

    trusting = ("--insecure-fingerprint", fingerprint(server))
    for flags in (trusting, (*trusting, "--http2", server.url), ("--ca", str(tmp_path / "tls/cert.pem"))):
        done = load(*flags)
        assert done.returncode == 0, done.stderr
    done = load()
    assert done.returncode == 1 and "--insecure-fingerprint" in done.stderr, done.stderr


def test_connect_trusts_it_over_https_and_quic(kept, tmp_path):
    server = kept()
    proxy = Proxy(server.url, tmp_path / "state", "--insecure-fingerprint", fingerprint(server))
    try:
        assert proxy.decided() == "QUIC"
        answer = proxy.sdk().chat.completions.create(model="any", messages=[{"role": "user", "content": "say=yes"}])
        assert answer.choices[0].message.content == "yes"
    finally:
        proxy.stop()


def test_a_certificate_of_openssl_works_with_ca(start, tmp_path):
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = [tmp_path / "cert.pem", tmp_path / "key.pem"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9", *names]
    subprocess.run([*make, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    server = start("--simulate", "inf", "--tls-cert", str(files[0]), "--tls-key", str(files[1]), wait=False)
    asked = chat(server.url, "--ca", str(files[0]))
    assert (asked.returncode, asked.stdout.strip()) == (0, "yes"), asked.stderr


def test_a_damaged_certificate_is_named_and_left_alone(tmp_path):
    (tmp_path / "cert.pem").write_text("half")
    command = [BINARY, "serve", "--port", "0", "--simulate", "inf", "--tls-self-signed", "--tls-dir", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 1 and "delete it and its key" in ended.stderr
    assert (tmp_path / "cert.pem").read_text() == "half"
