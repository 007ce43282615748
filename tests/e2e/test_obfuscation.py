"""What an observer of an encrypted stream learns from the lengths of its records."""

import collections
import json
import math
import random
import shutil
import socket
import ssl
import subprocess
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from conftest import REPOSITORY, Server

#: The type of a record that carries data.
APPLICATION_DATA = 23
#: Records with more tokens are left out: each number of tokens needs samples enough.
MOST_TOKENS = 3


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory):
    """A server with the bundled model and TLS, and a context that trusts it."""
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate of this test")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*make, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    server = Server("--tls-cert", cert, "--tls-key", key).wait_announced()
    context = ssl.create_default_context(cafile=cert)
    with httpx.Client(base_url=server.url, verify=context) as http:
        while http.get("/ready").status_code != 200:
            assert server.process.poll() is None, "".join(server.log)
    yield server, context
    server.stop()


def read_exactly(sock, count):
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


class RecordReader:
    """A TLS client that decrypts one record at a time, so that it knows what each one carries."""

    def __init__(self, url, context):
        at = urlsplit(url)
        self._sock = socket.create_connection((at.hostname, at.port), timeout=60)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=at.hostname)
        self._until_done(self._tls.do_handshake)

    def _take_record(self):
        head = read_exactly(self._sock, 5)
        body = read_exactly(self._sock, int.from_bytes(head[3:], "big"))
        self._in.write(head + body)
        return head[0], len(body)

    def _until_done(self, step):
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._sock.sendall(self._out.read())
                self._take_record()
            finally:
                self._sock.sendall(self._out.read())

    def ask(self, path, body):
        """Sends a request; yields the length and the text of each record of the response."""
        body = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        self._tls.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._sock.sendall(self._out.read())
        while True:
            try:
                kind, length = self._take_record()
                assert kind == APPLICATION_DATA
                yield length, self._tls.read(1 << 20)
            except ssl.SSLWantReadError:
                pass  # a session ticket
            except (EOFError, ssl.SSLZeroReturnError):
                return self._sock.close()


def tokens_of(record):
    """The texts of the tokens in a record; none if it carries anything else."""
    events = [json.loads(line[6:]) for line in record.split(b"\n") if line.startswith(b"data: {")]
    choices = [chunk["choices"][0] for chunk in events if chunk["choices"]]
    if len(choices) < len(events) or any(choice["finish_reason"] for choice in choices):
        return []
    return [choice["text"] for choice in choices]


def lengths(server, context, options, least=1000):
    """Of each record with one token or a few: their number, its length on the wire, and their length.

    On a busy machine a record often carries several tokens, whose number is no secret, or as much as a record can,
    which ends anywhere; such records are left out.
    """
    lines = (REPOSITORY / "bench/corpora/chat.jsonl").read_text().splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    found = []
    for seed, prompt in enumerate(prompts):
        body = {"prompt": prompt, "max_tokens": 200, "ignore_eos": True, "seed": seed, "stream": True, **options}
        ends_whole = True
        for length, record in RecordReader(server.url, context).ask("/v1/completions", body):
            begins_whole, ends_whole = ends_whole, record.endswith(b"\r\n")
            tokens = tokens_of(record) if begins_whole and ends_whole else []
            if 0 < len(tokens) <= MOST_TOKENS:
                found.append((len(tokens), length, len("".join(tokens).encode())))
        if len(found) >= least:
            return found
    raise AssertionError(f"only {len(found)} records carried few tokens")


def classes(samples):
    """The samples' pairs of lengths, by number of tokens."""
    by_count = collections.defaultdict(list)
    for count, *pair in samples:
        by_count[count].append(tuple(pair))
    return by_count.values()


def mutual_information(samples):
    """What a record's length says of its text's, in bits, where the number of tokens is known.

    The plug-in estimate; its bias is upwards.
    """
    bits = 0
    for pairs in classes(samples):
        joint, total = collections.Counter(pairs), len(pairs)
        left, right = (collections.Counter(pair[side] for pair in pairs) for side in (0, 1))
        bits += sum(n * math.log2(n * total / (left[a] * right[b])) for (a, b), n in joint.items())
    return bits / len(samples)


def bias(samples):
    """What the estimate gives for lengths that have nothing to do with each other."""
    shuffled = []
    for count, pairs in enumerate(classes(samples)):
        left, right = ([pair[side] for pair in pairs] for side in (0, 1))
        random.Random(1).shuffle(right)
        shuffled += [(count, *pair) for pair in zip(left, right)]
    return mutual_information(shuffled)


def test_the_estimate_tells_dependence_from_chance():
    draw = random.Random(2)
    independent = [(1, draw.randrange(4), draw.randrange(12)) for _ in range(1500)]
    assert mutual_information(independent) < 0.03 and bias(independent) < 0.03
    equal = [(1, length, length) for _, _, length in independent]
    assert mutual_information(equal) > 3 and bias(equal) < 0.1


def test_record_lengths_say_nothing_of_tokens_over_tls(encrypted):
    padded = lengths(*encrypted, {})
    assert mutual_information(padded) - bias(padded) <= 0.05, collections.Counter(padded)


def test_record_lengths_are_token_lengths_where_a_request_refuses_padding(encrypted):
    plain = lengths(*encrypted, {"stream_options": {"include_obfuscation": False}})
    assert mutual_information(plain) - bias(plain) > 1


def test_openais_reader_ignores_the_padding(encrypted):
    server, context = encrypted
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=httpx.Client(verify=context)
    ) as sdk:
        ask = {"model": "x", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 30}
        whole = sdk.chat.completions.create(**ask).choices[0].message.content
        chunks = list(sdk.chat.completions.create(**ask, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert all(chunk.obfuscation for chunk in chunks[1:])


def test_plain_http_is_padded_only_where_asked(start):
    def first_token(server, options):
        body = {"prompt": "tokens=2", "stream": True, "stream_options": options}
        text = httpx.post(f"{server.url}/v1/completions", json=body).text
        return json.loads(text.split("data: ")[1])

    server = start("--simulate", "inf")
    assert "obfuscation" not in first_token(server, {})
    assert first_token(server, {"include_obfuscation": True})["obfuscation"]
    body = {"prompt": "tokens=2", "stream": True, "resumable": True, "stream_options": {"include_obfuscation": True}}
    asked = httpx.post(f"{server.url}/v1/completions", json=body)
    answer, token = (asked.headers[f"x-loquent-stream-{part}"] for part in ("id", "token"))
    resumed = httpx.get(f"{server.url}/v1/streams/{answer}?token={token}")
    assert "obfuscation" in asked.text and "obfuscation" in resumed.text
    behind_a_proxy = start("--simulate", "inf", env={"LOQUENT_OBFUSCATION": "always"})
    assert first_token(behind_a_proxy, {})["obfuscation"]
    assert "obfuscation" not in first_token(behind_a_proxy, {"include_obfuscation": False})
