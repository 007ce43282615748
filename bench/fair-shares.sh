#!/bin/sh
# Fair shares by key, with the simulated engine: the TTFT of a key that asks now and then, alone and
# beside one that asks for 64 answers at once, and the shares of two greedy keys of weights 1 and 3.
# Usage: fair-shares.sh [SECONDS], by default 60 for each of the three phases
set -eu
here=$(dirname "$0")
exec "${PYTHON:-python3}" "$here/abuse/fair_shares.py" --seconds "${1:-60}" \
  --binary "${LOQUENT:-loquent}" --json "$here/out/fair-shares.json"
