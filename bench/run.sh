#!/bin/sh
# Runs `loquent bench` with all reports under bench/out/NAME: run.sh NAME URL [PID] -- OPTIONS…
set -eu
name=$1 url=$2 pid=
shift 2
if [ "$1" != -- ]; then
  pid=$1
  shift
fi
shift
out=$(dirname "$0")/out
mkdir -p "$out"
exec "${LOQUENT:-loquent}" bench --url "$url" ${pid:+--server-pid "$pid"} \
  --repeat-runs "${REPEAT:-5}" --title "$name" \
  --json "$out/$name.json" --jsonl "$out/$name.jsonl" --html "$out/$name.html" "$@"
