#!/bin/sh
# Eight chat prompts, 24 tokens, greedy, concurrency 2 against 4.
# Usage: skippy-chat-corpus.sh URL [PID]
set -eu
url=${1:?the server URL}
exec "$(dirname "$0")/run.sh" skippy-chat-corpus "$url" ${2:+"$2"} -- \
  --preset skippy-chat-corpus
