"""llama.cpp's own server, of the package xllamacpp, as the reference: what it writes, and what it thinks of a text.

As a program (`python llama_cpp.py MODEL CONTEXT`) it serves the model on a free port of loopback until it is ended.
"""

import os
import re
import subprocess
import sys
import threading

import httpx

PATIENCE_S = 120
LISTENING = re.compile(r"listening on (http://\S+)")


class LlamaCpp:
    """A process with llama.cpp's server, for one request at a time."""

    def __init__(self, model, context=4096):
        # Threads that wait for work sleep: they spin otherwise, which takes a busy machine's cores from the others.
        env = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(model), str(context)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env, text=True,
            errors="replace",
        )
        self.log, self.url, self._listening = [], None, threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._listening.wait(PATIENCE_S) or not self.url:
            self.close()
            raise AssertionError("llama.cpp did not start: " + "".join(self.log[-20:]))
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def _read(self):
        for line in self.process.stdout:
            self.log.append(line)
            if found := LISTENING.search(line):
                self.url = found[1]
                self._listening.set()
        self._listening.set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()
        self.close()

    def close(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self.process.stdout.close()

    def ask(self, path, body):
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def tokens(self, text):
        return self.ask("/tokenize", {"content": text, "add_special": True})["tokens"]

    def greedy(self, prompt, count):
        """The likeliest text after `prompt`, a text or tokens."""
        ask = {"prompt": prompt, "n_predict": count, "temperature": 0, "cache_prompt": False}
        return self.ask("/completion", ask)["content"]

    def scores(self, tokens, first=1):
        """For each token from the index `first` on: its log-probability after those before it, and the likeliest
        token there, as text.

        The server scores what it generates, not prompts: a bias makes it generate the token, and what it reports is
        without the bias.
        """
        found = []
        for at in range(first, len(tokens)):
            bias = [[tokens[at], 1000]]
            one = self.ask("/completion", {"prompt": tokens[:at], "n_predict": 1, "n_probs": 1, "temperature": 0,
                                           "logit_bias": bias, "cache_prompt": True})["completion_probabilities"][0]
            assert one["id"] == tokens[at]
            found.append((one["logprob"], one["top_logprobs"][0]["token"]))
        return found


def main(model, context):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = int(context)
    params.n_parallel = 1
    params.port = 0
    params.n_gpu_layers = 0
    server = xllamacpp.Server(params)
    assert server.listening_address
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
