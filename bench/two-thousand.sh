#!/bin/sh
# 2,000 streams at once, 300 tokens each: at 10 tokens/s they last 30 s.
# Usage: two-thousand.sh URL [PID]
set -eu
url=${1:?the server URL}
exec "$(dirname "$0")/run.sh" two-thousand "$url" ${2:+"$2"} -- \
  --endpoint completions --requests 2000 --max-tokens 300 --no-stop-on-eos --stream-interval 1,8,auto --recount 16
