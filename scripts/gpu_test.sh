#!/usr/bin/env bash
# Builds Tapedeck with CUDA, runs all tests that use a GPU, then them and whole programs under NVIDIA's
# compute-sanitizer.
# Fails where there is no GPU.
#   --binaries DIR   runs tests, and in TAPEDECK_EXAMPLES or there the examples, that were built already
#   --tests REGEX    only test programs whose name matches; "none" for none
#   --tools LIST     the sanitizer's tools, separated by commas, in this order; "none" for no sanitizer
#                    (memcheck,racecheck,initcheck,synccheck)
#   --filter REGEX   of the sanitizer's runs only those whose line matches: "racecheck cuda_conv_test
#                    CudaConv.sweeps wgmma ..."
#   --jobs N         processes at once (as many as cores)
#   --limit SECONDS  of one run under a sanitizer (240)
#   --budget SECONDS of all of them: none begins later, none goes on (3600)
#   --done FILE      leaves out runs that this sanitizers.txt of an earlier call says were clean
#   --logs DIR       where all output goes (build/gpu_test)
# shellcheck disable=SC2317  # functions are called by name
set -euo pipefail
cd "$(dirname "$0")/.."

# The first three ask for all the GPU's memory, count it, or measure times: nothing runs beside them.
words=(cuda_core cuda_memory train_decoder_cuda cuda_conv captured_step cuda_training cuda_streams cuda_profiler cuda_ops
  cuda_reductions cuda_gradcheck cuda_conv_autotune cuda_conv_boxes cuda_conv_explain cuda_conv_thin
  cuda_conv_weight_grad cuda_largest cuda_normalized_conv_transpose2d
  cuda_large parity parity_traces device_loader large_tensor conv_error examples)
binaries='' tests=. tools=memcheck,racecheck,initcheck,synccheck filter=. jobs=$(nproc) limit=240 budget=3600 known=''
logs=build/gpu_test built=''
# docs/sanitizers.md says what a sanitizer's runs leave out, and why.
algorithms='wgmma automatic windows boxes halves gathered rows channels_last thin strip tensor simt direct reference depthwise matrix columns'
left_out='CudaLarge[.]|HundredReruns|Nanoseconds|NothingUnwritten|CudaConvExplain|CudaProfiler'
not_seen='^initcheck .* (CudaReductions[.]MatrixProducts|CudaCapturedStep[.]Decoders[A-Za-z]*) |^racecheck .* CudaConvAutotune '
# What these tests start has runs of its own: program, name, no algorithm, arguments.
started='CudaTrainDecoder|CudaExamples'
programs=('own_kernels own_kernels -'
  'train_decoder train_decoder - --device cuda --data sprites:count=30,size=16 --batch 8 --steps 3 --ema 0.9 --out run')
# Runs of their own; the other tests of a suite are one run.
alone='CudaConvWeightGrad|CudaReductions|CudaOps|CudaTraining|CudaLargest|CudaGradcheck|Boxes|Thin|MuchWork|Columns|RowsAndPlanes'
alone+='|HalfTypes|ReadsSeeds|SettingsAreReadAnew|Takes?NoMemory|ToTheBit|TheSameBits|Traces'

while [ $# -gt 0 ]; do
  case "$1" in
    --binaries) binaries=$2 ;;
    --tests) tests=$2 ;;
    --tools) tools=$2 ;;
    --filter) filter=$2 ;;
    --jobs) jobs=$2 ;;
    --limit) limit=$2 ;;
    --budget) budget=$2 ;;
    --done) known=$2 ;;
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
  binaries=build/cuda/tests TAPEDECK_EXAMPLES=$PWD/build/cuda/examples built=1
fi
binaries=$(realpath "$binaries")
export TAPEDECK_EXAMPLES=${TAPEDECK_EXAMPLES:-$binaries} TAPEDECK_TEST_DATA=${TAPEDECK_TEST_DATA:-$PWD/tests/data}
earlier=$([ -z "$known" ] || grep -E '^[a-z]+ +clean ' "$known" || true)
export TAPEDECK_REQUIRE_CUDA=1 binaries logs limit
rm -rf "$logs"
mkdir -p "$logs"
logs=$(realpath "$logs")
failed=0

# test_program <word> [share shares]: its tests on a GPU, or some of them.
test_program() {
  local log=$logs/$1${2:+.$2}.log result=passed
  [ $# -lt 3 ] || export GTEST_SHARD_INDEX=$2 GTEST_TOTAL_SHARDS=$3
  timeout 300 "$binaries/$1_test" --gtest_filter='*Cuda*:*/cuda' >"$log" 2>&1 || result="FAILED ($?)"
  printf '%-18s %s: %s%s\n' "$1" "$result" "$(grep -E 'suites? ran' "$log" | sed 's/.*=\] //')" \
    "$(sed -n 's/^\[  SKIPPED \] \([0-9]* tests\{0,1\}\), listed below:$/, SKIPPED \1/p' "$log")"
  [ "$result" = passed ] || grep -E 'Failure|FAILED' -A4 "$log" | head -40 || true
}
export -f test_program

if [ "$tests" != none ]; then
  for word in "${words[@]:0:3}"; do
    ! grep -qE "$tests" <<<"$word" || test_program "$word"
  done | tee "$logs/tests.txt"
  for word in "${words[@]:3}"; do
    case $word in  # in parts what takes longest
      cuda_conv | cuda_conv_boxes | cuda_conv_weight_grad) for share in 0 1 2 3; do echo "$word $share 4"; done ;;
      *) echo "$word" ;;
    esac
  done | { grep -E "$tests" || true; } | xargs -r -P "$jobs" -L 1 bash -c 'test_program "$@"' test_program |
    tee -a "$logs/tests.txt"
  ! grep -q '^[a-z_]* *FAILED' "$logs/tests.txt" || failed=1
fi

# The same bits from a hundred runs in each of two processes at once, while a third keeps the GPU busy.
if [ -x "$binaries/cuda_training_test" ] && grep -qE "$tests" <<<reruns; then
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

# As on a GPU whose machine code the binaries do not have: from PTX for compute capability 8.0, without Hopper's
# instructions.
if [ -x "$binaries/cuda_conv_test" ] && grep -qE "$tests" <<<ptx; then
  # Where the library is shared it has the code.
  code=$(ldd "$binaries/cuda_conv_test" 2>/dev/null | awk '/libtapedeck/ {print $3}') || true
  files=$(cuobjdump --list-ptx "${code:-$binaries/cuda_conv_test}" 2>"$logs/ptx.log") || true
  if ! grep -q '[.]sm_80[.]ptx' <<<"$files"; then
    echo 'PTX for 8.0: the binaries have none'
    failed=${built:-$failed}
  else
    result=passed
    export CUDA_FORCE_PTX_JIT=1 TAPEDECK_TEST_SHARE=5
    # `tensor` computes the layers, too, for which `automatic` takes cuBLAS.
    convs=()
    for algorithm in automatic tensor; do
      TAPEDECK_CONV_ALGORITHM=$algorithm timeout 150 "$binaries/cuda_conv_test" \
        --gtest_filter='*RealNumbers*:*AtTheEdges*:*ThinLayers*' >"$logs/ptx.conv.$algorithm.log" 2>&1 &
      convs+=($!)
    done
    # Not what takes cuBLAS, which has no PTX.
    for run in cuda_ops:Arithmetic cuda_ops:Indices cuda_reductions:Normalisation cuda_training:Optimizers; do
      timeout 150 "$binaries/${run%:*}_test" --gtest_filter="*${run#*:}*" >>"$logs/ptx.log" 2>&1 || result=FAILED
    done
    for conv in "${convs[@]}"; do wait "$conv" || result=FAILED; done
    unset CUDA_FORCE_PTX_JIT TAPEDECK_TEST_SHARE
    [ $result = passed ] || failed=1
    echo "from PTX for 8.0: $result"
  fi
fi

# sanitizer_runs <tool>: a line for each: tool, program, name, algorithm or -, and the program's arguments: of a test
# program those of its tests that it has.
sanitizer_runs() {
  local word
  for word in "${words[@]}"; do
    [ -x "$binaries/${word}_test" ] || continue  # --binaries may have some of them
    "$binaries/${word}_test" --gtest_list_tests |
      awk -v line="$1 ${word}_test" '/^[A-Za-z]+\.$/ {suite = $1} /^  / {print line, suite $1}'
  done | grep ' Cuda' | grep -vE "$left_out|$started" |
    awk -v algorithms="$algorithms" -v alone="$alone" '
      function add(name, algorithm) {
        key = $1 " " $2 " " name " " algorithm
        if (!(key in tests)) order[++runs] = key
        tests[key] = (tests[key] == "" ? "" : tests[key] ":") $3
      }
      {name = $3; sub(/[.].*/, "", name)}
      $3 ~ /^CudaConv[.](Transposed|Plain|RealNumbers|GradientsTogetherRead|ManyImages)/ {
        n = split(algorithms, algorithm)
        for (i = 1; i <= n; ++i) add(name "." ($3 ~ /[.](Transposed|Plain)/ ? "sweeps" : "layers"), algorithm[i])
        next
      }
      {add($3 ~ alone ? $3 : name, "-")}
      END {for (i = 1; i <= runs; ++i) print order[i], "--gtest_filter=" tests[order[i]]}'
  printf "$1 %s\n" "${programs[@]}"
}

# is_of_cublas <log>: whether races are all that was found, of cuBLAS's own kernels for Hopper (docs/sanitizers.md).
is_of_cublas() {
  grep -q 'Race reported .* at nvjet_' "$1" &&
    ! grep -E 'Race reported|and (Read|Write) access at' "$1" | grep -qv ' at nvjet_' &&
    ! grep -qE 'Sanitizer Error|FAILED|terminate successfully|returned an error' "$1"
}

# check <a run's line>: prints tool, result, seconds, name and algorithm. Results: clean, findings of the sanitizer,
# failed tests, timeout, or unstarted.
check() {
  local tool=$1 name=$3 algorithm=$4 log=$logs/$1.$3.$4.log result=clean code=0 begin=$SECONDS program
  local left=$((deadline - $(date +%s)))
  program=$(PATH=$binaries:$TAPEDECK_EXAMPLES type -P "$2")
  if [ "$left" -lt 5 ]; then
    printf '%-9s %-9s %3d s %s %s\n' "$tool" unstarted 0 "$name" "$algorithm"
    return
  fi
  # Blocks next to each other in a cached segment hide what runs over. The tests of the cache itself need it.
  case $tool.$2 in
    *.cuda_core_test | *.cuda_memory_test | *.cuda_streams_test) ;;
    memcheck.cuda_* | initcheck.cuda_* | initcheck.parity_* | initcheck.train_decoder) export TAPEDECK_CUDA_CACHE=0 ;;
  esac
  [ "$algorithm" = - ] || export TAPEDECK_CONV_ALGORITHM=$algorithm
  export TAPEDECK_TEST_SHARE=5
  [ "$tool" != racecheck ] || TAPEDECK_TEST_SHARE=15
  mkdir -p "$logs/$tool"  # for what programs write
  cd "$logs/$tool"
  # cudaMalloc is meant to fail in one test, and capturing in another.
  timeout -k 5 $((left < limit ? left : limit)) compute-sanitizer --tool "$tool" --report-api-errors no \
    --error-exitcode 99 --print-limit 0 "$program" "${@:5}" >"$log" 2>&1 || code=$?
  case $code in
    0) ;;
    99) is_of_cublas "$log" || result=findings ;;
    124 | 137) result=timeout ;;
    *) result=failed ;;
  esac
  printf '%-9s %-9s %3d s %s %s\n' "$tool" "$result" $((SECONDS - begin)) "$name" "$algorithm"
}
export -f check is_of_cublas

if [ "$tools" != none ]; then
  for tool in ${tools//,/ }; do sanitizer_runs "$tool"; done |
    grep -vE "$not_seen" | { grep -E "$filter" || true; } |
    awk -v earlier="$earlier" '
      BEGIN {n = split(earlier, line, "\n"); for (i = 1; i <= n; ++i) {split(line[i], f); clean[f[1], f[5], f[6]] = 1}}
      !(($1, $3, $4) in clean)' >"$logs/runs.txt"
  deadline=$(($(date +%s) + budget))
  export deadline
  if [ -n "$earlier" ]; then echo "$earlier" >"$logs/sanitizers.txt"; fi
  xargs -P "$jobs" -L 1 bash -c 'check "$@"' check <"$logs/runs.txt" | tee -a "$logs/sanitizers.txt"
  awk '{++runs[$1]; ++count[$1, $2]}
    END {
      printf "%-9s %5s %6s %9s %7s %9s %10s\n", "tool", "runs", "clean", "findings", "failed", "timed out", "unstarted"
      for (tool in runs)
        printf "%-9s %5d %6d %9d %7d %9d %10d\n", tool, runs[tool], count[tool, "clean"], count[tool, "findings"],
          count[tool, "failed"], count[tool, "timeout"], count[tool, "unstarted"]
    }' "$logs/sanitizers.txt"
  if grep -vE '^[a-z]+ +clean ' "$logs/sanitizers.txt"; then failed=1; fi
fi
exit "$failed"
