#!/bin/sh
# 8 streams with and without a 4,000-token prompt that arrives after $AT_MS (2,000) ms.
# The streams must still run by then: where each gets over 200 tokens/s, set AT_MS lower.
# Usage: long-prompt.sh URL [PID]
set -eu
url=${1:?the server URL}
exec "$(dirname "$0")/run.sh" long-prompt "$url" ${2:+"$2"} -- \
  --endpoint completions --requests 8 --max-tokens 512 --ignore-eos --inject-prompt-tokens 4000 --inject-at-ms "${AT_MS:-2000}" --control
