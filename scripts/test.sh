#!/usr/bin/env bash
# Builds Tapedeck and runs its checks; without flags: the release build and all tests.
#   --release        the release build and all tests
#   --sanitize       the tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   --tsan           the tests that start threads, under ThreadSanitizer
#   --fuzz SECONDS   every file reader on mutated files, each for SECONDS
#   --consumer       installs into a temporary prefix, and builds and runs README.md's program against it
#   --static         the static train_decoder has less than 5 MB, and its first step ends within a second
#   --format         clang-format finds nothing to change
#   --tidy           clang-tidy finds nothing
#   --all            all of these, with warnings as errors; fuzzing for 10 seconds each
#   --yes            install missing packages without asking
# shellcheck disable=SC2317  # the stages are called by name
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/dependencies.sh
source scripts/dependencies.sh

jobs=$(nproc)
preset=release
fuzz_seconds=10
report=$(mktemp -d)
trap 'rm -rf "$report"' EXIT

# tests <preset> <target> : builds and runs them, and keeps ctest's closing lines for the end.
tests() {
  build "$1" "$2"
  ctest --preset "$1" -j "$jobs" --timeout 900 --no-tests=error | tee "$report/$1.ctest"
}

stage_release() { tests "$preset" all; }

stage_sanitize() {
  # Errors are exceptions here, also where a size is absurd: let malloc return null, as without the sanitizer.
  export ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
  tests asan all
}

stage_tsan() {
  # Many kernels place memory where ThreadSanitizer does not expect it, unless told not to.
  local fixed_addresses=()
  if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
  build tsan threaded_tests
  "${fixed_addresses[@]}" ctest --preset tsan -j "$jobs" --timeout 900 --no-tests=error | tee "$report/tsan.ctest"
}

# fuzz <program> : on files of its corpus, for fuzz_seconds.
fuzz() {
  local word=${1##*/fuzz_}
  mkdir -p "build/asan/corpus/$word"
  "$1" -max_total_time="$fuzz_seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="build/asan/corpus/$word-" "build/asan/corpus/$word" "tests/fuzz/corpus/$word" \
    >"$report/fuzz_$word" 2>&1 || { tail -60 "$report/fuzz_$word"; return 1; }
  printf 'fuzzed %s for %d s: %s\n' "$word" "$fuzz_seconds" "$(grep DONE "$report/fuzz_$word")"
}

stage_fuzz() {
  build asan fuzzers
  local fuzzers=()
  mapfile -t fuzzers < <(find build/asan/tests/fuzz -maxdepth 1 -name 'fuzz_*' -executable -type f | sort)
  [ ${#fuzzers[@]} != 0 ] || fail "no fuzz targets were built"
  export fuzz_seconds report
  export -f fuzz
  # shellcheck disable=SC2016  # its own argument
  printf '%s\n' "${fuzzers[@]}" | xargs -P "$jobs" -n 1 bash -c 'fuzz "$1"' fuzz
}

stage_consumer() {
  build "$preset" tapedeck
  local prefix=$PWD/build/consumer/prefix
  rm -rf build/consumer
  quietly cmake --install "build/$preset" --prefix "$prefix"
  diff <(awk '/^```cpp/ {on = 1; next} on && /^```/ {exit} on' README.md) tests/consumer/main.cpp ||
    fail "README.md's program is not tests/consumer/main.cpp"
  quietly cmake -S tests/consumer -B build/consumer/build -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
  quietly cmake --build build/consumer/build
  (cd build/consumer/build && ./decoder) | tee "$report/decoder"
  awk '/mean squared error/ {error = $4} END {exit !(error > 0 && error < 0.01)}' "$report/decoder" ||
    fail "the decoder did not learn its images"
}

stage_static() {
  local program=build/static/examples/train_decoder bytes run milliseconds best=
  build static train_decoder
  bytes=$(stat -c %s "$program")
  for run in 1 2 3; do  # the best of three: the machine may be busy
    milliseconds=$(first_step "$report/run$run" "$program")
    if [ -z "$best" ] || [ "$milliseconds" -lt "$best" ]; then best=$milliseconds; fi
  done
  echo "$bytes bytes; first step after $best ms"
  if ldd "$program" >/dev/null 2>&1; then fail "$program needs shared libraries"; fi
  [ "$bytes" -lt 5000000 ] || fail "$program has $bytes bytes; the limit is 5 MB"
  # 0.3 s on an idle machine, as scripts/measure.sh measures.
  [ "$best" -lt 1000 ] || fail "the first step of $program ended after $best ms; the limit is 1000"
}

stage_format() {
  git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror
}

stage_tidy() {
  build asan tapedeck  # for the compile commands of clang, and headers made by the build
  git ls-files 'core/*.cpp' 'ops/*.cpp' 'autograd/*.cpp' 'nn/*.cpp' 'examples/*.cpp' |
    xargs -P "$jobs" -n 1 clang-tidy --quiet -p build/asan 2>"$report/tidy" || {
      grep -v 'warnings generated' "$report/tidy"
      return 1
    }
}

stages=()
while [ $# -gt 0 ]; do
  case "$1" in
    --release | --sanitize | --tsan | --consumer | --static | --format | --tidy) stages+=("${1#--}") ;;
    --fuzz)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || fail "--fuzz needs a number of seconds"
      fuzz_seconds=$2
      stages+=(fuzz)
      shift
      ;;
    --all)
      preset=ci
      stages+=(format release consumer static sanitize fuzz tsan tidy)
      ;;
    -y | --yes) TAPEDECK_YES=1 ;;
    -h | --help) help ;;
    *) fail "unknown argument $1 (see --help)" ;;
  esac
  shift
done
[ ${#stages[@]} -gt 0 ] || stages=(release)

packages=("${kBuildPackages[@]}")
case " ${stages[*]} " in
  *" sanitize "* | *" fuzz "* | *" format "* | *" tidy "*) packages+=("${kCheckPackages[@]}") ;;
esac
install_dependencies "${packages[@]}"
report_cuda

failed=0
for stage in "${stages[@]}"; do
  say "$stage"
  start=$SECONDS
  set +e # bash ignores -e inside a command whose status is tested
  (
    set -e
    "stage_$stage"
  )
  status=$?
  set -e
  result=passed
  if [ $status != 0 ]; then result=FAILED failed=1; fi
  printf '%-10s %-7s %4d s\n' "$stage" "$result" $((SECONDS - start)) >>"$report/table"
done

say "summary"
cat "$report/table"
for closing in "$report"/*.ctest; do
  [ -f "$closing" ] || continue
  printf '%s: %s\n' "$(basename "$closing" .ctest)" "$(grep 'tests passed' "$closing" || echo 'no test ran')"
done
exit $failed
