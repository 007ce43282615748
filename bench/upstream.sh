#!/bin/sh
# An upstream server asked directly and through `loquent serve --upstream`, alternating: 160
# requests, 16 concurrent. Claims: at least 0.97 of the throughput, TTFT p50 within 3 ms, none lost.
# Usage: upstream.sh UPSTREAM-URL [-- OPTIONS…]      PORT (18099) is the front's, REQUESTS (160) and REPEAT (3) the size
set -eu
upstream=${1:?the URL of the upstream server} port=${PORT:-18099}
shift
[ $# -eq 0 ] || shift
"${LOQUENT:-loquent}" serve --upstream "$upstream" --port "$port" &
front=$!
trap 'kill $front' EXIT
tries=0
until curl -sf "http://127.0.0.1:$port/ready" >/dev/null; do
  tries=$((tries + 1))
  [ "$tries" -lt 100 ] || { echo "the front never got ready" >&2; exit 1; }
  sleep 0.1
done
REPEAT=${REPEAT:-3} "$(dirname "$0")/compare.sh" cllm-stage15 \
  direct="$upstream" front="http://127.0.0.1:$port" -- --requests "${REQUESTS:-160}" --warmup-runs 1 "$@"
