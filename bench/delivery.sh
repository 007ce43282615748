#!/bin/sh
# Stalls, delay and bytes of token streams over a bad network: the same tokens at the same times by
# SSE on kernel TCP (CUBIC, BBR), Eloquent as in the paper, and Loquent over QUIC, padded and not,
# through the same emulated link with the same seeds, beside the simulator's figures. Fails if a
# target is missed; a stream may take 4.8 kB/s, of which padding is up to a quarter. Needs root
# (network namespaces, TUN devices); about twelve minutes. Without root only UDP crosses the
# emulator: delivery.sh --without-root.
# Usage: delivery.sh [--without-root] [OPTIONS of loquent bench delivery…]
set -eu
out=$(dirname "$0")/out
mkdir -p "$out"
if [ "${1-}" = --without-root ]; then
  shift
  set -- --without-root --schemes eloquent,loquent,loquent-unpadded "$@"
elif [ "$(id -u)" != 0 ]; then
  echo "delivery.sh: kernel TCP needs network namespaces, and they need root;" >&2
  echo "             with --without-root the schemes on UDP are measured" >&2
  exit 2
fi
case " $* " in
  *" --schemes"*) ;;
  *) set -- --schemes cubic,bbr,eloquent,loquent,loquent-unpadded "$@" ;;
esac
exec "${LOQUENT:-loquent}" bench delivery \
  --rtt 400,100,50 --loss default --sessions 60 --duration-s 30 \
  --min-reduction 400=75,100=75,50=70 --max-kb-per-s 4.8 \
  --json "$out/delivery.json" --html "$out/delivery.html" "$@"
