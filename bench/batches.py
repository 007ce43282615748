#!/usr/bin/env python3
"""What a batch costs those who wait for their answers: the time to the first token of one key's chats, alone and
while another key has a batch, on a trained model.

    cargo build --release -p loquent
    tools/models smollm2
    python3 bench/batches.py target/release/loquent ~/.cache/loquent/models/smollm2.gguf
"""

import http.client
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from records.printed import percentile, ratios, runs, spread, table
from records.streams import events

sys.path.insert(0, str(Path(__file__).with_name("peers")))
import servers

ROUNDS, CHATS, TOKENS = 3, 60, 24
LINES, BATCH_TOKENS = 2000, 200
TEXT = "a stream of tokens reaches its reader one by one and never all at once "
FORM = (
    '--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    '--b\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n{lines}\r\n--b--\r\n'
)
KEYS = """[[key]]
name = "reader"
key = "sk-reader"

[[key]]
name = "bulk"
key = "sk-bulk"
"""


def call(port, method, path, key, body=None, kind="application/json"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    body = json.dumps(body) if kind == "application/json" and body is not None else body
    connection.request(method, path, body, {"content-type": kind, "authorization": f"Bearer {key}"})
    return connection.getresponse()


def done(port, method, path, body=None, **more):
    answer = call(port, method, path, "sk-bulk", body, **more)
    text = answer.read()
    assert answer.status == 200, text
    return json.loads(text)


def first_token_ms(port, number):
    """Of a question that nobody has asked before, so that no prefix of it is known."""
    messages = [{"role": "user", "content": f"{number}: {TEXT * 4}"}]
    body = {"messages": messages, "max_tokens": TOKENS, "stream": True, "temperature": 0}
    asked = time.monotonic()
    answer = call(port, "POST", "/v1/chat/completions", "sk-reader", body)
    times = [at for at, event in events(answer) if b'"content":"' in event and b'"content":""' not in event]
    return (times[0] - asked) * 1e3 if times else None


def chats(port, seed):
    """The times of `CHATS` chats, one after another with pauses as of a reader's."""
    draw, times = random.Random(seed), []
    for number in range(CHATS):
        times.append(first_token_ms(port, f"{seed}-{number}"))
        time.sleep(draw.uniform(0.05, 0.3))
    return percentile(times, 0.5), percentile(times, 0.99)


def begin_batch(port, name):
    """A batch that does not end before it is cancelled."""
    lines = []
    for number in range(LINES):
        messages = [{"role": "user", "content": f"{name}-{number}: {TEXT * 8}"}]
        body = {"messages": messages, "max_tokens": BATCH_TOKENS, "ignore_eos": True}
        lines.append(json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}))
    form = FORM.format(lines="\r\n".join(lines)).encode()
    file = done(port, "POST", "/v1/files", form, kind="multipart/form-data; boundary=b")
    asked = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return done(port, "POST", "/v1/batches", asked)["id"]


def completed(port, batch):
    return done(port, "GET", f"/v1/batches/{batch}")["request_counts"]["completed"]


def beside_batch(port, name):
    """The times of chats beside a batch, and how many of its lines a minute brings."""
    batch = begin_batch(port, name)
    while not completed(port, batch):
        time.sleep(0.2)
    before, began = completed(port, batch), time.perf_counter()
    times = chats(port, name)
    lines = (completed(port, batch) - before) / (time.perf_counter() - began) * 60
    done(port, "POST", f"/v1/batches/{batch}/cancel", {})
    while done(port, "GET", f"/v1/batches/{batch}")["status"] not in ("cancelled", "completed"):
        time.sleep(0.2)
    return times, lines


def main():
    binary, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys.toml")
        keys.touch(mode=0o600)
        keys.write_text(KEYS)
        flags = ["--model", model, "--api-key-file", str(keys), *sys.argv[3:]]
        with servers.loquent(binary, flags, Path(folder, "loquent.log")) as server:
            port = server.port
            assert first_token_ms(port, "warm") is not None
            found = [(chats(port, f"alone{at}"), *beside_batch(port, f"beside{at}")) for at in range(ROUNDS)]
    alone, beside, lines = zip(*found, strict=True)
    print(f"{CHATS} chats of one key, alone and while another key has a batch of {LINES} requests")
    rows = []
    for at, name, target in ((0, "median", ""), (1, "p99", "<= 1.2")):
        mine, theirs = [one[at] for one in alone], [one[at] for one in beside]
        rows.append([f"time to first token, {name}, ms", spread(mine), spread(theirs), spread(ratios(theirs, mine), ".2f"), target])
    rows.append(["lines of the batch per minute", "", spread(lines, ".0f"), "", ""])
    table(["measure", "alone", "beside", "ratio", "target"], rows)
    runs({"alone": alone, "beside": beside, "lines per minute": lines})


if __name__ == "__main__":
    main()
