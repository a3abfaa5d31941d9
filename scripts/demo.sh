#!/usr/bin/env bash
# Builds Tapedeck, trains a decoder on the built-in sprites on the CPU, and shows what it learned.
#   scripts/demo.sh [--minutes M] [--yes] [FOLDER]
# M is how long it trains (default 1.5). FOLDER takes the run (default runs/demo, or the next free
# runs/demo-2, ...). --yes installs missing packages without asking.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/dependencies.sh
source scripts/dependencies.sh

minutes=1.5
out=
while [ $# -gt 0 ]; do
  case "$1" in
    --minutes)
      minutes=${2:-}
      [ -n "$minutes" ] || fail "--minutes needs a number"
      shift
      ;;
    -y | --yes) TAPEDECK_YES=1 ;;
    -h | --help) help ;;
    -*) fail "unknown argument $1 (see --help)" ;;
    *) out=$1 ;;
  esac
  shift
done
if [ -z "$out" ]; then
  out=runs/demo
  for ((n = 2; ; n++)); do
    [ -e "$out" ] || break
    out=runs/demo-$n
  done
fi

install_dependencies "${kBuildPackages[@]}"
report_cuda
# Kernels for a GPU take minutes to build, which would be for nothing without one.
gpu_found || TAPEDECK_CUDA=OFF
say "building (the first time takes a minute or two; with a GPU and nvcc more)"
build release train_decoder
say "training for $minutes minutes"
build/release/examples/train_decoder --data sprites --model small --minutes "$minutes" --out "$out"

say "pictures"
pictures=("$out"/*.png)
printf '%s\n' "${pictures[@]}"
if [ -n "${DISPLAY:-}${WAYLAND_DISPLAY:-}" ] && command -v xdg-open >/dev/null; then
  for picture in "${pictures[@]}"; do xdg-open "$picture" >/dev/null 2>&1 & done
elif [ -t 1 ] && command -v chafa >/dev/null; then
  chafa "$out/reconstructions.png"
fi
