"""slowhttptest: connections that send their head, send their body or read their answer slowly, and many ranges.

A mode holds if the server stays available to others in every second, and if it has closed every slow connection of its
own accord before the test's end.
"""

import csv
import http.client
import io
import json
import re
import subprocess
import threading
import time

from .report import Finding, Report, Unreadable, one_line

NAME = "slowhttptest"
CHECKS = "slow heads (slowloris), slow bodies, slow readers, many ranges"
CONNECTIONS = 400
#: The server gives a head or body 30 s and a reader 60 s; both have room here.
TEST_S = 100
#: An honest client from another address gets its answer within this time.
HONEST_S = 2
#: Descriptors that the server itself may have opened meanwhile.
OWN_DESCRIPTORS = 8
BODY = json.dumps({"prompt": "tokens=20000", "max_tokens": 20000, "stream": True})
MODES = {
    "slow heads": ["-H", "-i", 5, "-x", 24, "-t", "GET", "-p", 3],
    "slow bodies": ["-B", "-i", 5, "-s", 8192, "-x", 10, "-t", "POST", "-p", 3, "-f", "application/json"],
    "slow readers": ["-X", "-w", 10, "-y", 20, "-n", 5, "-z", 32, "-k", 3, "-p", 3],
    "many ranges": ["-R", "-t", "HEAD", "-a", 10, "-b", 3000, "-p", 3],
}
PATHS = {"slow bodies": "/v1/completions", "slow readers": "/openapi.json"}


def version(_places):
    said = subprocess.run(["slowhttptest", "-h"], capture_output=True, text=True).stdout
    found = re.search(r"version (\S+)", said)
    return found[1] if found else "unknown"


def parse(mode, table, said, held=None):
    """A mode's report: the CSV file with a row for each second, and what the tool printed at its end.

    `held` is how many connections the server still had at the end, where that can be seen. A client that reads slowly
    does not see the end of its connection before it has read all that came before it.
    """
    rows = list(csv.DictReader(io.StringIO(table)))
    ended = re.search(r"Exit status: *(\S.*)", re.sub(r"\x1b\[[\d;]*m", "", said))
    if not rows or not ended:
        raise Unreadable(f"slowhttptest reports no end of {mode}: {one_line(said[-200:])}")
    last, outcome = rows[-1], ended[1].strip()
    findings = []
    # In the first seconds nothing has been probed yet; the column has the number of connections where it is available.
    absent = [row["Seconds"] for row in rows[2:] if int(row["Service Available"]) == 0]
    if absent or "nreachable" in outcome or "unavailable" in outcome:
        findings.append(Finding(f"{NAME}/{mode}/available", f"not available in seconds {', '.join(absent)}: {outcome}"))
    open_still = int(last["Connected"]) if held is None else held
    if open_still > 0 and "No open connections left" not in outcome:
        findings.append(Finding(f"{NAME}/{mode}/closed", f"{open_still} connections are open at the end: {outcome}"))
    return Report(2, 2 - len(findings), findings)


class Honest(threading.Thread):
    """A client from another loopback address that asks once a second, and how long it waited at most."""

    def __init__(self, target):
        super().__init__(daemon=True)
        self.target, self.over, self.longest_s, self.failures, self.asked = target, threading.Event(), 0.0, 0, 0
        # Some are the server's own, and opened only once it works.
        self.before = target.descriptors()
        self.held = None

    def run(self):
        while not self.over.wait(1):
            begun = time.monotonic()
            connection = http.client.HTTPConnection(
                "127.0.0.1", self.target.port, timeout=30, source_address=("127.0.0.77", 0)
            )
            try:
                connection.request(
                    "POST", "/v1/completions", '{"prompt": "tokens=3"}', {"content-type": "application/json"}
                )
                self.failures += connection.getresponse().status != 200
            except OSError:
                self.failures += 1
            finally:
                connection.close()
            self.asked += 1
            if self.before is not None and (now := self.target.descriptors()) is not None:
                self.held = max(0, now - self.before - OWN_DESCRIPTORS)
            self.longest_s = max(self.longest_s, time.monotonic() - begun)

    def report(self, mode):
        self.over.set()
        self.join()
        if self.asked == 0:
            raise Unreadable("the honest client asked nothing")
        if not self.failures and self.longest_s <= HONEST_S:
            return Report(1, 1)
        said = f"{self.failures} of {self.asked} requests failed, the longest took {self.longest_s:.1f} s"
        return Report(1, 0, [Finding(f"{NAME}/{mode}/honest client", said)])


def run(context):
    total = Report(0, 0)
    for mode, options in MODES.items():
        prefix = context.scratch / mode.replace(" ", "-")
        with context.target("--simulate", "2000") as target:
            context.progress.say(f"{mode}: {CONNECTIONS} connections")
            honest = Honest(target)
            honest.start()
            command = ["slowhttptest", *options, "-c", CONNECTIONS, "-r", 100, "-l", TEST_S, "-g", "-o", prefix]
            command += ["-v", 1, "-u", target.url + PATHS.get(mode, "/live")]
            _, said = context.progress.run(command, TEST_S + 30)
            heard = honest.report(mode)
            context.check_harm(target)
        path = prefix.with_suffix(".csv")
        for part in (parse(mode, path.read_text() if path.exists() else "", said, honest.held), heard):
            total = Report(total.checks + part.checks, total.passed + part.passed, total.findings + part.findings)
    return total
