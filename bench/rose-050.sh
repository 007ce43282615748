#!/bin/sh
# 64 requests at once, 128 tokens each, stream interval 1 against 8.
# Usage: rose-050.sh URL [PID]
set -eu
url=${1:?the server URL}
exec "$(dirname "$0")/run.sh" rose-050 "$url" ${2:+"$2"} -- \
  --preset rose-050
