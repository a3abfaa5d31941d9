#!/usr/bin/env bash
# Measures what README.md states about size and time, on 2 cores, and prints each command with its number.
#   scripts/measure.sh [--yes]
# Run it on an idle machine: it prints the load first.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/dependencies.sh
source scripts/dependencies.sh
case "${1:-}" in
  -y | --yes) TAPEDECK_YES=1 ;;
  -h | --help) help ;;
  ?*) fail "unknown argument $1 (see --help)" ;;
esac
install_dependencies "${kBuildPackages[@]}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cores=$(taskset -cp $$ | sed 's/.*: //; s/-/,/' | cut -d, -f1,2)
echo "load $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) cores of $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)"

# timed <command>...: prints it with the seconds it took, and those of processors.
timed() {
  local TIMEFORMAT='%R %U %S' seconds
  { seconds=$({ time quietly "$@" >&3 2>&4; } 2>&1); } 3>&1 4>&2
  printf '%s\n    %.1f s; processor time %.1f s\n' "$*" "${seconds%% *}" "$(echo "${seconds#* }" | tr ' ' '+' | bc)"
}

say "the CPU library from a clean clone"
quietly git clone --quiet . "$work/tapedeck"
(
  cd "$work/tapedeck"
  export CCACHE_DISABLE=1
  timed cmake --preset release -DTAPEDECK_TESTS=OFF -DTAPEDECK_EXAMPLES=OFF -DTAPEDECK_CUDA=OFF
  timed taskset -c "$cores" cmake --build build/release -j 2

  say "a stripped static program that trains a decoder"
  quietly cmake --preset static
  quietly cmake --build build/static --target train_decoder
  program=build/static/examples/train_decoder
  file -b "$program"
  printf 'stat -c %%s %s\n    %.2f MB\n' "$program" "$(echo "$(stat -c %s "$program") / 1000000" | bc -l)"

  say "from the start of the program to the end of its first step, five times"
  for run in 1 2 3 4 5; do
    printf '    %d ms\n' "$(first_step "$work/run$run" taskset -c "$cores" "$program")"
  done
)
