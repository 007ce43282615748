"""Real engines that serve SmolLM2, as processes: how each is started, what its metrics are called, how it dies.

Both answer greedily with one thread and without a prefix cache, so that an answer that is computed alone is the same
each time.
"""

import contextlib
import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import httpx

from conftest import free_port
from test_upstreams import wait_until as wait_for_servers

MODEL = "smollm2"
TEMPLATE = pathlib.Path(__file__).with_name("chat.jinja")
#: Tokens of one sequence, prompt and answer together.
CONTEXT = 8192
SEQUENCES = 8
#: vLLM imports for a minute on a busy machine before it listens.
START_LIMIT_S = 600
#: Far longer than any answer takes here.
PATIENCE_S = 300
wait_until = functools.partial(wait_for_servers, patience_s=PATIENCE_S)


class Engine:
    """A running engine. Its processes are a group of their own, which is killed and stopped as a whole."""

    name = ""
    #: Names of the metrics: requests that run, and tokens that were generated since the start.
    running_metric = generated_metric = ""
    #: Whether it notices that the client of a whole answer has left.
    watches_whole_answers = True
    #: Whether an answer that must call a tool obeys the tool's schema.
    constrains_calls = True

    def __init__(self, log, *more):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = pathlib.Path(log)
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*self.command(), *more], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment()}, start_new_session=True,
            )

    def command(self):
        raise NotImplementedError

    def environment(self):
        # Threads that wait for work sleep: they spin otherwise, which takes a busy machine's cores from the others.
        return {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

    def wait(self):
        """Waits until it answers /health."""
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return self
            time.sleep(0.1)
        self.end()
        raise AssertionError(f"{self.name} did not start:\n" + self.log.read_text(errors="replace")[-4000:])

    def signal(self, number):
        """Sends a signal to all processes of the engine."""
        os.killpg(self.process.pid, number)

    def is_alive(self):
        return self.process.poll() is None

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()

    def metric(self, name):
        """The sum of a metric over its labels; 0 if it is not there."""
        text = httpx.get(f"{self.url}/metrics").text
        values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.M)
        return sum(map(float, values))

    def running(self):
        return self.metric(self.running_metric)

    def generated(self):
        return self.metric(self.generated_metric)

    def ask(self, path, body):
        """A whole answer from the engine itself."""
        answer = httpx.post(self.url + path, json=body, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        return answer.json()


class LlamaServer(Engine):
    """llama.cpp's server with the GGUF file: the binary that LLAMA_SERVER names, else that of the package xllamacpp."""

    name = "llama-server"
    # Asked directly, it computes them to their end as well.
    watches_whole_answers = False
    running_metric, generated_metric = "llamacpp:requests_processing", "llamacpp:tokens_predicted_total"

    def command(self):
        model, binary, cells = os.environ["SMOLLM2"], os.environ.get("LLAMA_SERVER"), CONTEXT * SEQUENCES
        if not binary:
            words = [model, TEMPLATE, MODEL, self.port, SEQUENCES, cells]
            return [sys.executable, str(pathlib.Path(__file__).with_name("llama_cpp.py")), *map(str, words)]
        return [
            binary, "-m", model, "--alias", MODEL, "--port", str(self.port), "-np", str(SEQUENCES), "-c", str(cells),
            "--no-kv-unified", "-t", "1", "--jinja", "--chat-template-file", str(TEMPLATE), "--metrics", "--no-ui",
            "--no-cache-prompt", "--cache-ram", "0",
        ]


class Vllm(Engine):
    """vLLM on processors, with the checkpoint that bench/peers/checkpoint.py makes of the GGUF file."""

    name = "vllm"
    # SmolLM2 writes a schema where the arguments belong, and never ends (0.32 with the parser for Hermes's calls).
    constrains_calls = False
    running_metric, generated_metric = "vllm:num_requests_running", "vllm:generation_tokens_total"

    def command(self):
        checkpoint = pathlib.Path(os.environ["SMOLLM2"]).with_suffix(".checkpoint")
        return [
            os.path.join(os.environ["VLLM"], "bin/vllm"), "serve", str(checkpoint), "--served-model-name", MODEL,
            "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "bfloat16", "--max-model-len", str(CONTEXT),
            "--max-num-seqs", str(SEQUENCES), "--enforce-eager", "--generation-config", "vllm",
            "--no-enable-prefix-caching", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
            "--chat-template", str(TEMPLATE),
        ]

    def environment(self):
        folder = os.path.join(os.environ["VLLM"], "bin")
        return {
            **super().environment(), "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            # What it compiles with lies beside it.
            "PATH": folder + os.pathsep + os.environ.get("PATH", ""),
        }


ENGINES = {engine.name: engine for engine in (LlamaServer, Vllm)}
