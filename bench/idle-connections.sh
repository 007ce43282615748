#!/bin/sh
# TTFT of new requests beside 10,000 idle connections and 1,000 that send a head one byte at a time,
# from 200 addresses of 127/8, against the same server without them. Connections that the server
# ends are opened again. Needs Linux, and 12,500 descriptors per process (ulimit -Hn).
# Usage: idle-connections.sh [SECONDS], by default 60 for each phase
set -eu
here=$(dirname "$0")
exec "${PYTHON:-python3}" "$here/abuse/idle_run.py" --seconds "${1:-60}" \
  --binary "${LOQUENT:-loquent}" --json "$here/out/idle-connections.json"
