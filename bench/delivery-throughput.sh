#!/bin/sh
# 64 fast streams on a clean link: how many tokens a second arrive by QUIC, beside SSE of the same
# server, and what a token costs it. Claim: QUIC within 5 % of SSE. Needs root; about half a minute.
# Usage: delivery-throughput.sh [OPTIONS of loquent bench delivery…]
set -eu
here=$(dirname "$0")
out=$here/out
mkdir -p "$out"
"${LOQUENT:-loquent}" bench delivery --title "Throughput over a clean link" \
  --rtt 10 --loss none --sessions 64 --duration-s 2 --tokens-per-s 200 --schemes serve-bbr,loquent \
  --json "$out/delivery-throughput.json" --html "$out/delivery-throughput.html" "$@"
exec python3 "$here/delivery-table.py" "$out/delivery-throughput.json"
