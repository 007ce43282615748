#!/bin/bash
# A model split over stages on this machine: with and without batching over requests, with and
# without groups, against one process. Every stage is a process of its own on loopback.
# Usage: stages.sh MODEL.gguf [PART…]      parts: loopback pinned four one single (default: all)
# Prompts are those of the preset, computed in a warm-up run and then kept in the prefix cache:
# what is measured is decoding.
# MODEL: `shape-model qwen3-0.6b --quant Q4_K_M --out q.gguf`. Linux, for taskset. About a
# minute per part. Prints one line per measurement: configuration, concurrent, tokens/s,
# TTFT p95 in ms, TPOT p50 in ms; the reports are in bench/out/stages.
set -euo pipefail
model=$(realpath "${1:?the model}")
shift
parts=${*:-loopback pinned four one single}
loquent=${LOQUENT:-loquent}
out=$(dirname "$0")/out/stages
mkdir -p "$out"
work=$(mktemp -d)
pids=()
stop() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  pids=()
}
trap 'stop; rm -rf "$work"' EXIT

# address_in LOG: where the process that writes LOG says it listens
address_in() {
  for _ in $(seq 600); do
    sed -n 's|.* on \(http://\)\{0,1\}\(127\.0\.0\.1:[0-9]*\)$|\2|p' "$1" | grep . && return
    sleep 0.1
  done
  cat "$1" >&2
  return 1
}

# stages N THREADS [CORE…]: starts the stages of the model split in N; sets $list and $entry
stages() {
  local n=$1 threads=$2 i pin
  shift 2
  local cores=("$@")
  entry=$work/$n-entry.gguf
  [ -e "$entry" ] || "$loquent" split "$model" --stages "$n" --out "$work/$n" >/dev/null
  list=
  for i in $(seq "$n"); do
    pin=
    [ ${#cores[@]} -eq 0 ] || pin="taskset -c ${cores[$((i - 1))]}"
    # shellcheck disable=SC2086
    $pin "$loquent" stage --model "$work/$n-stage-$i-of-$n.gguf" --listen 127.0.0.1:0 \
      --threads "$threads" 2>"$work/stage-$i.log" &
    pids+=($!)
    list+=${list:+,}$(address_in "$work/stage-$i.log")
  done
}

# measure NAME CONCURRENT REQUESTS OPTIONS OF serve…
measure() {
  local name=$1 concurrent=$2 requests=$3
  shift 3
  "$loquent" serve --port 0 --context 512 --kv-cells 16384 "$@" \
    2>"$work/serve.log" &
  pids+=($!)
  local url
  url=http://$(address_in "$work/serve.log")
  "$loquent" bench --quiet --url "$url" --preset skippy-chat-corpus -c "$concurrent" \
    -n "$requests" --max-tokens "${TOKENS:-24}" --no-stop-on-eos --warmup-runs 1 \
    --repeat-runs "${REPEAT:-1}" --json "$out/$name-$concurrent.json" >"$work/bench.log" 2>&1 ||
    cat "$work/bench.log" >&2
  python3 - "$out/$name-$concurrent.json" "$name" "$concurrent" <<'PY'
import json, sys
m = json.load(open(sys.argv[1]))["groups"][0]["median"]
print(f"{sys.argv[2]:40} {sys.argv[3]:>3} {m['output_throughput']:8.1f} tok/s  TTFT p95 {m['ttft_p95_ms']:7.0f} ms  TPOT p50 {m['tpot_p50_ms']:6.1f} ms", flush=True)
PY
  stop
}

split_serve() { # NAME CONCURRENT REQUESTS OPTIONS…
  local name=$1 concurrent=$2 requests=$3
  shift 3
  measure "$name" "$concurrent" "$requests" --model "$entry" --stages "$list" "$@"
}

for part in $parts; do
  case $part in
    loopback) # two stages that share the cores
      for c in ${CONCURRENT:-2 4 16}; do
        n=$((c > 8 ? 32 : 8))
        stages 2 2
        split_serve batched "$c" "$n" --max-batch-size 16
        # Without batching over requests: one after the other, or a lane for each.
        stages 2 2
        split_serve unbatched-serial-2-threads "$c" "$n" --max-batch-size 1 --groups 1
        stages 2 1
        split_serve unbatched-lanes-1-thread "$c" "$n" --max-batch-size "$c" --groups "$c"
        stages 2 2
        split_serve unbatched-lanes-2-threads "$c" "$n" --max-batch-size "$c" --groups "$c"
      done ;;
    pinned) # two stages with a core of their own, 5 ms each way
      for groups in 1 auto 2; do
        stages 2 1 0 1
        split_serve "pinned-groups-$groups" 8 32 --max-batch-size 8 --groups "$groups" \
          --link-delay-ms 5
      done ;;
    four) # four stages, 10 ms each way
      stages 4 1
      split_serve four-batched 16 32 --max-batch-size 16 --link-delay-ms 10
      stages 4 2
      split_serve four-unbatched-serial 16 16 --max-batch-size 1 --groups 1 --link-delay-ms 10
      stages 4 1
      split_serve four-unbatched-lanes 16 32 --max-batch-size 16 --groups 16 --link-delay-ms 10 ;;
    one) # one stream, two stages: what the hops cost
      for delay in 0 10; do
        # The server computes the first stage, so that there are two hops: there and back.
        stages 2 2
        list="$work/2-stage-1-of-2.gguf,${list#*,}"
        split_serve "one-stream-${delay}ms" 1 8 --max-batch-size 1 --threads 2 \
          --link-delay-ms "$delay"
      done ;;
    single) # the unsplit model in one process
      for c in 1 16; do
        measure unsplit "$c" $((c > 8 ? 32 : 4)) --model "$model" --threads 2 --max-batch-size 16
      done
      stages 2 2
      split_serve batched 1 4 --max-batch-size 16 ;;
    *) echo "no part is called $part" >&2; exit 2 ;;
  esac
done
