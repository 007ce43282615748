#!/bin/sh
# 64 requests alone, then 256 at once, against a server that admits 64.
# Usage: admission.sh URL [PID]
set -eu
url=${1:?the server URL}
run=$(dirname "$0")/run.sh
set -- "$url" ${2:+"$2"} -- --endpoint completions --max-tokens 128 --ignore-eos
"$run" admission-64 "$@" --requests 64
"$run" admission-256 "$@" --requests 256
