#!/bin/sh
# Simon Willison's `llm` against the server whose base URL is the first argument; the second is the
# folder of the `llm` program. Asks twice, the second time in the same conversation.
set -eu
LLM_USER_PATH=$(mktemp -d)
export LLM_USER_PATH
trap 'rm -rf "$LLM_USER_PATH"' EXIT
cat >"$LLM_USER_PATH/extra-openai-models.yaml" <<END
- model_id: loquent
  model_name: loquent-tiny
  api_base: "$1"
END
"$2/llm" -m loquent --key none -o temperature 0 -o max_tokens 48 "What is Loquent?"
"$2/llm" --continue --key none -o temperature 0 -o max_tokens 48 "What is a token?"
