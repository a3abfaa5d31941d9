#!/usr/bin/env bash
# Installs what Tapedeck needs, by apt, on Debian or Ubuntu: what is missing, and nothing else.
#   scripts/dependencies.sh [--yes] [--checks]
# --checks adds what the sanitizer, format and lint checks need. On a terminal it asks first, unless
# --yes or TAPEDECK_YES=1; without one it does not ask. demo.sh and test.sh source this file.
set -euo pipefail

kBuildPackages=(cmake ninja-build g++ git libpng-dev libjpeg-dev zlib1g-dev nlohmann-json3-dev libcli11-dev
  libgtest-dev libgmock-dev)
# libclang-rt-dev does not exist where the compiler brings its runtime itself (Ubuntu 22.04).
kCheckPackages=(clang clang-format clang-tidy libclang-rt-dev)

say() { if [ -t 1 ]; then printf '\033[1m== %s\033[0m\n' "$*"; else echo "== $*"; fi; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Prints the comment at the top of the script that runs.
help() {
  sed -n '2,/^set/{/^# shellcheck/d;s/^# \{0,1\}//p}' "$0"
  exit
}

is_installed() {
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ] ||
    # A name that another package provides, such as libjpeg-dev.
    dpkg-query -W -f='${db:Status-Status} ${Provides}\n' 2>/dev/null | grep -qE "^installed .*\b$1\b( |,|\$)"
}

# install_dependencies <package>...
install_dependencies() {
  if ! command -v apt-get >/dev/null; then
    echo "There is no apt here; if the build lacks something, install what Debian calls: $*"
    return
  fi
  local missing=() package
  for package in "$@"; do is_installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0

  say "missing packages: ${missing[*]}"
  local root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "not root, and no sudo here. As root, run: apt-get install ${missing[*]}"
    root=(sudo)
    [ -t 0 ] || root=(sudo --non-interactive)
  fi
  if [ -t 0 ] && [ -z "${TAPEDECK_YES:-}" ]; then
    local answer
    read -rp "Install them with apt-get? [Y/n] " answer
    case "$answer" in [nN]*) fail "cannot go on without them" ;; esac
  fi
  quietly "${root[@]}" apt-get update -q
  local known=()
  for package in "${missing[@]}"; do
    if apt-cache show "$package" >/dev/null 2>&1; then known+=("$package"); fi
  done
  [ ${#known[@]} = 0 ] || quietly "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qy \
    --no-install-recommends -o DPkg::Lock::Timeout=300 "${known[@]}"
}

gpu_found() {
  command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1
}

# Says what of CUDA is here.
report_cuda() {
  local found=()
  if command -v nvcc >/dev/null; then
    found+=("nvcc $(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')")
  fi
  if gpu_found; then
    found+=("$(nvidia-smi -L | head -1 | cut -d'(' -f1)")
  fi
  if [ ${#found[@]} -gt 0 ]; then
    echo "Found $(IFS=,; echo "${found[*]}"). CUDA kernels are built where nvcc is; train_decoder uses them with --device cuda."
  fi
}

# build <preset> [target...]: configures and builds; the release with CUDA as TAPEDECK_CUDA says (AUTO), the checks'
# with a sample of its kernels where nothing runs them.
build() {
  local preset=$1 root log options=()
  shift
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  if command -v ccache >/dev/null; then
    export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=1
    options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  if [ "$preset" = ci ]; then  # said each time: a GPU may have come
    if gpu_found; then options+=(-DTAPEDECK_CUDA_SAMPLE=OFF); else options+=(-DTAPEDECK_CUDA_SAMPLE=ON); fi
  fi
  [ "$preset" != release ] || options+=("-DTAPEDECK_CUDA=${TAPEDECK_CUDA:-AUTO}")
  quietly cmake -S "$root" --preset "$preset" ${options[@]+"${options[@]}"}
  quietly cmake --build "$root/build/$preset" ${1:+--target "$@"} -- -k 0  # all errors of a build at once
}

# first_step <folder> <command>...: trains two steps into a new run folder; prints the milliseconds from the
# start of the program to the end of the first.
first_step() {
  local folder=$1 start
  shift
  start=$(date +%s%N)
  "$@" --steps 2 --out "$folder" 2>&1 | {
    read -r _
    echo $((($(date +%s%N) - start) / 1000000))
    cat >/dev/null
  }
}

# quietly <command>...: on a terminal shows what it prints; elsewhere only when it fails.
quietly() {
  if [ -t 1 ]; then
    "$@"
    return
  fi
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || status=$?
  if [ $status != 0 ]; then
    grep -E -A12 'FAILED:|error:|Error' "$log" | head -200 || tail -50 "$log"
    echo "failed: $*"
  fi
  rm -f "$log"
  return $status
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  packages=("${kBuildPackages[@]}")
  for argument in "$@"; do
    case "$argument" in
      -y | --yes) TAPEDECK_YES=1 ;;
      --checks) packages+=("${kCheckPackages[@]}") ;;
      -h | --help) help ;;
      *) fail "unknown argument $argument (see --help)" ;;
    esac
  done
  install_dependencies "${packages[@]}"
  report_cuda
fi
