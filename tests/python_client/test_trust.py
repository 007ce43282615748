"""Servers whose certificate no authority of the system signed."""

import asyncio
import hashlib
import ssl

import httpx2
import loquent
import openai
import pytest
from test_sdks import PACED, collect, question, sdk


@pytest.fixture
def certified(start, tmp_path):
    """URL of a server with a certificate of its own, the certificate's file and its fingerprint."""
    folder = tmp_path / "tls"
    server = start(*PACED, "--tls-self-signed", "--tls-dir", str(folder), wait=False)
    file = folder / "cert.pem"
    der = ssl.PEM_cert_to_DER_cert(file.read_text())
    return server.url, file, hashlib.sha256(der).hexdigest()


@pytest.mark.parametrize("quic", [True, False])
@pytest.mark.parametrize("by", ["ca", "fingerprint"])
def test_a_certificate_is_trusted_by_its_file_or_its_fingerprint(certified, by, quic):
    url, file, fingerprint = certified
    trust = {"ca": file} if by == "ca" else {"fingerprint": fingerprint}

    async def twin():
        async with loquent.AsyncClient(url, **trust) as client:
            return (await client.get("/health")).status_code

    with loquent.Client(url, quic=quic, head_start=10, **trust) as client:
        text, finish = collect(sdk(client), question(1, 20))
        assert text and finish == "stop"
        assert client.get("/health").status_code == 200
    assert asyncio.run(twin()) == 200


def test_no_other_certificate_is_trusted(certified):
    url, _, _ = certified
    for trust in ({}, {"fingerprint": ":".join(["00"] * 32)}):
        with loquent.Client(url, **trust) as client:
            with pytest.raises(openai.APIConnectionError):
                collect(sdk(client), question(1, 20))
            with pytest.raises(httpx2.ConnectError):
                client.get("/health")
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        loquent.Client(url, fingerprint="00")
