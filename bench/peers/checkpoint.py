"""Turns a GGUF file into a checkpoint that vLLM reads: the same weights in 16 bits, beside it as NAME.checkpoint.

    ~/.cache/loquent/peers/vllm/bin/python bench/peers/checkpoint.py smollm2.gguf

Runs in the environment of the peer vllm (bench/peers/build.sh vllm), whose transformers read GGUF. What vLLM computes
with is then twice to four times as large as what the others read: it has no kernels for GGUF's formats on processors.
"""

import os
import pathlib
import shutil
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers


def main(path):
    path = pathlib.Path(path).absolute()
    folder = path.with_suffix(".checkpoint")
    part = path.with_suffix(".checkpoint.part")
    shutil.rmtree(part, ignore_errors=True)
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    dense = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16, quantization_config=dense)
    # Else the checkpoint says that it is packed.
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(part)
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(part)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    print(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
