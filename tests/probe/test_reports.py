"""The reports of third-party tools, as `tools/probe` reads them: what is planted in one fails the run."""

import json
import re
import subprocess
import sys

import pytest

from conftest import REPOSITORY
from probing import h2spec, libfuzzer, page, quic, schemathesis, slowhttptest, testssl, wapiti
from probing.report import Explanation, Finding, Unreadable, explanations, judge

TOOLS = (h2spec, testssl, slowhttptest, quic, wapiti, schemathesis, libfuzzer)
PREFACE = "Sends invalid connection preface"


def junit(*cases):
    case = '<testcase package="{}" classname="{}">{}</testcase>'
    rows = "".join(case.format(*it) for it in cases)
    return f'<testsuites><testsuite name="3.5" tests="{len(cases)}">{rows}</testsuite></testsuites>'


def test_h2spec_names_each_failed_check_by_its_section():
    failure = "<failure>Stream closed\nConnection closed\nDATA Frame (length:18)</failure>"
    report = h2spec.parse(
        junit(("generic/1", "Sends a preface", ""), ("http2/5.1", "a [b] c", failure), ("http2/8", "x", "<skipped/>")),
        "TLS",
    )
    assert (report.checks, report.passed) == (2, 1), "what is skipped is no check"
    assert report.findings == [
        Finding("h2spec/TLS/http2/5.1/a [b] c", "Stream closed Connection closed DATA Frame (length:18)")
    ]


def test_h2spec_that_ended_early_is_no_pass():
    for text in ("", "<testsuites></testsuites>", junit(("generic/1", "one", "<skipped/>"))):
        with pytest.raises(Unreadable):
            h2spec.parse(text, "TLS")


HEAD = "Seconds,Closed,Pending,Connected,Service Available\n"


def slow(rows, outcome, held=None):
    said = f"\x1b[0;36mExit status:\x1b[1;36m {outcome}\n\x1b[0m"
    return slowhttptest.parse("slow heads", HEAD + "\n".join(rows), said, held)


def test_slowhttptest_wants_the_server_available_and_the_connections_closed():
    report = slow(["0,0,1,0,400", "1,0,0,400,400", "40,400,0,0,400"], "No open connections left")
    assert (report.checks, report.passed, report.findings) == (2, 2, [])
    report = slow(["0,0,1,0,400", "1,0,0,400,400", "2,0,0,400,0", "9,0,0,400,400"], "Hit test time limit")
    assert [it.id for it in report.findings] == [
        "slowhttptest/slow heads/available",
        "slowhttptest/slow heads/closed",
    ]
    assert "seconds 2:" in report.findings[0].what and report.findings[1].what.startswith("400 connections")
    unread = ["0,0,1,0,400", "1,0,0,400,400", "99,0,0,400,400"]
    assert not slow(unread, "Hit test time limit", held=0).findings, "the server has closed them"
    assert slow(unread, "Hit test time limit", held=3).findings[0].what.startswith("3 connections")
    for rows, outcome in (([], "No open connections left"), (["0,0,0,0,1"], "")):
        with pytest.raises(Unreadable):
            slow(rows, outcome)


def ssl(*entries):
    return testssl.parse([{"id": id, "severity": severity, "finding": "seen"} for id, severity in entries])


def test_testssl_takes_what_is_low_and_what_it_could_not_find_out_for_findings():
    report = ssl(("TLS1_3", "OK"), ("ALPN", "INFO"), ("HSTS", "LOW"), ("RC4", "CRITICAL"), ("heartbleed", "WARN"))
    assert (report.checks, report.passed) == (5, 2)
    assert [it.id for it in report.findings] == ["testssl/HSTS", "testssl/RC4", "testssl/heartbleed"]
    for entries in ([("HSTS", "OK")], [("TLS1_3", "OK"), ("new", "TERRIBLE")]):
        with pytest.raises(Unreadable):
            ssl(*entries)


def api_report(**changes):
    failure = {"type": "ServerError", "title": "Server error", "count": 2, "operations": ["GET /a", "POST /b"]}
    return {
        "operations": {"selected": 55, "tested": 55},
        "test_cases": {"generated": 1000, "with_failures": 2, "errored": 1},
        "failures": [failure],
        "errors": [{"title": "Network Error", "count": 1}],
        **changes,
    }


def test_schemathesis_names_each_operation_that_fails():
    report = schemathesis.parse(api_report())
    assert (report.checks, report.passed) == (1000, 997)
    assert [it.id for it in report.findings] == [
        "schemathesis/ServerError/GET /a",
        "schemathesis/ServerError/POST /b",
        "schemathesis/error/run",
    ]
    for broken in (
        {"test_cases": {"generated": 0}},
        {"operations": {"selected": 55, "tested": 54}},
        {"failures": [], "errors": []},
    ):
        with pytest.raises(Unreadable):
            schemathesis.parse(api_report(**broken))


def test_schemathesis_names_the_operation_that_a_sequence_of_calls_ends_with():
    said = """
_____ POST /api/show _____
1. Test Case ID: a
- ST201 Server error
    curl -X POST http://127.0.0.1:1/api/show
_____ Stateful tests _____
1. Test Case ID: b
- ST201 Server error
    curl -X POST -d '{"from": "http://127.0.0.1:1/x"}' http://127.0.0.1:1/api/chat
2. Test Case ID: c
- ST202 Something else
    curl -X GET 'http://127.0.0.1:1/v1/models?a=b'
===== WARNINGS =====
    curl -X GET http://127.0.0.1:1/health
"""
    failure = {"type": "ServerError", "title": "Server error", "count": 2, "operations": ["GET /a", "Stateful tests"]}
    named = [it.id for it in schemathesis.parse(api_report(failures=[failure], errors=[]), said).findings]
    assert named == ["schemathesis/ServerError/GET /a", "schemathesis/ServerError/POST /api/chat"]
    unnamed = [it.id for it in schemathesis.parse(api_report(failures=[failure], errors=[])).findings]
    assert unnamed[1] == "schemathesis/ServerError/Stateful tests"


def wapiti_report(pages=80, **kinds):
    return {"infos": {"crawled_pages_nbr": pages}, "vulnerabilities": kinds, "anomalies": {"Internal Server Error": []}}


def test_wapiti_names_the_kind_and_the_page_once():
    entry = {"method": "GET", "path": "/docs", "info": "a script\nran"}
    report = wapiti.parse(wapiti_report(XSS=[entry, entry], SQL=[]))
    assert (report.checks, report.passed) == (3, 2)
    assert report.findings == [Finding("wapiti/XSS/GET /docs", "a script ran")]
    with pytest.raises(Unreadable):
        wapiti.parse(wapiti_report(pages=0, XSS=[]))


def test_the_strangers_report_what_does_not_hold():
    small = {"id": "resets/small", "holds": True, "what": "20 bytes"}
    report = quic.parse([small, {"id": "resets/loop", "holds": False, "what": "100 answers"}])
    assert (report.checks, report.passed) == (2, 1)
    assert report.findings == [Finding("aioquic/resets/loop", "100 answers")]
    with pytest.raises(Unreadable):
        quic.parse([])


def test_only_what_is_explained_passes():
    reason = Explanation("tool/[a]/*", "for a test of its own")
    known, unknown = judge([Finding("tool/[a]/x", ""), Finding("tool/a/x", ""), Finding("tool/planted", "")], [reason])
    assert [it.id for it, _ in known] == ["tool/[a]/x"], "brackets are no pattern"
    assert [it.id for it in unknown] == ["tool/a/x", "tool/planted"]


def test_an_explanation_has_a_reason_and_covers_no_whole_tool(tmp_path):
    for entry in ('id = "h2spec/a"', 'id = "h2spec/a"\nwhy = "fine"', 'id = "h2spec/*"\nwhy = "all of it is fine"', ):
        path = tmp_path / "explained.toml"
        path.write_text(f"[[finding]]\n{entry}\n")
        with pytest.raises(ValueError, match=r"has no reason|covers every"):
            explanations(path)
    assert {it.pattern.split("/")[0] for it in explanations()} <= {it.NAME for it in TOOLS}


FAILING = """
import sys
sys.path.insert(0, {tools!r})
from importlib.machinery import SourceFileLoader
probe = SourceFileLoader("probe", {tools!r} + "/probe").load_module()
from probing.report import Finding, Report
class Planted:
    NAME, CHECKS = "testssl", "nothing"
    version = staticmethod(lambda places: "1")
    run = staticmethod(lambda context: Report(2, 2 - len(found), found))
found = [Finding("testssl/" + name, "planted") for name in {names!r}]
probe.TOOLS = {{"testssl": Planted}}
probe.version_of = lambda binary: "here"
probe.TARGET = probe.Path({target!r})
sys.argv = ["probe", "--only", "testssl", "--keep-page"]
sys.exit(probe.main())
"""


@pytest.mark.parametrize("names, status", [([], 0), (["HSTS"], 0), (["heartbleed"], 1), (["HSTS", "heartbleed"], 1)])
def test_a_planted_finding_fails_the_run(names, status, tmp_path):
    program = FAILING.format(tools=str(REPOSITORY / "tools"), names=names, target=str(tmp_path))
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == status, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == f"probe: 1 tools, 3 checks, {status} unexplained findings"
    assert ("UNEXPLAINED testssl/heartbleed" in run.stdout) == bool(status)


@pytest.mark.parametrize("status, said, findings", [
    (0, "stat::number_of_executed_units: 4711\n", []),
    (1, "thread panicked at fuzz.rs:9:5:\nstat::number_of_executed_units: 12\n", ["libfuzzer/jwt/broken"]),
    (1, "==7== ERROR: libFuzzer: timeout after 60 seconds\n", ["libfuzzer/jwt/broken"]),
])
def test_a_fuzzer_that_breaks_a_promise_has_a_finding(status, said, findings):
    report = libfuzzer.parse("jwt", status, said)
    assert [it.id for it in report.findings] == findings
    assert report.checks == report.passed + len(findings)


def test_a_fuzzer_that_did_not_run_gave_no_report():
    with pytest.raises(Unreadable):
        libfuzzer.parse("jwt", 1, "error: could not compile")


def test_the_page_is_that_of_the_record():
    record = page.read()
    assert set(record) == {it.NAME for it in TOOLS}
    assert page.PAGE.read_text() == page.render(record, explanations()), "run: tools/probe --render"
    assert not page.stale(record, explanations(), set(record)), "what nothing needs any more"


def test_a_version_of_the_record_is_the_pinned_one():
    record = page.read()
    for package, tool in (("schemathesis", "schemathesis"), ("wapiti3", "wapiti"), ("aioquic", "aioquic")):
        pinned = (REPOSITORY / f"tools/probing/requirements/{package}.txt").read_text()
        assert re.search(rf"^{package}==(\S+)$", pinned, re.M)[1] == record[tool]["version"]
    assert h2spec.version(None) == record["h2spec"]["version"]
    assert json.dumps(record)
