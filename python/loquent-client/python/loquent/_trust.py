"""Trust in a server's certificate, for the requests that httpx sends."""

from __future__ import annotations

import hashlib
import os
import ssl


def parse_fingerprint(text: str) -> bytes:
    """Returns the SHA-256 of a certificate, written with or without colons.

    Raises ValueError if it is none."""
    try:
        sha256 = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        sha256 = b""
    if len(sha256) != hashlib.sha256().digest_size:
        raise ValueError("fingerprint is the SHA-256 of a certificate: 64 hexadecimal digits, with or without colons")
    return sha256


def context(ca: str | os.PathLike[str] | None, fingerprint: str | None) -> ssl.SSLContext | None:
    """Returns the context with that trust; None if it is the usual one."""
    if fingerprint is not None:
        return _pinned(parse_fingerprint(fingerprint))
    return None if ca is None else ssl.create_default_context(cafile=os.fspath(ca))


def _pinned(sha256: bytes) -> ssl.SSLContext:
    """Returns a context that trusts one certificate, whatever its name and dates."""

    class Pinned:
        def do_handshake(self, *arguments: object) -> None:
            # Nothing of the program is sent before it returns.
            super().do_handshake(*arguments)  # type: ignore[misc]
            certificate = self.getpeercert(True)  # type: ignore[attr-defined]
            if certificate is None or hashlib.sha256(certificate).digest() != sha256:
                raise ssl.SSLCertVerificationError("the server's certificate has another fingerprint")

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.sslsocket_class = type("PinnedSocket", (Pinned, ssl.SSLSocket), {})  # blocking
    made.sslobject_class = type("PinnedObject", (Pinned, ssl.SSLObject), {})  # asyncio
    return made
