#!/bin/bash
# What the portable binary loses against one built for this processor, in alternating runs.
# Usage: portable.sh MODEL.gguf NATIVE PORTABLE
#
# NATIVE is what `make run` builds (target/release/loquent), PORTABLE what `tools/portable` prints.
# Both serve at once with the same settings; `loquent bench load` drives them in turn from one
# process. Prints tokens/s, time to first token and the ratio portable ÷ native run by run: 16
# streams (`stage15`) with both kinds of kernels, one stream, and long prompts. At most 3 % may be
# lost at `stage15` with the default kernels. Reports in bench/out/portable; a quiet machine of two
# cores; about 8 minutes with the default 7 runs (REPEAT).
#
# MODEL: `shape-model qwen3-0.6b --quant Q4_K_M --out q.gguf`. The parts can be named in PARTS.
set -euo pipefail
model=$(realpath "${1:?the model}")
native=$(realpath "${2:?the binary built for this processor}")
portable=$(realpath "${3:?the portable binary}")
parts=${PARTS:-stage15 llama.cpp one prompt}
here=$(dirname "$(realpath "$0")")
out=$here/out/portable
. "$here/pair.sh"

head_of native portable
for part in $parts; do
  options=()
  [ "$part" != llama.cpp ] || options=(--kernels llama.cpp)
  [ "$part" != prompt ] || options=(--no-prefix-cache)
  serve native "$native" "${options[@]}"
  serve portable "$portable" "${options[@]}"
  case $part in
    stage15 | llama.cpp) compare "$part" "$native" --preset cllm-stage15 ;;
    one) compare one "$native" --preset cllm-stage15 -n 2 -c 1 --max-tokens 128 ;;
    prompt) compare prompt "$native" --endpoint completions --prompt-repeats 300 -n 2 -c 1 --max-tokens 1 ;;
    *) echo "no part is called $part" >&2; exit 2 ;;
  esac
  stop
done
