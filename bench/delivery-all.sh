#!/bin/sh
# Every measurement of delivery with real packets: TCP (CUBIC, BBR), a plain QUIC stream and Loquent
# on lossy links under three seeds, then first token, CPU time and throughput on a clean link. Fails
# if a target is missed. Needs root and a quiet machine; about 8 minutes with --quick, else 18.
# Usage: delivery-all.sh [--quick]
set -u
here=$(dirname "$0")
out=$here/out
failed=0
python3 "$here/delivery.py" "$@" || failed=1
"$here/delivery-clean.sh" --quiet || failed=1
"$here/delivery-throughput.sh" --quiet >/dev/null || failed=1
python3 "$here/delivery-table.py" "$out/delivery-clean.json" "$out/delivery-throughput.json" || failed=1
exit $failed
