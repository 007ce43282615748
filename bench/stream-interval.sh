#!/bin/sh
# Interval 1 against 8 and auto with 64 streams: chunks, CPU per token, TTFT, equal texts.
# Usage: stream-interval.sh URL [PID]
set -eu
url=${1:?the server URL}
exec "$(dirname "$0")/run.sh" stream-interval "$url" ${2:+"$2"} -- \
  --preset rose-050 --stream-interval 1,8,auto --temperature 0 --seed 1
