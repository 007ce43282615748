"""h2spec: RFC 7540 (HTTP/2) and RFC 7541 (HPACK), strict checks included, over TLS and in cleartext.

The Go proxy has no later version than 2.2.1; it is built from h2spec/go.mod, whose go.sum pins what it is built with.
"""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from .report import Finding, Report, Unreadable, one_line

NAME = "h2spec"
CHECKS = "HTTP/2 and HPACK, frame by frame, over TLS and in cleartext"
MODULE = Path(__file__).resolve().parent / "h2spec"
#: How long a check waits for a frame. A busy machine needs more than the tool's 2 s.
CHECK_S = 5
LIMIT_S = 600
#: A path that answers GET at once, and POST only after its body: many checks are about what comes before a response.
PATH = "/v1/chat/completions"


def version(_places):
    return re.search(r"summerwind/h2spec (\S+)", (MODULE / "go.mod").read_text())[1].removesuffix("+incompatible")


def parse(xml, way):
    """A report of JUnit's form. Skipped checks are no checks: without -S they are the strict ones."""
    try:
        cases = list(ElementTree.fromstring(xml).iter("testcase"))
    except ElementTree.ParseError as error:
        raise Unreadable(f"h2spec's report is no XML: {error}") from None
    made = [case for case in cases if case.find("skipped") is None]
    if not made:
        raise Unreadable("h2spec made no check")
    findings = []
    for case in made:
        failure = case.find("failure")
        failure = case.find("error") if failure is None else failure
        if failure is not None:
            # Its text is what was expected, line by line, and then what came.
            said = one_line("".join(failure.itertext()) or failure.get("message", ""))
            findings.append(Finding(f"{NAME}/{way}/{case.get('package')}/{case.get('classname')}", said))
    return Report(len(made), len(made) - len(findings), findings)


def run(context):
    total = Report(0, 0)
    for way, is_encrypted in (("TLS", True), ("cleartext", False)):
        out = context.scratch / f"{way}.xml"
        with context.target("--simulate", "2000", is_encrypted=is_encrypted) as target:
            command = [context.places / "bin/h2spec", "--host", "127.0.0.1", "--port", target.port, "--path", PATH]
            command += ["--strict", "--timeout", CHECK_S, "--junit-report", out]
            command += ["--tls", "--insecure"] if is_encrypted else []
            context.progress.say(f"over {way}" if is_encrypted else f"in {way}")
            _, said = context.progress.run(command, LIMIT_S)
            context.check_harm(target)
        if not out.exists():
            raise Unreadable(f"h2spec wrote no report: {one_line(said[-300:])}")
        part = parse(out.read_text(), way)
        total = Report(total.checks + part.checks, total.passed + part.passed, total.findings + part.findings)
    return total
