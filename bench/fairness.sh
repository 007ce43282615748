#!/bin/sh
# What ten token streams leave to ten downloads on one bottleneck of 1 Mbit/s or 100 kbit/s: beside
# Loquent by QUIC the downloads (CUBIC, BBR) keep at least 0.9 of what they get beside as many event
# streams on TCP. Kernel TCP and QUIC through the emulated link, queues of 15 and 64 kB.
# Needs root (network namespaces, TUN devices) and 40 minutes; with --parallel 12 ten.
# Usage: fairness.sh [OPTIONS of loquent bench fairness…]
set -eu
if [ "$(id -u)" != 0 ]; then
  echo "fairness.sh: kernel TCP needs network namespaces, and they need root" >&2
  exit 2
fi
out=$(dirname "$0")/out
mkdir -p "$out"
exec "${LOQUENT:-loquent}" bench fairness --json "$out/fairness.json" "$@"
