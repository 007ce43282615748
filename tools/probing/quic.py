"""Strangers on QUIC: clients that break the rules of RFC 9000, made with aioquic (`strangers.py`)."""

from .report import HERE, Finding, Report, Unreadable, one_line
from .target import installed_version, read_report

NAME = "aioquic"
CHECKS = "QUIC: versions, malformed Initials, half handshakes, resets, forbidden frames and parameters, other addresses"
LIMIT_S = 300
#: What half handshakes may cost: a thousand of them are let in.
MEMORY_MIB = 128


def version(places):
    return installed_version(places, "aioquic")


def parse(made):
    """What strangers.py writes: a list of checks."""
    if not made:
        raise Unreadable("the strangers made no check")
    findings = [Finding(f"{NAME}/{one['id']}", one_line(one["what"])) for one in made if not one["holds"]]
    return Report(len(made), len(made) - len(findings), findings)


def run(context):
    out = context.scratch / "strangers.json"
    with context.target("--simulate", "2000") as target:
        before = target.resident_mib()
        command = [context.places / "aioquic/bin/python", HERE / "strangers.py", target.port, out]
        _, said = context.progress.run(command, LIMIT_S)
        after = target.resident_mib()
        context.check_harm(target)
    report = parse(read_report(out, said))
    if before is not None and after is not None:
        report.checks += 1
        if after - before <= MEMORY_MIB:
            report.passed += 1
        else:
            said = f"{before} MiB before, {after} MiB after"
            report.findings.append(Finding(f"{NAME}/memory after the strangers", said))
    return report
