#!/bin/sh
# The largest burst of readers of which nearly all are content, at a server whose simulated engine takes as long as
# loquent-tiny does (plans/burst.toml), first come, first served and by need, for several batch sizes. About five
# minutes; the engine sleeps, so that a busy machine disturbs little.
# Usage: burst.sh [LOQUENT]; BATCHES, READERS and STEPS override what is tried.
set -eu
loquent=${1:-target/release/loquent}
log=$(mktemp)
trap 'kill "$server" 2>/dev/null; rm -f "$log"' EXIT
server=
for batch in ${BATCHES:-16 32 64 128}; do
  for policy in "" "--reading-speed 10"; do
    # shellcheck disable=SC2086 # the policy is none or two words
    "$loquent" serve --simulate "${STEPS:-0+0.4+0.1}" --no-prefix-cache --max-batch-size "$batch" --port 0 \
      --kv-cells 131072 $policy 2>"$log" &
    server=$!
    until grep -q 'on http' "$log"; do sleep 0.1; done
    url=$(grep -o 'http://[^ ]*' "$log" | head -1)
    echo "--max-batch-size $batch ${policy:-first come, first served}"
    "$loquent" bench burst --url "$url" --prompt-tokens 256 --readers "${READERS:-16,24,32,40,48,56,64,72}" || true
    kill "$server"
    wait "$server" || true
  done
done
