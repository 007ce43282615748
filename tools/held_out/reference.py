#!/usr/bin/env python3
"""llama-server as the package xllamacpp has it, under llama-server's command line: what the tests say of itself.

Each model that the tests ask for is that of HELD_OUT_MODEL, as with Loquent.
"""

import os
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A flag with a value: the parameter, and what the value is.
VALUES = {
    "--port": ("port", int), "--ctx-size": ("n_ctx", int), "--parallel": ("n_parallel", int),
    "--batch-size": ("n_batch", int), "--ubatch-size": ("n_ubatch", int), "--n-predict": ("n_predict", int),
    "--chat-template": ("chat_template", str), "--cache-ram": ("cache_ram_mib", int),
}
SWITCHES = {
    "--slots": ("endpoint_slots", True), "--no-slots": ("endpoint_slots", False),
    "--metrics": ("endpoint_metrics", True), "--jinja": ("use_jinja", True), "--no-jinja": ("use_jinja", False),
    "--embedding": ("embedding", True), "--kv-unified": ("kv_unified", True), "--no-ui": ("ui", False),
    "--offline": ("offline", True), "--verbose": ("verbosity", 10),
    "--cont-batching": ("cont_batching", True), "--swa-full": ("swa_full", True),
}
IGNORED = {"--hf-repo", "--hf-file", "--model", "--model-url", "--tags", "--threads", "--n-gpu-layers", "-fa"}


def parameters(words):
    import xllamacpp

    found = xllamacpp.CommonParams()
    found.model.path = os.environ.get("HELD_OUT_MODEL") or str(ROOT / "models/loquent-tiny.gguf")
    found.n_gpu_layers = 0
    found.endpoint_metrics = False
    words = iter(words)
    for word in words:
        if word in SWITCHES:
            setattr(found, *SWITCHES[word])
        elif word in VALUES:
            name, kind = VALUES[word]
            setattr(found, name, kind(next(words)))
        elif word in IGNORED:
            next(words)
        elif word == "--host":
            found.hostnames = next(words).split(",")
        elif word == "--api-key":
            found.api_keys = [next(words)]
        elif word == "--alias":
            found.model_alias = set(next(words).split(","))
        elif word == "--cors-origins":
            found.cors_origins = next(words)
        elif word == "--temp":
            found.sampling.temp = float(next(words))
        elif word == "--seed":
            found.sampling.seed = int(next(words))
        elif word == "--chat-template-file":
            found.chat_template = Path(next(words)).read_text()
        elif word == "--pooling":
            found.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{next(words).upper()}")
        elif word == "--reasoning-format":
            formats = xllamacpp.common_reasoning_format
            found.reasoning_format = getattr(formats, f"COMMON_REASONING_FORMAT_{next(words).upper()}")
        else:
            sys.exit(f"held-out: no parameter for {word}")
    return xllamacpp, found


if __name__ == "__main__":
    package, wanted = parameters(sys.argv[1:])
    server = package.Server(wanted)
    threading.Event().wait()
