"""testssl.sh: protocols, ciphers, the certificate, known faults of TLS, and the headers of HTTPS."""

import re
import shutil
import subprocess

from .report import Finding, Report, Unreadable, one_line
from .target import read_report

NAME = "testssl"
CHECKS = "TLS: protocols, ciphers, certificate, known attacks, headers"
LIMIT_S = 900
#: What testssl itself takes for a fault; WARN is what it could not find out.
FAULTS = {"LOW", "MEDIUM", "HIGH", "CRITICAL", "WARN", "FATAL"}
KNOWN = FAULTS | {"OK", "INFO", "DEBUG"}


def program():
    # Debian's name for it, and the project's own.
    return shutil.which("testssl") or shutil.which("testssl.sh")


def version(_places):
    said = subprocess.run([program(), "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    found = re.search(r"testssl\S*\s+(?:version\s+)?(\d\S+)", re.sub(r"\x1b\[[\d;]*m", "", said))
    return found[1] if found else "unknown"


def parse(entries):
    """The flat JSON file: a list of objects with an id, a severity and a finding."""
    entries = [entry for entry in entries if entry.get("id") not in {"scanTime", "engine_problem"}]
    if not any(entry["id"] == "TLS1_3" for entry in entries):
        raise Unreadable("testssl.sh did not look at the protocols")
    unknown = {entry["severity"] for entry in entries} - KNOWN
    if unknown:
        raise Unreadable(f"testssl.sh has severities that this does not know: {', '.join(sorted(unknown))}")
    findings = [
        Finding(f"{NAME}/{entry['id']}", one_line(f"{entry['severity']}: {entry['finding']}"))
        for entry in entries
        if entry["severity"] in FAULTS
    ]
    return Report(len(entries), len(entries) - len(findings), findings)


def run(context):
    out = context.scratch / "testssl.json"
    with context.target("--simulate", "2000", is_encrypted=True) as target:
        command = [program(), "--quiet", "--warnings", "batch", "--color", 0, "--nodns", "none", "--ip", "127.0.0.1"]
        command += ["--openssl-timeout", 20, "--connect-timeout", 20, "--jsonfile", out, f"localhost:{target.port}"]
        status, said = context.progress.run(command, LIMIT_S)
        context.check_harm(target)
    if status is None:
        raise Unreadable(f"testssl.sh did not end within {LIMIT_S} s: {one_line(said[-300:])}")
    return parse(read_report(out, said))
