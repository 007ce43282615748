#!/bin/sh
# What one decode step costs the engine thread beside computing, at 1, 8 and 64 streams: its
# hand-overs, its sleeps (voluntary context switches) and its futex calls (with strace), each
# per step. None may grow with the batch. Linux only.
# Usage: hand-over.sh URL PID
set -eu
url=${1:?the server URL} pid=${2:?the process id of the server}
task=$(grep -lx engine /proc/"$pid"/task/*/comm | sed 's|/comm$||')

counter() { curl -sf "$url/metrics" | awk -v name="$1" '$1 == name { print $2 }'; }
sleeps() { awk '/^voluntary_ctxt_switches/ { print $2 }' "$task/status"; }
load() {
  "${LOQUENT:-loquent}" bench load --url "$url" --endpoint completions --requests "$1" --max-tokens "$2" \
    --ignore-eos --stream-interval 8 --recount 1 >/dev/null
}

printf '%8s %8s %14s %14s %14s\n' streams steps hand-overs/st sleeps/step futex/step
for streams in 1 8 64; do
  steps=$(counter loquent_engine_steps_total) hands=$(counter loquent_hand_over_seconds_count) slept=$(sleeps)
  load "$streams" 1000
  steps=$(($(counter loquent_engine_steps_total) - steps))
  hands=$(($(counter loquent_hand_over_seconds_count) - hands)) slept=$(($(sleeps) - slept)) futex=-
  if command -v strace >/dev/null; then
    # Traced apart: tracing slows every step down.
    before=$(counter loquent_engine_steps_total) log=$(mktemp)
    strace -qq -e trace=futex -p "${task##*/}" -o "$log" & tracer=$!
    load "$streams" 1000
    kill "$tracer"; wait "$tracer" || true
    futex=$(awk -v calls="$(wc -l <"$log")" -v steps="$(($(counter loquent_engine_steps_total) - before))" 'BEGIN { printf "%.2f", calls / steps }')
    rm "$log"
  fi
  awk -v n="$streams" -v s="$steps" -v h="$hands" -v c="$slept" -v f="$futex" \
    'BEGIN { printf "%8d %8d %14.2f %14.2f %14s\n", n, s, h / s, c / s, f }'
done
