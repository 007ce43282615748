#!/bin/sh
# 40 requests, 16 concurrent, 50 tokens, varied prompts.
# Usage: cllm-concurrent.sh URL [PID]
set -eu
url=${1:?the server URL}
exec "$(dirname "$0")/run.sh" cllm-concurrent "$url" ${2:+"$2"} -- \
  --preset cllm-concurrent
