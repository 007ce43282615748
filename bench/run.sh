#!/bin/sh
# Runs `loquent bench load` with all reports under bench/out/NAME: run.sh NAME URL [PID] -- OPTIONS…
# With `engine` for URL it measures the engine without HTTP; $ENGINE holds the engine's options.
set -eu
name=$1 url=$2 pid=
shift 2
if [ "$1" != -- ]; then
  pid=$1
  shift
fi
shift
case $url in
  engine) target="engine ${ENGINE-}" ;;
  *) target="load --url $url ${pid:+--server-pid $pid}" ;;
esac
out=$(dirname "$0")/out
mkdir -p "$out"
# Neither a URL nor the engine's options hold blanks, so splitting them is right.
# shellcheck disable=SC2086
exec "${LOQUENT:-loquent}" bench $target \
  --repeat-runs "${REPEAT:-5}" --title "$name" \
  --json "$out/$name.json" --jsonl "$out/$name.jsonl" --html "$out/$name.html" "$@"
