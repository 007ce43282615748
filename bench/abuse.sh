#!/bin/sh
# All attacks at once on `loquent serve --simulate 25`, beside 4 honest streams and keys that arrive
# meanwhile: a quiet phase, then three rounds. The server, its users and its attackers (at nice 19) are
# processes of this machine.
# Prints what became of each attack, and figures with their bounds.
# Usage: abuse.sh [SECONDS [ROUNDS]], by default 600 and 3. QUIC's attackers need aioquic (PyPI);
# $PYTHON and $LOQUENT name the interpreter and the binary.
set -eu
here=$(dirname "$0")
exec "${PYTHON:-python3}" "$here/abuse/run.py" --seconds "${1:-600}" --rounds "${2:-3}" \
  --binary "${LOQUENT:-loquent}" --json "$here/out/abuse.json"
