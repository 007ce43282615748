#!/bin/sh
# Every measurement of delivery with real packets, and one table of it all: CUBIC, BBR, Eloquent and
# Loquent on the lossy link at three round trips, then first token, CPU time and throughput on a
# clean one. Fails if a target is missed. Needs root and a quiet machine; about ten minutes.
# Usage: delivery-all.sh [FILE for the table]
set -u
here=$(dirname "$0")
out=$here/out
failed=0
"$here/delivery.sh" || failed=1
"$here/delivery-clean.sh" || failed=1
"$here/delivery-throughput.sh" || failed=1
python3 "$here/delivery-table.py" "$out/delivery.json" "$out/delivery-clean.json" \
  "$out/delivery-throughput.json" | tee "${1:-$out/delivery-table.txt}"
exit $failed
