#!/bin/sh
# What delivery by QUIC costs where nothing is lost: the first token's way, bytes, and the server's
# CPU time per token, beside SSE of the same server. Needs root.
# Usage: delivery-clean.sh [OPTIONS of loquent bench delivery…]
set -eu
out=$(dirname "$0")/out
mkdir -p "$out"
exec "${LOQUENT:-loquent}" bench delivery --title "Delivery over a clean link" \
  --rtt 50 --loss none --sessions 64 --duration-s 20 --schemes serve-cubic,serve-bbr,loquent \
  --json "$out/delivery-clean.json" --html "$out/delivery-clean.html" "$@"
