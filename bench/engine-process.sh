#!/bin/bash
# What `serve --engine-process` costs against the engine in the server's own process, in alternating
# runs. Usage: engine-process.sh MODEL.gguf [LOQUENT]
#
# Both servers run at once with the same settings; `loquent bench load` drives them in turn from one
# process with 16 streams (`stage15`). Prints tokens/s, time to first token and inter-token latency
# with the ratio run by run: at most 3 % of the tokens/s may be lost. Report in
# bench/out/engine-process; a quiet machine; about 3 minutes with the default 7 runs (REPEAT).
#
# MODEL: `shape-model qwen3-0.6b --quant Q4_K_M --out q.gguf`; LOQUENT: target/release/loquent.
set -euo pipefail
model=$(realpath "${1:?the model}")
here=$(dirname "$(realpath "$0")")
loquent=$(realpath "${2:-$here/../target/release/loquent}")
out=$here/out/engine-process
. "$here/pair.sh"

serve one "$loquent"
serve two "$loquent" --engine-process
head_of "one process" two
compare stage15 "$loquent" --preset cllm-stage15
