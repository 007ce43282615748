#!/usr/bin/env python3
"""Takes llama-server's command line and becomes `loquent serve` with what it means there.

For llama.cpp's server tests, which start what LLAMA_SERVER_BIN_PATH names. Whatever model they ask for, they get the
one of HELD_OUT_MODEL, or the bundled one. A setting that Loquent does not have, and without which a test means nothing,
ends the program with status 1 and says so.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = Path(os.environ.get("HELD_OUT_MODEL") or ROOT / "models/loquent-tiny.gguf")
# A flag of llama-server with a value, and Loquent's.
SAME = {
    "--port": "--port",
    "--temp": "--temperature",
    "--seed": "--seed",
    "--alias": "--served-model-name",
    "--api-key": "--api-key",
    "--batch-size": "--prefill-max-tokens",
    "--threads": "--threads",
    "--models-dir": "--models-dir",
    "--models-max": "--max-loaded-models",
    "--sleep-idle-seconds": "--model-idle-s",
    "--chat-template": "--chat-template",
    "--chat-template-file": "--chat-template",
    "--chat-template-kwargs": "--chat-template-kwargs",
}
# Whether models think, where a request does not say; llama-server tells every template that they do.
THINKS = {
    "auto": ["--chat-template-kwargs", '{"enable_thinking": true}'],
    "on": ["--chat-template-kwargs", '{"enable_thinking": true}'],
    "off": ["--chat-template-kwargs", '{"enable_thinking": false}'],
}
# What says nothing about an answer, or is Loquent's way in any case; the number is that of values.
NOTHING = {
    "--offline": 0, "--hf-repo": 1, "--hf-file": 1, "--model": 1, "--model-url": 1, "--ubatch-size": 1,
    "--n-gpu-layers": 1, "--cont-batching": 0, "--metrics": 0, "--swa-full": 0, "--slots": 0,
    "--no-slots": 0, "--tags": 1, "--jinja": 0, "--no-jinja": 0, "--no-ui": 0, "--verbose": 0, "-fa": 1,
    "--cache-ram": 1, "--n-predict": 1, "--no-mmproj": 0, "--backend_sampling": 0,
}


def translated(words):
    """Loquent's arguments for llama-server's; what it has no word for ends the program."""
    arguments, context, slots, pooling, embeds, is_unified = [], None, 1, None, False, False
    words = iter(words)
    for word in words:
        if word in SAME:
            arguments += [SAME[word], next(words)]
        elif word in NOTHING:
            for _ in range(NOTHING[word]):
                next(words)
        elif word == "--host":
            arguments += ["--host", next(words).split(",")[0]]
        elif word == "--cors-origins":
            # Theirs is a list; `localhost` stands for every page of this machine, which is Loquent's default.
            origins = [origin for origin in next(words).split(",") if origin != "localhost"]
            arguments += [part for origin in origins for part in ("--cors-origin", origin)]
        elif word == "--ctx-size":
            context = int(next(words))
        elif word == "--parallel":
            slots = int(next(words))
        elif word == "--pooling":
            pooling = next(words)
        elif word == "--embedding":
            embeds = True
        elif word == "--kv-unified":
            is_unified = True
        elif word == "--reasoning" and (switch := next(words)) in THINKS:
            arguments += THINKS[switch]
        elif word == "--reasoning-format":
            arguments += ["--reasoning-format", "none" if next(words) == "none" else "auto"]
        else:
            sys.exit(f"held-out: Loquent has no setting for llama-server's {word}")
    arguments += ["--max-batch-size", str(slots)]
    if context and is_unified:
        arguments += ["--context", str(context), "--kv-cells", str(context)]
    elif context:
        # llama-server divides it among its slots.
        arguments += ["--context", str(context // slots)]
    if embeds:
        arguments += ["--embeddings", pooling or "mean"]
    return arguments


if __name__ == "__main__":
    arguments = translated(sys.argv[1:])
    if "--model" not in arguments and "--models-dir" not in arguments:
        arguments += ["--model", str(MODEL)]
    command = [os.environ["LOQUENT_BIN"], "serve", "--no-quic", "--no-profile", *arguments]
    os.execv(command[0], command)
