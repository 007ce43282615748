#!/bin/sh
# 40 requests, 16 concurrent, 50 tokens, one fixed prompt.
# Usage: cllm-stage15.sh URL [PID]
set -eu
url=${1:?the server URL}
exec "$(dirname "$0")/run.sh" cllm-stage15 "$url" ${2:+"$2"} -- \
  --preset cllm-stage15
