#!/bin/sh
# Runs `loquent bench` with all reports under bench/out/NAME: run.sh NAME URL [PID] -- OPTIONS…
# With `in-process` for URL it measures the engine without HTTP, set by $ENGINE.
set -eu
name=$1 url=$2 pid=
shift 2
if [ "$1" != -- ]; then
  pid=$1
  shift
fi
shift
case $url in
  in-process) target="--in-process ${ENGINE-}" ;;
  *) target="--url $url ${pid:+--server-pid $pid}" ;;
esac
out=$(dirname "$0")/out
mkdir -p "$out"
# Neither a URL nor the engine's options hold blanks, so splitting them is right.
# shellcheck disable=SC2086
exec "${LOQUENT:-loquent}" bench $target \
  --repeat-runs "${REPEAT:-5}" --title "$name" \
  --json "$out/$name.json" --jsonl "$out/$name.jsonl" --html "$out/$name.html" "$@"
