#!/usr/bin/env bash
# Builds Tapedeck with CUDA, runs all tests that use a GPU, then each of them under NVIDIA's compute-sanitizer.
# Fails where there is no GPU.
#   --binaries DIR   runs tests, and in TAPEDECK_EXAMPLES or there the examples, that were built already
#   --tools LIST     the sanitizer's tools, separated by commas; "none" for no sanitizer
#                    (racecheck,initcheck,memcheck,synccheck, the slowest first)
#   --filter REGEX   only tests whose name matches, as Suite.Test
#   --jobs N         sanitizers at once (half of the cores)
#   --limit SECONDS  of one test under a sanitizer (300)
#   --logs DIR       where all output goes (build/gpu_test)
# shellcheck disable=SC2317  # check is called by name
set -euo pipefail
cd "$(dirname "$0")/.."

words=(cuda_conv captured_step cuda_training cuda_core cuda_memory cuda_streams cuda_profiler cuda_ops cuda_reductions
  cuda_gradcheck cuda_conv_explain cuda_largest cuda_large parity parity_traces device_loader large_tensor
  train_decoder_cuda examples)
binaries='' tools=racecheck,initcheck,memcheck,synccheck filter=. jobs=$((($(nproc) + 1) / 2)) limit=300
logs=build/gpu_test
# docs/sanitizers.md says what a sanitizer's runs leave out, and why.
algorithms=(reference depthwise direct strip simt tensor wgmma boxes halves automatic)
by_algorithm='CudaConv[.](Transposed|Plain|RealNumbers)'
long='EagerStepsToTheBit|ManyImages|TheSameBitsAgain|NothingUnwritten|QueuedWorkSeesItsOwnBatch|HundredReruns|Gradcheck'
long+='|BehindEvents|TrainDecoder|Examples|CudaLarge|Traces|Nanoseconds|Explain|CudaProfiler'
not_seen='^initcheck .*CudaReductions[.]MatrixProducts'

while [ $# -gt 0 ]; do
  case "$1" in
    --binaries) binaries=$2 ;;
    --tools) tools=$2 ;;
    --filter) filter=$2 ;;
    --jobs) jobs=$2 ;;
    --limit) limit=$2 ;;
    --logs) logs=$2 ;;
    -h | --help) sed -n '2,/^set/{/^# shellcheck/d;/^set/!s/^# \{0,1\}//p}' "$0"; exit ;;
    *) echo "gpu_test.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
  esac
  shift 2
done

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || { echo "gpu_test.sh: there is no GPU" >&2; exit 1; }
if [ -z "$binaries" ]; then
  cmake -S . -B build/cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DTAPEDECK_CUDA=ON
  cmake --build build/cuda --target "${words[@]/%/_test}"
  binaries=build/cuda/tests
else
  export TAPEDECK_EXAMPLES=${TAPEDECK_EXAMPLES:-$PWD/$binaries} TAPEDECK_TEST_DATA=${TAPEDECK_TEST_DATA:-$PWD/tests/data}
fi
export TAPEDECK_REQUIRE_CUDA=1
rm -rf "$logs"
mkdir -p "$logs"
failed=0

for word in "${words[@]}"; do
  result=passed
  "$binaries/${word}_test" --gtest_filter='*Cuda*:*/cuda' >"$logs/$word.log" 2>&1 || { result=FAILED failed=1; }
  printf '%-18s %s: %s\n' "$word" "$result" "$(grep -E 'suites? ran' "$logs/$word.log" | sed 's/.*=\] //')"
  [ "$result" = passed ] || grep -E 'Failure|FAILED' -A4 "$logs/$word.log" | head -40
done

# The same bits from a hundred runs in each of two processes at once, while a third keeps the GPU busy.
if [ -x "$binaries/cuda_training_test" ]; then
  "$binaries/cuda_large_test" --gtest_filter='*AdjointIdentity*' --gtest_repeat=-1 >"$logs/busy.log" 2>&1 &
  busy=$!
  reruns=()
  for process in 1 2; do
    "$binaries/cuda_training_test" --gtest_filter='*HundredReruns*' >"$logs/reruns.$process.log" 2>&1 &
    reruns+=($!)
  done
  result=equal
  for process in "${reruns[@]}"; do wait "$process" || result=FAILED failed=1; done
  kill "$busy" || result='not beside another job, which ended' failed=1
  bits=$(grep '^bits: ' "$logs/reruns.1.log" || true)
  if [ -z "$bits" ] || [ "$bits" != "$(grep '^bits: ' "$logs/reruns.2.log")" ]; then result=DIFFERENT failed=1; fi
  echo "200 runs in 2 processes at once: $result"
fi

# As on a GPU whose machine code the binaries do not have: from PTX, without Hopper's instructions.
if [ -x "$binaries/cuda_conv_test" ]; then
  result=passed
  CUDA_FORCE_PTX_JIT=1 TAPEDECK_CONV_ALGORITHM=automatic "$binaries/cuda_conv_test" \
    --gtest_filter='*RealNumbers*:*AtTheEdges*:*ThinLayers*' >"$logs/ptx.log" 2>&1 || result=FAILED
  if [ $result = FAILED ] && [ "$binaries" != build/cuda/tests ] && grep -q 'no kernel image' "$logs/ptx.log"; then
    result='not tested, the binaries have none'
  fi
  [ "$result" != FAILED ] || failed=1
  echo "convolutions from PTX: $result"
fi

# check <tool> <word> <test> [algorithm]: one test under one tool, of convolutions with one algorithm.
check() {
  local log=$logs/$1.$3${4:+.$4}.log result=clean options=(--tool "$1" --error-exitcode 1 --print-limit 10)
  # Blocks next to each other in a cached segment hide what runs over. The tests of the cache itself need it.
  case $1.$2 in
    *.cuda_core | *.cuda_memory | *.cuda_streams) ;;
    memcheck.cuda_* | initcheck.cuda_*) export TAPEDECK_CUDA_CACHE=0 ;;
  esac
  [ $# -lt 4 ] || export TAPEDECK_CONV_ALGORITHM=$4
  # Of random cases one in so many.
  export TAPEDECK_TEST_SHARE=5
  [ "$1" != racecheck ] || export TAPEDECK_TEST_SHARE=15
  # cudaMalloc is meant to fail in one test, and capturing in another.
  timeout "$limit" compute-sanitizer --report-api-errors no "${options[@]}" "$binaries/$2_test" --gtest_filter="$3" \
    >"$log" 2>&1 || result="FAILED ($?)"
  printf '%-9s %-60s %s, %d s\n' "$1" "$3 ${4:-}" "$result" "$SECONDS"
}
export -f check
export logs limit binaries

if [ "$tools" != none ]; then
  for word in "${words[@]}"; do
    "$binaries/${word}_test" --gtest_list_tests >/dev/null || { echo "${word}_test does not list its tests"; failed=1; }
  done
  for tool in ${tools//,/ }; do
    for word in "${words[@]}"; do
      "$binaries/${word}_test" --gtest_list_tests |
        awk -v tool="$tool" -v word="$word" '/^[A-Za-z]+\.$/ {suite = $1} /^  / {print tool, word, suite $1}'
    done
  done | grep ' Cuda' | grep -vE "$long" | grep -vE "$not_seen" |
    awk -v parts="${algorithms[*]}" -v by="$by_algorithm" '$3 !~ by {print; next}
      {n = split(parts, part); for (i = 1; i <= n; ++i) print $0, part[i]}' |
    { grep -E "$filter" || true; } | xargs -P "$jobs" -L 1 bash -c 'check "$@"' check | tee "$logs/sanitizers.txt"
  grep -c clean "$logs/sanitizers.txt" | sed 's/$/ runs under the sanitizer were clean/' || true
  if grep -q FAILED "$logs/sanitizers.txt"; then
    failed=1
    grep FAILED "$logs/sanitizers.txt"
  fi
fi
exit $failed
