"""schemathesis: requests made from docs/openapi.json, valid and invalid, and what the responses break."""

import re

from .report import Finding, Report, Unreadable, one_line
from .target import installed_version, read_report

NAME = "schemathesis"
CHECKS = "the API: requests made from `docs/openapi.json`, valid and invalid"
#: Cases of each operation beside those that are the same in each run; with those some 10,000 in all.
EXAMPLES = 150
#: Time for making requests: what is over when each operation had its cases goes to further ones.
TIME_S = 420
LIMIT_S = 600
#: The same requests in each run, so that a finding can be made again.
SEED = 32
#: Streams without an end, by their purpose: a client that waits for it waits for ever.
ENDLESS = ["/v1/dashboard/events", "/v1/probe/events"]
#: What the report calls the operations of its sequences of calls.
SEQUENCES = "Stateful tests"


def version(places):
    return installed_version(places, "schemathesis")


def operations_of_sequences(said, title):
    """The operations that ended a sequence of calls with the failure `title`: the report does not name them."""
    section = re.search(r"^_+ Stateful tests _+$(.*?)(?=^[_=]+ .* [_=]+$|\Z)", said, re.MULTILINE | re.DOTALL)
    cases = re.split(r"^\d+\. Test Case ID", section[1], flags=re.MULTILINE) if section else []
    calls = [re.search(r"curl -X (\w+) .*https?://[^/\s]+(/[^\s?']*)", case) for case in cases if title in case]
    return sorted({f"{call[1]} {call[2]}" for call in calls if call})


def parse(report, said=""):
    """The JSON report: kinds of failure, each with the operations that show it. What the tool `said` has more."""
    cases = report.get("test_cases", {})
    made, failed = cases.get("generated", 0), cases.get("with_failures", 0)
    tested, selected = report["operations"]["tested"], report["operations"]["selected"]
    if not made or tested < selected:
        raise Unreadable(f"schemathesis made {made} cases for {tested} of {selected} operations")
    findings = []
    for failure in report.get("failures", []):
        what = f"{failure['title']}, {failure['count']} times"
        places = set(failure["operations"])
        if SEQUENCES in places:
            named = operations_of_sequences(said, failure["title"])
            places = places - {SEQUENCES} | set(named) if named else places
        findings += [Finding(f"{NAME}/{failure['type']}/{where}", what) for where in sorted(places)]
    for error in report.get("errors", []):
        where = error.get("operation") or error.get("label") or "run"
        findings.append(Finding(f"{NAME}/error/{where}", one_line(error.get("message") or error.get("title") or error)))
    if failed and not findings:
        raise Unreadable(f"schemathesis counts {failed} failures and names none")
    return Report(made, made - failed - cases.get("errored", 0), findings)


def run(context):
    out = context.scratch / "schemathesis.json"
    # Answers end soon: what is tested is what a request does, and not how long a stream is.
    with context.target("--simulate", "inf", "--context", "512", "--ollama-api", "local") as target:
        command = [context.places / "schemathesis/bin/schemathesis", "run", context.root / "docs/openapi.json"]
        command += ["--url", target.url, "--max-examples", EXAMPLES, "--seed", SEED, "--workers", 2]
        command += ["--max-time", TIME_S, "--request-timeout", 20, "--no-color", "--no-shrink"]
        command += ["--generation-database", "none", "--report", "json", "--report-json-path", out]
        for path in ENDLESS:
            command += ["--exclude-path", path]
        _, said = context.progress.run(command, LIMIT_S, cwd=context.scratch)
        context.check_harm(target)
    (context.scratch / "schemathesis.txt").write_text(said)
    return parse(read_report(out, said), said)
