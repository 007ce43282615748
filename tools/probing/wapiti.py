"""wapiti: the pages as a browser's enemy sees them: injections, cross-site scripting, headers, files, redirects."""

import json

from .report import Finding, Report, Unreadable, one_line
from .schemathesis import ENDLESS
from .target import installed_version, read_report

NAME = "wapiti"
CHECKS = "the pages, the book and the API: injections, cross-site scripting, headers, files, redirects"
#: Where to begin; the other pages are linked from these.
PAGES = ["/docs", "/dashboard", "/lab"]
CRAWL_S, MODULE_S, LIMIT_S = 60, 20, 900
#: Those that need nothing outside this machine: no data base to download, no server that waits for call-backs.
MODULES = (
    "backup cookieflags crlf csp csrf exec file htaccess http_headers ldap methods permanentxss redirect shellshock "
    "sql timesql upload xss"
)


def version(places):
    return installed_version(places, "wapiti3")


def parse(report):
    """The JSON report: lists of vulnerabilities and anomalies by their kind, and how much was looked at."""
    pages = report["infos"].get("crawled_pages_nbr", 0)
    kinds = {**report["vulnerabilities"], **report["anomalies"]}
    if not pages or not kinds:
        raise Unreadable(f"wapiti looked at {pages} pages for {len(kinds)} kinds of fault")
    findings = {}
    for kind, entries in kinds.items():
        for entry in entries:
            finding = Finding(f"{NAME}/{kind}/{entry['method']} {entry['path']}", one_line(entry["info"]))
            findings.setdefault(finding.id, finding)
    # A check is a kind of fault that was looked for; one with findings did not hold.
    checks = len(kinds)
    return Report(checks, checks - sum(1 for entries in kinds.values() if entries), list(findings.values()))


def api_of(context, target):
    """A copy of docs/openapi.json that names this server."""
    document = json.loads((context.root / "docs/openapi.json").read_text())
    document["servers"] = [{"url": target.url}]
    path = context.scratch / "openapi.json"
    path.write_text(json.dumps(document))
    return path


def run(context):
    out = context.scratch / "wapiti.json"
    with context.target("--simulate", "inf", "--context", "512") as target:
        command = [context.places / "wapiti3/bin/wapiti", "-u", f"{target.url}/", "--swagger", api_of(context, target)]
        for page in PAGES:
            command += ["-s", target.url + page]
        for path in ENDLESS:
            command += ["-x", target.url + path]
        command += ["-m", ",".join(MODULES.split()), "--max-scan-time", CRAWL_S, "--max-attack-time", MODULE_S]
        command += ["--tasks", 8, "-t", 10, "-v", 1, "--no-bugreport", "--flush-session"]
        command += ["--store-session", context.scratch / "session", "-f", "json", "-o", out]
        _, said = context.progress.run(command, LIMIT_S)
        context.check_harm(target)
    (context.scratch / "wapiti.txt").write_text(said)
    return parse(read_report(out, said))
