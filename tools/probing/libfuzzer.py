"""libFuzzer: an hour of inputs to the parsers of what clients, operators and stores may send or hold.

`make fuzz` runs it over every parser, for as long as one likes; this is the part that is recorded.
"""

import re

from .report import Finding, Report, Unreadable, one_line

NAME = "libfuzzer"
#: Time for each of the targets, in seconds: an hour in all.
SECONDS = 300
TARGETS = [
    "answer_events",
    "browser_token",
    "grammar",
    "grammar_text",
    "jwt",
    "kept_request",
    "key_file",
    "key_set",
    "store_reply",
    "stored_object",
    "stored_response",
    "web_transport",
]
CHECKS = (
    "parsers of grammars, keys, tokens, JWT, WebTransport's heads, a store's replies and what it holds, records of "
    "upstream servers: "
    f"{len(TARGETS) * SECONDS // 60} minutes of inputs"
)
#: Building the fuzzer, and ending it.
SLACK_S = 900


def version(places):
    lock = (places.parents[1] / "Cargo.lock").read_text()
    return re.search(r'name = "libfuzzer-sys"\nversion = "([^"]+)"', lock)[1]


def parse(target, status, said):
    """The inputs that a target took, and the one that broke its promise, if there is one."""
    counted = re.search(r"stat::number_of_executed_units:\s+(\d+)", said)
    broken = re.search(r"panicked at .*|ERROR: libFuzzer: .*", said)
    if not counted and not broken:
        raise Unreadable(f"{target} ran no input: {one_line(said[-300:], 300)}")
    inputs = int(counted[1]) if counted else 1
    if status == 0:
        return Report(inputs, inputs)
    # The panic's text is on the line behind its place.
    what = broken[0] if broken else f"it ended with status {status}"
    place = said.find(what)
    return Report(inputs, inputs - 1, [Finding(f"{NAME}/{target}/broken", one_line(said[place : place + 300]))])


def run(context):
    total = Report(0, 0)
    for target in TARGETS:
        context.progress.say(f"{target}, {SECONDS} s")
        command = [context.root / "tools/with-cpu-env", context.root / "tools/fuzz", SECONDS, target]
        part = parse(target, *context.progress.run(command, SECONDS + SLACK_S))
        context.progress.say(f"{target}: {part.checks:,} inputs, {len(part.findings)} findings")
        total = Report(total.checks + part.checks, total.passed + part.passed, total.findings + part.findings)
    return total
