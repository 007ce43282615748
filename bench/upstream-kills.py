#!/usr/bin/env python3
"""Answers whose upstream server fails under them: killed, stopped, its connections reset, or cut within a chunk.

    bench/upstream-kills.py --loquent target/release/loquent
    bench/upstream-kills.py --loquent target/release/loquent --llama FOLDER-OF-LLAMA-SERVER

32 streams of the bundled model at temperature 0 by two real servers behind `loquent serve --upstream`; once all have
begun, one server fails. A stream that stayed is held against its text where nothing fails; one that moved, behind each
seam, against what the other server answers to the text before it. Two minutes.
"""

import argparse
import concurrent.futures
import contextlib
import difflib
import json
import os
import pathlib
import signal
import sys
import tempfile
import threading
import urllib.request

from records.printed import runs, table
from records.streams import events

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/e2e"))
import servers
from wire import Break, Wire

STREAMS, TOKENS, PATIENCE_S, UPSTREAM_TIMEOUT_S = 32, 400, 60, 2
KINDS = {"none": None, "kill": signal.SIGKILL, "stop": signal.SIGSTOP, "reset": Break.RESET, "cut": Break.CUT}
MODEL = pathlib.Path(__file__).resolve().parents[1] / "models/loquent-tiny.gguf"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loquent", default=os.environ.get("LOQUENT", "loquent"), help="the binary")
    parser.add_argument("--llama", type=pathlib.Path, help="folder of a llama-server, of which two are upstream too")
    options = parser.parse_args()
    rows, kept = [], {}
    for engine in ["Loquent", *["llama-server"] * bool(options.llama)]:
        undisturbed = None
        for kind, fault in KINDS.items():
            answers, rests = failed_under(options, engine, fault)
            undisturbed = undisturbed or [answer["text"] for answer in answers]
            rows.append([engine, kind, STREAMS, *row(answers, undisturbed, rests)])
            kept[f"{engine}, {kind}"] = [{key: value for key, value in answer.items() if key != "text"}
                                         for answer in answers]
    print(f"{STREAMS} streams of {TOKENS} tokens; a server that sends nothing for {UPSTREAM_TIMEOUT_S} s counts as "
          "gone")
    table(["upstream servers", "failure", "streams", "complete", "target", "doubled bytes", "target", "lost bytes",
           "target", "moved", "longest pause, ms"], rows)
    runs(kept)


def failed_under(options, engine, fault):
    """The answers under one failure, and what the server that is left answers to the text before each seam."""
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        behind = [stack.enter_context(upstream(options, engine, folder / f"{number}.log")) for number in (1, 2)]
        ways = [stack.enter_context(Wire(server.url)) for server in behind]
        flags = ["--upstream", f"tiny={','.join(way.url for way in ways)}", "--no-quic", "--no-request-log",
                 "--upstream-timeout-s", str(UPSTREAM_TIMEOUT_S), "--max-inflight-per-key", str(STREAMS)]
        front = stack.enter_context(servers.loquent(options.loquent, flags, folder / "front.log"))
        begun = threading.Semaphore(0)
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            answers = [pool.submit(read, front.url, asked(question, TOKENS), begun) for question in range(STREAMS)]
            for _ in answers:
                if not begun.acquire(timeout=PATIENCE_S):
                    raise SystemExit("upstream-kills: not all answers begin")
            if isinstance(fault, Break):
                ways[0].break_all(fault)
            elif fault:
                behind[0].process.send_signal(fault)
                # One that is stopped could not be ended.
                stack.callback(behind[0].process.send_signal, signal.SIGCONT)
            answers = [answer.result() for answer in answers]
        if fault and not any(answer["seams"] for answer in answers):
            raise SystemExit("upstream-kills: the server that failed had no answers under way")
        rests = {(number, at): rest_of(behind[1], number, answer["text"][:at], tokens)
                 for number, answer in enumerate(answers) for at, tokens in answer["seams"]}
        return answers, rests


def upstream(options, engine, log):
    if engine == "Loquent":
        flags = ["--model", str(MODEL), "--max-batch-size", str(STREAMS), "--no-quic", "--no-request-log"]
        return servers.loquent(options.loquent, flags, log)
    flags = ["-m", str(MODEL), "-np", str(STREAMS), "-c", str(STREAMS * 1024), "-t", "1", "--jinja", "--no-ui"]
    return servers.llama_server(options.llama, flags, log)


def asked(number, tokens, so_far=""):
    """A request, or the one for the rest behind a text."""
    messages = [{"role": "user", "content": f"Question {number}: how does a token reach its reader?"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "stream": True}
    if so_far:
        messages.append({"role": "assistant", "content": so_far})
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body


def read(url, body, begun=None):
    """Reads one answer: its text, whether it is whole, its longest pause, and each seam with the tokens before it."""
    text, whole, seams, pause_s, last = "", False, [], 0.0, None
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            for at, event in events(answer):
                event = json.loads(event)
                if "continued" in event:
                    seams.append((len(text), event["continued"]["after_tokens"]))
                for choice in event.get("choices", []):
                    whole = whole or choice.get("finish_reason") == "length"
                    if more := choice.get("delta", {}).get("content"):
                        pause_s, last = max(pause_s, at - last if last else 0.0), at
                        if begun and not text:
                            begun.release()
                        text += more
    except OSError as error:
        print(f"upstream-kills: an answer broke off: {error}", file=sys.stderr)
    return {"text": text, "whole": whole, "seams": seams, "pause_ms": 1e3 * pause_s}


def rest_of(server, number, before, tokens):
    """What a server answers to a text, as it follows that text."""
    stripped = before.rstrip()
    answer = read(server.url, asked(number, TOKENS - tokens, stripped))
    if not answer["whole"]:
        raise SystemExit("upstream-kills: the server that is left does not answer")
    return answer["text"].removeprefix(before[len(stripped):])


def row(answers, undisturbed, rests):
    """The figures of a row: what is complete, doubled, lost and moved, and the longest pause."""
    lost = doubled = 0
    for number, answer in enumerate(answers):
        expected, seams = undisturbed[number], answer["seams"]
        for at, _ in seams:
            expected = expected[:at] + rests[number, at]
        more = differences(expected, answer["text"])
        lost, doubled = lost + more[0], doubled + more[1]
    complete = sum(answer["whole"] for answer in answers)
    moved = sum(bool(answer["seams"]) for answer in answers)
    pause_ms = max(answer["pause_ms"] for answer in answers)
    return [complete, f">= {STREAMS}", doubled, "<= 0", lost, "<= 0", moved, f"{pause_ms:.0f}"]


def differences(expected, text):
    """Bytes of the expected text that are missing, and those that it has not."""
    pair = expected.encode(), text.encode()
    changes = difflib.SequenceMatcher(None, *pair, autojunk=False).get_opcodes() if expected != text else []
    changed = [change for change in changes if change[0] != "equal"]
    return sum(b - a for _, a, b, _, _ in changed), sum(d - c for *_, c, d in changed)


if __name__ == "__main__":
    main()
