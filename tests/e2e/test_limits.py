"""The server with few file descriptors, and with little address space."""

import resource
import socket
import subprocess

import httpx

from conftest import BINARY, Server


def test_few_descriptors_bound_the_connections_and_nothing_breaks(monkeypatch):
    popen = subprocess.Popen

    def confined(*args, **kwargs):
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 160))
        return popen(*args, preexec_fn=limit, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", confined)
    server = Server("--simulate", "20", "--no-quic")
    clients = []
    try:
        server.wait()
        said = [line for line in server.log if "may open only 160 files" in line]
        assert len(said) == 1 and "at most 64 connections" in said[0], server.log
        address = httpx.URL(server.url)
        for _ in range(300):
            clients.append(socket.create_connection((address.host, address.port)))
        for path in ("/health", "/ready", "/metrics"):
            assert httpx.get(server.url + path).status_code == 200
        assert httpx.get(f"{server.url}/v1/models").status_code == 503
        assert not [line for line in server.log if "cannot accept" in line], server.log
        for client in clients:
            client.close()
        transport = httpx.HTTPTransport(retries=3)
        with httpx.Client(transport=transport) as client:
            while client.get(f"{server.url}/v1/models").status_code != 200:
                pass
    finally:
        for client in clients:
            client.close()
        server.stop()


def test_too_little_address_space_is_named_with_what_to_do():
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20))
    command = [BINARY, "serve", "--simulate", "20", "--no-quic", "--port", "0"]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "ulimit -v" in done.stderr, done.stderr
