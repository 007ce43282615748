"""Certificates by ACME from pebble, Let's Encrypt's server for tests, which really connects to check the names."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import socketserver
import ssl
import stat
import struct
import subprocess
import threading
import time

import httpx
import pytest
from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration
from cryptography.hazmat.primitives.serialization import Encoding

from conftest import BINARY, PATIENCE_S, REPOSITORY, Running, free_port

NAMES = ("llm.example.com", "chat.example.com")
DAY_S = 86_400
#: A life of which a third is enough for an order, on a busy machine too.
SHORT_S = 18


class NameServer(socketserver.ThreadingTCPServer):
    """Knows one address for all names: this machine's. It takes a query as pebble sends it, over TCP."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), None)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def finish_request(self, request, client_address):
        asked = request.recv(4096)[2:]
        question = asked[12 : asked.index(0, 12) + 5]
        is_a = question[-4:-2] == b"\0\1"
        answer = struct.pack(">HHHIH4B", 0xC00C, 1, 1, 0, 4, 127, 0, 0, 1) if is_a else b""
        reply = asked[:2] + struct.pack(">HHHHH", 0x8180, 1, is_a, 0, 0) + question + answer
        request.sendall(struct.pack(">H", len(reply)) + reply)


class Pebble:
    """An authority whose certificates live for `life_s`; it checks names at `tls_port` in place of 443."""

    def __init__(self, folder, name_server, tls_port, life_s, ports=None):
        self.ports = ports or (free_port(), free_port())
        listen, manage = (f"127.0.0.1:{port}" for port in self.ports)
        self.directory, self.manage = f"https://{listen}/dir", f"https://{manage}"
        self.ca = folder / "pebble.pem"
        settings = {
            "listenAddress": listen,
            "managementListenAddress": manage,
            "certificate": str(self.ca),
            "privateKey": str(folder / "pebble.key"),
            "httpPort": 1,
            "tlsPort": int(tls_port),
            "keyAlgorithm": "ecdsa",
            "profiles": {"default": {"description": "the only one", "validityPeriod": life_s}},
        }
        config = folder / "pebble.json"
        config.write_text(json.dumps({"pebble": settings}))
        if not self.ca.exists():
            make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout pebble.key -out pebble.pem"
            names = "-subj /CN=pebble -days 2 -addext subjectAltName=IP:127.0.0.1"
            subprocess.run(["openssl", *make.split(), *names.split()], cwd=folder, check=True, capture_output=True)
        self.log = folder / "pebble.log"
        command = [REPOSITORY / ".venv/bin/pebble", "-config", config, "-dnsserver", name_server.address]
        # It checks at once, and every order again.
        env = {**os.environ, "PEBBLE_VA_NOSLEEP": "1", "PEBBLE_AUTHZREUSE": "0"}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        self.root = self.until_it_answers()

    def until_it_answers(self):
        """Returns the certificate of its root, as soon as it tells it."""
        context = ssl.create_default_context(cafile=self.ca)
        with httpx.Client(verify=context) as client:
            for _ in range(PATIENCE_S * 20):
                with contextlib.suppress(httpx.ConnectError):
                    return client.get(f"{self.manage}/roots/0").text
                time.sleep(0.05)
        raise AssertionError("pebble does not answer: " + self.said())

    def said(self):
        return self.log.read_text()

    def orders(self):
        return len(re.findall("Added order", self.said()))

    def stop(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)


class Site:
    """A server with a folder of its own, and the authority that it orders from."""

    def __init__(self, folder, life_s=90 * DAY_S):
        self.folder, self.life_s, self.port = folder, life_s, str(free_port())
        self.name_server = NameServer()
        self.pebble = self.server = None
        self.open_authority()

    def open_authority(self, tls_port=None):
        """Starts the authority, which remembers nothing of an earlier one."""
        ports = self.pebble.ports if self.pebble else None
        self.pebble = Pebble(self.folder, self.name_server, tls_port or self.port, self.life_s, ports)

    def start(self):
        flags = ["--acme-domain", ",".join(NAMES), "--acme-directory", self.pebble.directory]
        flags += ["--acme-ca", str(self.pebble.ca), "--acme-email", "admin@example.com"]
        flags += ["--tls-dir", str(self.folder / "tls"), "--port", self.port, "--simulate", "inf"]
        self.server = Running("serve", *flags, env={"LOQUENT_LOG": "info"})
        assert self.server._announced.wait(PATIENCE_S) and self.server.url, "".join(self.server.log)
        return self

    def restart(self):
        self.server.stop()
        return self.start()

    def shown(self, name=NAMES[0]):
        """The certificate that clients get, whoever signed it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as plain:
            with context.wrap_socket(plain, server_hostname=name) as tls:
                return tls.getpeercert(binary_form=True)

    async def shown_over_quic(self, name=NAMES[0]):
        """The certificate that QUIC presents to a client that trusts the authority's root."""
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["loquent/1"], server_name=name)
        configuration.load_verify_locations(cadata=self.pebble.root.encode())
        async with (
            asyncio.timeout(PATIENCE_S),
            connect("127.0.0.1", int(self.port), configuration=configuration) as link,
        ):
            return link._quic.tls._peer_certificate.public_bytes(Encoding.DER)

    def get(self, path, name=NAMES[0]):
        """Asks as a client does that trusts the authority's root."""
        context = ssl.create_default_context(cadata=self.pebble.root)
        with httpx.Client(verify=context) as client:
            return client.get(f"https://127.0.0.1:{self.port}{path}", extensions={"sni_hostname": name})

    def until_trusted(self, other_than=None):
        """Waits until clients trust the server's certificate, and it is another; returns it."""
        for _ in range(PATIENCE_S * 5):
            with contextlib.suppress(httpx.ConnectError):
                before = self.shown()
                if self.get("/health").status_code == 200 and before == self.shown() != other_than:
                    return before
            time.sleep(0.2)
        raise AssertionError("".join(self.server.log) + self.pebble.said())

    def until_over_quic(self, other_than=None):
        """The same over QUIC, whose port takes a new certificate a moment later or earlier."""
        for _ in range(PATIENCE_S * 5):
            with contextlib.suppress(ConnectionError):
                if (shown := asyncio.run(self.shown_over_quic())) != other_than:
                    return shown
            time.sleep(0.2)
        raise AssertionError("".join(self.server.log))

    def file(self, suffix):
        return next((self.folder / "tls/acme").rglob(f"*{suffix}"))

    def stop(self):
        for part in (self.server, self.pebble):
            if part:
                part.stop()
        self.name_server.shutdown()
        self.name_server.server_close()


@pytest.fixture
def site(tmp_path):
    if not (REPOSITORY / ".venv/bin/pebble").exists():
        pytest.skip("pebble is not installed (tools/setup e2e, with Go)")
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate of this test's authority")
    sites = []

    def make(**settings):
        sites.append(Site(tmp_path, **settings))
        return sites[-1]

    yield make
    for one in sites:
        one.stop()


def test_a_certificate_is_ordered_for_all_names_and_kept_over_restarts(site):
    site = site().start()
    first = site.until_trusted()
    for name in NAMES:
        assert site.get("/health", name).status_code == 200
    # QUIC presents it too: it is an authority's, so that there is no hash to trust.
    assert site.until_over_quic() == first
    assert site.get("/.well-known/loquent").json()["certificate_sha256"] is None
    for suffix in ("account.json", ".pem", ".orders"):
        assert stat.S_IMODE(site.file(suffix).stat().st_mode) == 0o600

    site.restart()
    assert site.shown() == first and site.pebble.orders() == 1
    assert "of 127.0.0.1, valid until" in site.server.heard("Certificate:")

    # The authority is gone, and nothing is due.
    site.pebble.stop()
    site.restart()
    assert site.get("/health").status_code == 200 and site.shown() == first

    # It comes back without its accounts, and the certificate has been lost.
    site.open_authority()
    site.file(".pem").unlink()
    site.restart()
    assert site.until_trusted() != first
    assert not [line for line in site.server.log if "no certificate" in line]


def test_a_certificate_is_renewed_while_the_server_runs_and_stays_if_that_fails(site):
    site = site(life_s=SHORT_S).start()
    first = site.until_trusted()
    site.until_trusted(other_than=first)
    site.until_over_quic(other_than=first)
    assert site.server.process.poll() is None and site.pebble.orders() >= 2
    site.pebble.stop()
    told = site.server.heard("no new certificate")
    assert "cannot connect" in told and "The present one is valid until" in told
    kept = site.file(".pem").read_text()
    assert site.shown() == ssl.PEM_cert_to_DER_cert(kept[: kept.index("-----END")] + "-----END CERTIFICATE-----")


def test_a_name_that_does_not_lead_here_is_named_with_advice(site):
    site = site()
    site.pebble.stop()
    site.open_authority(tls_port=free_port())
    site.start()
    told = site.server.heard("no certificate for")
    assert re.search(r"(llm|chat)\.example\.com: .*connect", told), told
    assert "port 443 of the name leads to this server" in told and "The next try is at" in told
    # Health checks, which trust anybody, find the server meanwhile.
    with httpx.Client(verify=False) as client:
        assert client.get(f"https://127.0.0.1:{site.port}/health").status_code == 200
    # A restart tries again, but not for ever.
    for _ in range(4):
        site.restart()
        site.server.heard("no certificate for")
    site.restart()
    assert "within an hour" in site.server.heard("there were 5 orders")
    assert site.pebble.orders() == 5


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--acme-domain", "localhost"], "public names only"),
        (["--acme-domain", "llm.example.com,192.0.2.1"], '--acme-domain "192.0.2.1": it is an address'),
        (["--acme-domain", ""], "as DNS has it"),
        (["--acme-domain", "*.example.com"], "a wildcard needs"),
        (["--acme-domain", "a.example", "--acme-email", "nobody"], "--acme-email"),
        (["--acme-domain", "a.example", "--acme-directory", "http://a.example/dir"], "must begin with https://"),
        (["--acme-domain", "a.example", "--acme-ca", "/nowhere.pem"], "/nowhere.pem"),
        (["--acme-domain", "a.example", "--tls-dir", "/proc/nowhere"], "--tls-dir"),
        (["--acme-domain", "a.example", "--tls-self-signed"], "cannot be used with"),
        (["--acme-domain", "a.example", "--tls-cert", "a", "--tls-key", "b"], "cannot be used with"),
    ],
)
def test_what_cannot_be_ordered_is_said_at_the_start(tmp_path, flags, words):
    command = [BINARY, "serve", "--port", "0", "--simulate", "inf", *flags]
    env = {**os.environ, "LOQUENT_TLS_DIR": str(tmp_path)}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode != 0 and words in ended.stderr, ended.stderr
