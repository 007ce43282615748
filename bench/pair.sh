# Two servers of one model, measured in alternating runs: sourced by the scripts that compare them.
#
# The caller sets $model and $out (the folder of the reports) first. `serve` starts a server and adds
# it to $urls; `compare` drives all of $urls in turn and prints a table's rows; `stop` ends them.
# REPEAT is the number of runs (7).

mkdir -p "$out"
work=$(mktemp -d)
pids=()
urls=()
stop() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  pids=()
  urls=()
}
trap 'stop; rm -rf "$work"' EXIT
# Defaults are compared, not what somebody tuned.
export LOQUENT_PROFILES=$work

# serve NAME BINARY OPTIONS…: starts a server and adds it to $urls
serve() {
  local name=$1 binary=$2 port=
  shift 2
  "$binary" serve --model "$model" --port 0 --max-batch-size 16 --kv-cells 8192 --context 4608 \
    --draft-tokens off "$@" 2>"$work/$name.log" &
  pids+=($!)
  for _ in $(seq 300); do
    port=$(sed -n 's|.* on http://127\.0\.0\.1:\([0-9]*\).*|\1|p' "$work/$name.log" | head -n 1)
    [ -z "$port" ] || break
    sleep 0.1
  done
  [ -n "$port" ] || { cat "$work/$name.log" >&2; return 1; }
  urls+=(--url "$name=http://127.0.0.1:$port")
}

# head_of FIRST SECOND: the table's head
head_of() {
  echo "| measure | $1 | $2 | ratio, median [least, most] | target |"
  echo "| --- | --- | --- | --- | --- |"
}

# compare PART BINARY OPTIONS OF bench…: all servers run by run in turn, then the table's rows, with
# the ratio of the second server's figure to the first's: at most 3 % of `stage15`'s tokens/s may be lost
compare() {
  local part=$1 binary=$2
  shift 2
  "$binary" bench load --quiet "${urls[@]}" --ignore-eos --warmup-runs 1 \
    --repeat-runs "${REPEAT:-7}" --json "$out/$part.json" "$@" >"$work/bench.log" 2>&1 ||
    cat "$work/bench.log" >&2
  python3 - "$out/$part.json" "$part" <<'END_OF_TABLE'
import json
import sys
from statistics import median

first, second = (group["runs"] for group in json.load(open(sys.argv[1]))["groups"])
figures = (("output_throughput", "tokens/s", ".1f"), ("ttft_p50_ms", "TTFT p50, ms", ".0f"),
           ("itl_p50_ms", "ITL p50, ms", ".1f"))
for key, meaning, form in figures:
    before, after = ([run["metrics"].get(key) for run in runs] for runs in (first, second))
    if None in before or None in after:
        continue  # one token has no latency between tokens
    target = ">= 0.97" if sys.argv[2] == "stage15" and key == "output_throughput" else ""
    ratios = [ours / theirs for ours, theirs in zip(after, before)]
    print(f"| {sys.argv[2]}: {meaning} | {median(before):{form}} | {median(after):{form}} "
          f"| {median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}] | {target} |", flush=True)
    print("runs:", json.dumps({f"{sys.argv[2]}: {meaning}": [before, after]}), flush=True)
END_OF_TABLE
}
