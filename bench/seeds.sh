#!/bin/sh
# Every plan of the simulator under 20 seeds that follow from its name: bench/seeds.sh [PLAN…]
# Prints each plan's table; exits with 1 if a claim failed or a session broke a guarantee.
set -eu
cd "$(dirname "$0")/.."
loquent=${LOQUENT:-target/release/loquent}
seeds=${SEEDS:-20}
failed=0
[ $# -gt 0 ] || set -- plans/*.toml
for plan; do
    "$loquent" sim "$plan" --seeds "$seeds" || failed=1
    echo
done
exit $failed
