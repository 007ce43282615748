#!/bin/bash
# A model split over stages on this machine, beside every other way to run it here.
# Usage: stages.sh MODEL.gguf [PART…]      parts: loopback pinned four one single rpc rpc-delayed seed
#        (default: all but seed)
#
# In each part all servers are up at once and answer in alternating runs, so that ratios are
# of neighbouring runs. Every stage is a process of its own on loopback. Prompts are those of
# the preset, computed in the warm-up and then kept in the prefix cache: what is measured is
# decoding. Prints Markdown: medians with [smallest, largest], and ratios with their targets;
# the reports are in bench/out/stages. A quiet machine of two cores; about 12 minutes with
# 3 runs each (REPEAT=3), one to three minutes a part.
#
# seed is the setting of the Skippy pull request, for a model of 8B parameters: 2 and 4 stages, 2 and 4
# requests at once (TOKENS=16; about 10 minutes).
#
# MODEL: `shape-model qwen3-0.6b --quant Q4_K_M --out q.gguf`. Linux, for taskset. TOKENS=50 for
# longer answers. The parts rpc need a build with --features rpc,
# and rpc-delayed root for `loquent link`; without that they say so.
set -euo pipefail
model=$(realpath "${1:?the model}")
shift
parts=${*:-loopback pinned four one single rpc rpc-delayed}
loquent=$(command -v "${LOQUENT:-loquent}") || { echo "no loquent; set LOQUENT" >&2; exit 1; }
here=$(dirname "$(realpath "$0")")
out=$here/out/stages
mkdir -p "$out"
work=$(mktemp -d)
pids=()
urls=()
started=0
stop() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  pids=()
  urls=()
}
trap 'stop; rm -rf "$work"' EXIT

# address_in LOG: where the process that writes LOG says it listens
address_in() {
  for _ in $(seq 300); do
    sed -n 's|.* on \(http://\)\{0,1\}\(127\.0\.0\.1:[0-9]*\)$|\2|p' "$1" | grep . && return
    sleep 0.1
  done
  echo "it never listened:" >&2
  cat "$1" >&2
  return 1
}

# stages N THREADS [CORE…]: starts the stages of the model split in N; sets $list and $entry, and
# $inside: the same stages, but the first in the server's process
stages() {
  local n=$1 threads=$2 i pin log
  shift 2
  local cores=("$@")
  entry=$work/$n-entry.gguf
  [ -e "$entry" ] || "$loquent" split "$model" --stages "$n" --out "$work/$n" >/dev/null
  list=
  for i in $(seq "$n"); do
    pin=()
    [ ${#cores[@]} -eq 0 ] || pin=(taskset -c "${cores[$((i - 1))]}")
    started=$((started + 1))
    log=$work/$started.log
    : >"$log"
    "${pin[@]}" "$loquent" stage --model "$work/$n-stage-$i-of-$n.gguf" --listen 127.0.0.1:0 \
      --threads "$threads" 2>"$log" &
    pids+=($!)
    list+=${list:+,}$(address_in "$log")
  done
  inside=$work/$n-stage-1-of-$n.gguf,${list#*,}
}

# server NAME OPTIONS OF serve…: adds it to those that are compared next
server() {
  local name=$1 log
  shift
  started=$((started + 1))
  log=$work/$started.log
  : >"$log"
  "$loquent" serve --port 0 --context 512 --kv-cells 4096 "$@" 2>"$log" &
  pids+=($!)
  urls+=("$name=http://$(address_in "$log")")
}

# split_server NAME OPTIONS…: one over the stages of $list
split_server() {
  local name=$1
  shift
  server "$name" --model "$entry" --stages "$list" "$@"
}

# compare PART CONCURRENT REQUESTS [NAME…]: the servers of these names, or all, run by run in turn
compare() {
  local only=() url name
  for url in "${urls[@]}"; do
    name=${url%%=*}
    if [ $# -eq 3 ] || [[ " ${*:4} " == *" $name "* ]]; then only+=(--url "$url"); fi
  done
  "$loquent" bench load --quiet "${only[@]}" --preset skippy-chat-corpus -c "$2" -n "$3" \
    --max-tokens "${TOKENS:-24}" --ignore-eos --warmup-runs 1 --repeat-runs "${REPEAT:-3}" \
    --json "$out/$1-$2.json" >"$work/bench.log" 2>&1 || cat "$work/bench.log" >&2
  python3 "$here/stages.py" "$out/$1-$2.json" "$1" "$2"
}

heading() {
  printf '\n### %s\n\n| configuration | concurrent | tokens/s | target | TTFT p95, ms | TPOT p50, ms | target |\n| --- | --- | --- | --- | --- | --- | --- |\n' "$1"
}

for part in $parts; do
  case $part in
    loopback)
      heading "2 stages on loopback that share the cores"
      # Without batching over requests: one after the other, or a lane for each.
      stages 2 2; split_server batched --max-batch-size 16
      stages 2 2; split_server serial,2-threads --max-batch-size 1 --pipeline-depth 1
      stages 2 1; split_server lanes,1-thread --max-batch-size 16 --pipeline-depth 16
      stages 2 2; split_server lanes,2-threads --max-batch-size 16 --pipeline-depth 16
      # One after the other, and two threads that fight for cores, do not gain from more load.
      compare loopback 2 8
      compare loopback 4 8 batched lanes,1-thread
      compare loopback 16 32 batched lanes,1-thread ;;
    pinned)
      heading "2 stages with a core of their own each, 5 ms each way"
      for depth in 1 auto 2 3; do
        stages 2 1 0 1
        split_server "depth-$depth" --max-batch-size 8 --pipeline-depth "$depth" --link-delay-ms 5
      done
      compare pinned 8 24 ;;
    four)
      heading "4 stages, 10 ms each way, the first in the server's process: four hops"
      # Two cores for four stages: in turns, each with both.
      for depth in auto 2; do
        export LOQUENT_COMPUTE_LOCK=$work/lock-$depth LOQUENT_KEEP_CORES_AWAKE_MS=0
        stages 4 2; list=$inside
        split_server "batched,depth-$depth" --threads 2 --max-batch-size 16 --pipeline-depth "$depth" --link-delay-ms 10
        unset LOQUENT_COMPUTE_LOCK LOQUENT_KEEP_CORES_AWAKE_MS
      done
      stages 4 1; list=$inside
      split_server lanes,1-thread --threads 1 --max-batch-size 16 --pipeline-depth 16 --link-delay-ms 10
      compare four 16 48
      stop
      # One after the other takes as long for each token whatever waits: two requests do.
      stages 4 2; list=$inside
      split_server serial,2-threads --threads 2 --max-batch-size 1 --pipeline-depth 1 --link-delay-ms 10
      compare four-serial 16 2 ;;
    one)
      heading "one stream, 2 stages, the first in the server's process: two hops"
      server unsplit --model "$model" --threads 2
      for delay in 0 10; do
        stages 2 2
        list=$inside
        split_server "hop-${delay}ms" --max-batch-size 1 --threads 2 --link-delay-ms "$delay"
      done
      compare one 1 4 ;;
    single)
      heading "2 stages on loopback and one process, 2 threads"
      server unsplit --model "$model" --threads 2 --max-batch-size 16
      stages 2 2; split_server batched --max-batch-size 16
      compare single 1 4
      compare single 16 32 ;;
    seed)
      for n in 2 4; do
        heading "$n stages on loopback that share the cores, as in the Skippy pull request"
        stages "$n" 2; split_server batched --max-batch-size 4
        stages "$n" 1; split_server lanes,1-thread --max-batch-size 4 --pipeline-depth 4
        stages "$n" 2; split_server lanes,2-threads --max-batch-size 4 --pipeline-depth 4
        for c in 2 4; do compare "seed-$n" "$c" $((2 * c)); done
        stop
      done ;;
    rpc | rpc-delayed)
      if ! "$loquent" rpc-server --help >/dev/null 2>&1; then
        echo "$part is not measured: $loquent was built without --features rpc"
        continue
      fi
      read -ra ports <<<"${RPC_PORTS:-50052 50053}"
      if [ "$part" = rpc-delayed ]; then
        # Both RPC servers behind an emulated link; ours delays each of its three hops itself.
        far="'$loquent' rpc-server --threads 2 --listen 0.0.0.0"
        "$loquent" link --quiet --rtt 10 --server "$far:${ports[0]} >/dev/null & $far:${ports[1]} >/dev/null" \
          --wait "${ports[1]}" -- env DELAY_MS=5 \
          RPC_SERVERS="10.77.0.2:${ports[0]},10.77.0.2:${ports[1]}" bash "$0" "$model" rpc
        continue
      fi
      heading "2 stages and llama.cpp's RPC, 2 threads each, ${DELAY_MS:-0} ms each way"
      rpc=${RPC_SERVERS:-}
      if [ -z "$rpc" ]; then
        for port in "${ports[@]}"; do
          "$loquent" rpc-server --listen "127.0.0.1:$port" --threads 2 >/dev/null 2>&1 &
          pids+=($!)
          rpc+=${rpc:+,}127.0.0.1:$port
        done
        sleep 1 # they do not say when they listen
      fi
      server rpc --model "$model" --rpc "$rpc" --threads 2 --max-batch-size 16
      stages 2 2; split_server batched --max-batch-size 16 --link-delay-ms "${DELAY_MS:-0}"
      for c in 1 4 16; do
        compare "rpc${DELAY_MS:+-${DELAY_MS}ms}" "$c" $((c > 8 ? 16 : c > 1 ? 8 : 4))
      done ;;
    *) echo "no part is called $part" >&2; exit 2 ;;
  esac
  stop
done
