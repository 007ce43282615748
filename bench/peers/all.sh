#!/bin/sh
# All comparisons of RESULTS.md, on a quiet machine: about half an hour on two cores.
#   bench/peers/all.sh QWEN.gguf GPT2.gguf TINY.gguf PYTHON
# The models come from shape-model (qwen3-0.6b Q4_K_M, gpt2 Q8_0, tiny Q4_K_M); PYTHON is an
# interpreter with FastAPI, uvicorn, uvloop and httptools. LLAMA_BIN names the folder of
# llama-server (default: what build.sh gives), LOQUENT the binary, RUNS the alternating runs.
set -eu
qwen=$1 gpt2=$2 tiny=$3 python=$4
here=$(dirname "$0")
out=$here/../out
llama=${LLAMA_BIN:-$("$here/build.sh")}
runs=${RUNS:-5}
# Defaults are compared, not what somebody tuned.
LOQUENT_PROFILES=$(mktemp -d)
export LOQUENT_PROFILES
compare() {
    python3 "$here/compare.py" "$@" --llama "$llama" --runs "$runs" --out "$out"
}
compare startup --model "$qwen"
compare stage15 --model "$qwen"
compare one --model "$qwen"
compare rose050 --model "$gpt2"
compare tiny16 --model "$tiny"
compare tiny64 --model "$tiny"
compare inject --model "$qwen"
python3 "$here/plot.py" "$out" >"$out/ratios.svg"
python3 "$here/delivery.py" --python "$python" --runs "$runs" --out "$out"
"$llama/llama-batched-bench" -m "$qwen" -c 8192 -npp 45 -ntg 50 -npl 1,2,4,8,16,32 2>/dev/null | grep '|'
"${LOQUENT:-loquent}" tune --model "$qwen" --plot "$out/tune.svg"
