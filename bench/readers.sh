#!/bin/sh
# What each of 500 readers of one answer costs the server, over event streams and over QUIC: 150
# tokens, one per 100 ms, simulated; the server in a process of its own. PROFILE=dev measures the
# build of the tests instead of the release build.
# Usage: readers.sh
set -eu
cd "$(dirname "$0")/.."
exec tools/with-cpu-env cargo test --profile "${PROFILE:-release}" -p loquent-server --test server \
  sessions::load::load_of_500_readers_of_one_answer -- --ignored --nocapture --exact
