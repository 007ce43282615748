"""A model's file that is cut while the server has it mapped into memory, as `cp` onto it does for a moment."""

import concurrent.futures
import contextlib
import os
import shutil
import signal

import httpx
import pytest

from conftest import PATIENCE_S, REPOSITORY, Crashed, Server

MODEL = REPOSITORY / "models" / "loquent-tiny.gguf"
BODY = {"messages": [{"role": "user", "content": "What is token streaming?"}], "temperature": 0}


@pytest.fixture
def copy(tmp_path):
    """A copy of the bundled model."""
    return shutil.copy(MODEL, tmp_path / "copy.gguf")


def ask(server):
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=BODY, timeout=PATIENCE_S).json()
    return answer["choices"][0]["message"]["content"]


def test_a_model_that_is_cut_in_use_ends_the_server_with_the_reason(copy):
    server = Server("--model", str(copy))
    with pytest.raises(Crashed, match="overwritten or cut while it was in use"), contextlib.ExitStack() as end:
        end.callback(server.stop)
        assert ask(server.wait())
        os.truncate(copy, 4096)
        with pytest.raises(httpx.TransportError):
            ask(server)
        assert server.process.wait(PATIENCE_S) == -signal.SIGBUS


def test_with_an_engine_process_answers_go_on_once_the_model_is_back(start, copy):
    server = start("--model", str(copy), "--engine-process")
    expected = ask(server)
    os.truncate(copy, 4096)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, server)
        server.heard("overwritten or cut while it was in use")
        shutil.copy(MODEL, copy)
        assert answer.result() == expected
