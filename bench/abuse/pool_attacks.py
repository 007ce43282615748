"""Attacks on what all clients share in front of the engine: queues, memory, threads, kept answers.

Each fills one pool with work that is bounded for one request, and that one key sends again and again.
"""

import asyncio
import functools
import itertools
import json
import random

from target import abort, send
from tcp_attacks import CHAT, HOLD_S, TEXT, prompt

KIB = 1 << 10
#: Words of prompts that wait: with all lengths, the last token of a queue is taken too.
LENGTHS = (12_000, 3_000, 300, 20, 1)
#: Rules of a grammar that doubles with each of them.
DOUBLINGS = 40
numbers = itertools.count()


async def waiting_prompts(target, attack):
    asked = prompt("a " * random.choice(LENGTHS), max_tokens=400, stream=True)
    await send(target, attack, target.request(TEXT, asked), read_all=True)


async def bodies_held_back(target, attack, length):
    """All of a body but its last byte, and then silence."""
    reader, writer = await target.connect()
    try:
        writer.write(target.head(TEXT, length) + b" " * (length - 1))
        line = await asyncio.wait_for(reader.readline(), HOLD_S)
        target.count(attack, line.split()[1].decode() if line else "closed")
    finally:
        abort(writer)


async def small_bodies_held_back(target, attack):
    await bodies_held_back(target, attack, 64 * KIB - 1)


async def large_bodies_held_back(target, attack):
    await bodies_held_back(target, attack, 8 * KIB * KIB - 1)


async def doubling_grammars(target, attack):
    """A grammar of a few hundred bytes; each is another one, so that no cache of refusals knows it."""
    rules = [f"r{n} ::= r{n + 1} r{n + 1}" for n in range(DOUBLINGS)]
    grammar = "\n".join(["root ::= r0", *rules, f'r{DOUBLINGS} ::= "{next(numbers)}"'])
    messages = [{"role": "user", "content": "a"}]
    await send(target, attack, target.request(CHAT, {"messages": messages, "grammar": grammar, "max_tokens": 4}))


@functools.cache
def body(build):
    """A large body, built once: what an attacker spends must not slow its other attacks."""
    return json.dumps(build()).encode()


def beyond_the_context():
    return prompt("1 " * KIB * KIB)


def long_text():
    return {"content": "1 " * 500_000}


def long_message():
    return {"model": "a", "max_tokens": 1, "messages": [{"role": "user", "content": "1 " * 500_000}]}


async def prompts_beyond_the_context(target, attack):
    await send(target, attack, target.request(TEXT, body(beyond_the_context)))


async def counted_texts(target, attack):
    await send(target, attack, target.request("/tokenize", body(long_text)), read_all=True)
    await send(target, attack, target.request("/v1/messages/count_tokens", body(long_message)))


async def kept_echoes(target, attack):
    """Resumable answers that are long at once, since they repeat their prompt, and are kept when they have ended."""
    asked = prompt("ab " * 5_000, max_tokens=1, echo=True, stream=True, resumable=True)
    await send(target, attack, target.request(TEXT, asked), read_all=True)


async def exchange(target, request):
    """The JSON of a response, or nothing if it is no success."""
    reader, writer = await target.connect()
    try:
        writer.write(request)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HOLD_S)
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        said = await asyncio.wait_for(reader.readexactly(length), HOLD_S)
        return json.loads(said) if b" 200 " in head.split(b"\r\n")[0] else None
    finally:
        abort(writer)


async def counted_browser_tokens(target, attack):
    """Tokens whose requests the server counts: each is used once, and has more left."""
    made = await exchange(target, target.request("/v1/tokens", {"expires_in": 3600, "max_requests": 2}))
    if not made:
        return target.count(attack, "not made")
    await send(target, attack, target.head("/v1/models", None, method="GET", key=made["token"]))


async def filtered_lists(target, attack):
    """Lists of what this key has stored, by metadata that nothing has."""
    asked = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "store": True, "metadata": {"a": "b"}}
    await send(target, attack, target.request(CHAT, asked))
    for _ in range(10):
        path = f"/v1/chat/completions?limit=100&metadata%5Ba%5D={next(numbers)}"
        await send(target, attack, target.head(path, None, method="GET"))


ATTACKS = {
    "waiting prompts": (waiting_prompts, 120, 0.5),
    "small bodies held back": (small_bodies_held_back, 256, 0.5),
    "large bodies held back": (large_bodies_held_back, 12, 0.5),
    "doubling grammars": (doubling_grammars, 60, 0.2),
    "prompts beyond the context": (prompts_beyond_the_context, 12, 0.2),
    "long texts to count": (counted_texts, 16, 0.2),
    "echoes to keep": (kept_echoes, 12, 0.1),
    "counted browser tokens": (counted_browser_tokens, 8, 0.01),
    "filtered lists": (filtered_lists, 20, 0.1),
}
