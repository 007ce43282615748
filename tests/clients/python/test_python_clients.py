"""Python clients that need versions of their own: each is installed into a folder of its own under
`target/clients`, and runs there, unmodified, as a program."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]

pytestmark = pytest.mark.timeout(600)


def install(name):
    """A virtual environment with the packages of `NAME.txt`; gives its folder of programs."""
    requirements = HERE / f"{name}.txt"
    environment = REPOSITORY / "target" / "clients" / name
    programs, stamp = environment / "bin", environment / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        subprocess.run([programs / "pip", "install", "--quiet", "--requirement", requirements], check=True)
        stamp.write_text(requirements.read_text())
    return programs


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_langchain(server):
    run(install("langchain") / "python", HERE / "langchain_client.py", f"{server.url}/v1")


def test_litellm(server):
    run(install("litellm") / "python", HERE / "litellm_client.py", server.url)


def test_llm(server):
    said = run(HERE / "llm_client.sh", f"{server.url}/v1", install("llm"))
    assert "Loquent" in said and len(said.splitlines()) >= 2, said


def test_lm_eval(server):
    run(install("lm_eval") / "python", HERE / "lm_eval_client.py", server.url)
