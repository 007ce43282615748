#!/bin/sh
# 32 streams with and without 32 readers that stop reading. 2,048 tokens outrun the socket buffers,
# so that the server must hold or refuse what is not read.
# Usage: slow-readers.sh URL [PID]
set -eu
url=${1:?the server URL}
exec "$(dirname "$0")/run.sh" slow-readers "$url" ${2:+"$2"} -- \
  --endpoint completions --requests 32 --max-tokens 2048 --ignore-eos --slow-readers 32 --slow-reader-max-tokens 4096 --control
