#!/bin/sh
# 2,000 streams, one more every 2 ms, 300 tokens each: at 10 tokens/s each lasts 30 s. First
# what they weigh on a server just started (RSS growth per stream, without the timings that
# only a benchmark asks for), then CPU per token and lateness at intervals 1, 8 and auto.
# Usage: two-thousand.sh URL [PID]
set -eu
url=${1:?the server URL}
run=$(dirname "$0")/run.sh
streams="--endpoint completions --requests 2000 --submit-interval-ms 2 --max-tokens 300 --ignore-eos --recount 16"
# shellcheck disable=SC2086 # options, split on purpose
REPEAT=1 "$run" two-thousand-memory "$url" ${2:+"$2"} -- $streams --no-server-timings
# shellcheck disable=SC2086
exec "$run" two-thousand "$url" ${2:+"$2"} -- $streams --stream-interval 1,8,auto
