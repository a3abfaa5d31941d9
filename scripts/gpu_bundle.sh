#!/usr/bin/env bash
# Packs a build's tests, benchmarks and examples for `gpu_test.sh --binaries` and `gpu_bench.sh --binaries` on
# another machine: a GPU's time is not spent on compiling, and the programs share one library.
#   scripts/gpu_bundle.sh BUILD ARCHIVE.tar.xz
# BUILD is a folder of a build by Ninja with -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DTAPEDECK_BENCH=ON.
set -euo pipefail
case "${1:-}" in
  -h | --help | '') sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit ;;
esac
build=$(realpath "$1") archive=$(realpath -m "$2")
cuda=$(dirname "$(realpath "$(command -v nvcc)")")/../targets/x86_64-linux/lib
bundle=$(mktemp -d)
trap 'rm -rf "$bundle"' EXIT

here="-Wl,-rpath,\$ORIGIN:/usr/local/cuda/lib64"
g++ -shared -Wl,-soname,libtapedeck.so -o "$bundle/libtapedeck.so" \
  -Wl,--whole-archive "$build/libtapedeck.a" -Wl,--no-whole-archive "-L$cuda" "$here" \
  -lcudart -lcublasLt -ljpeg -lpng -lz -lpthread -ldl -lrt

cd "$build"
for program in tests/*_test bench/*_bench examples/*; do
  if [ ! -f "$program" ] || [ ! -x "$program" ]; then continue; fi
  edits=(-e "s| -o $program | -o $bundle/${program##*/} '$here' |")
  # A shared library hides a profiler's hook from its test.
  [ "$program" = tests/cuda_profiler_test ] || edits+=(-e "s| libtapedeck.a | $bundle/libtapedeck.so -Wl,-rpath-link,$cuda |"
    -e "s| -lcudart_static||g" -e "s| [^ ]*/libcudart_static.a| -L$cuda -lcudart|g")
  eval "$(ninja -t commands "$program" | tail -1 | sed "${edits[@]}")"
done
# Libraries that distributions name differently, and CUDA's own.
ldd "$bundle/libtapedeck.so" | awk '/lib(jpeg|png|z)[0-9]*[.].*=> / {print $3}' | xargs cp -L -t "$bundle" "$cuda"/libcudart.so.??
strip "$bundle"/*
XZ_OPT=-T0 tar cJf "$archive" -C "$bundle" .
ls -lh "$archive"
