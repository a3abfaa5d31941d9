#!/usr/bin/env bash
# Times the convolutions and whole training steps on a GPU, beside PyTorch's if it is there, and writes
# gpu_conv.json and gpu_train.json with the commit and the GPU's name; bench/readme_gpu.py puts them into
# README.md, bench/plot_gpu.py draws the first. Fails where there is no GPU.
#   --binaries DIR   runs benchmarks that were built already
#   --commit NAME    what those were built from, where there is no git
#   --results DIR    where the files go (bench/results)
set -euo pipefail
cd "$(dirname "$0")/.."

binaries='' commit='' results=bench/results
while [ $# -gt 0 ]; do
  case "$1" in
    --binaries) binaries=$2 ;;
    --commit) commit=$2 ;;
    --results) results=$2 ;;
    -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit ;;
    *) echo "gpu_bench.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
  esac
  shift 2
done

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || { echo "gpu_bench.sh: there is no GPU" >&2; exit 1; }
if [ -z "$binaries" ]; then
  binaries=build/cuda/bench
  cmake -S . -B build/cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DTAPEDECK_CUDA=ON -DTAPEDECK_BENCH=ON
  cmake --build build/cuda --target cuda_conv_bench train_bench
fi
commit=${commit:-$(git describe --always --dirty)}
mkdir -p "$results"
python3 bench/compare_gpu.py --bench "$binaries/cuda_conv_bench" --commit "$commit" --json "$results/gpu_conv.json"
python3 bench/compare_gpu_train.py --binary "$binaries/train_bench" --commit "$commit" --json "$results/gpu_train.json"
