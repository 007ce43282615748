"""The public conformance tests of Durable Streams against Loquent's read side."""

import os
import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: Tests that passed when this was written; fewer means that some are no longer run.
LEAST_PASSED = 155


@pytest.fixture
def adapter(node, serve):
    """The address of a server whose read side is Loquent's."""
    if not (HERE / "node_modules/@vitest/expect").exists():
        pytest.skip("tests/clients/apps/node_modules is missing: tools/clients installs it")
    command = [node, HERE / "durable_adapter.mjs"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    address = process.stdout.readline().strip()
    limits = ["--max-answers-per-key", "1000", "--resume-grace-s", "600", "--max-inflight-requests", "1000"]
    server = serve("--upstream", f"{address}/upstream", "--cors-origin", "*", *limits, ready=False)
    process.stdin.write(f"{server.url}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ready\n"
    yield address
    process.kill()
    process.wait()


@pytest.mark.timeout(600)
def test_the_read_side_conforms(adapter, node):
    command = [node, "--test-reporter=tap", "--import", "./use_assertions.mjs", "durable_conformance.mjs"]
    env = {**os.environ, "CONFORMANCE_TEST_URL": adapter}
    ended = subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True)
    failed = re.findall(r"^ *not ok \d+ - .*", ended.stdout, re.MULTILINE)
    assert ended.returncode == 0, "\n".join(failed) or ended.stderr
    counts = dict(re.findall(r"^# (pass|skipped) (\d+)$", ended.stdout, re.MULTILINE))
    print(f"{counts['pass']} conformance tests passed; durable_skipped.json says why others are skipped")
    assert int(counts["pass"]) >= LEAST_PASSED
