#!/bin/sh
# 64 requests every 20 ms, pre-tokenized, stream interval 8.
# Usage: rose-052.sh URL [PID]
set -eu
url=${1:?the server URL}
exec "$(dirname "$0")/run.sh" rose-052 "$url" ${2:+"$2"} -- \
  --preset rose-052
