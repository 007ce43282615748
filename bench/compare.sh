#!/bin/sh
# One preset against several servers in alternating runs; ratios are to the first.
# Usage: compare.sh PRESET NAME=URL NAME=URL… [-- OPTIONS…]
set -eu
preset=${1:?a preset of loquent bench} urls=
shift
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  urls="$urls --url $1"
  shift
done
[ $# -eq 0 ] || shift
out=$(dirname "$0")/out
mkdir -p "$out"
# The URLs hold no blanks, so splitting them is right.
# shellcheck disable=SC2086
exec "${LOQUENT:-loquent}" bench load $urls --preset "$preset" --repeat-runs "${REPEAT:-5}" \
  --json "$out/compare-$preset.json" --html "$out/compare-$preset.html" "$@"
