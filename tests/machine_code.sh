#!/usr/bin/env bash
# machine_code.sh CUOBJDUMP LIBRARY: what the compiler made of the CUDA kernels of a static library, on Hopper.
# Kernels do not spill registers, those around wgmma not at all, others not much (80 bytes, of which what the CUDA
# library's own functions need is a part); those that are meant to use wgmma do; and its instructions were not
# serialised (ptxas C75xx), where each would wait for itself ("gsb0"), not only the last of several.
set -euo pipefail
cuobjdump=$1 library=$(realpath "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

"$cuobjdump" -res-usage "$library" 2>/dev/null | awk '
  /Function / { name = $2; sub(/:$/, "", name) }
  match($0, /STACK:[0-9]+/) {
    bytes = substr($0, RSTART + 6, RLENGTH - 6) + 0
    most = name ~ /(wgmma_[a-z_]*|[0-9](box|row|pair)_[a-z_]*)kernel/ ? 0 : 80
    if (name !~ /reference|for_each_kernel/ && bytes > most) { print bytes " bytes of stack: " name; failed = 1 }
    ++kernels
  }
  END { print kernels " kernels"; exit failed || kernels == 0 }'

mapfile -t objects < <(ar t "$library" | grep -E '^wgmma_[a-z0-9]+\.cu\.o$')
ar x "$library" "${objects[@]}"
for object in "${objects[@]}"; do
  "$cuobjdump" -sass "$object" | grep -E 'Function :|HGMMA' || true
done | awk '
  function check() {
    if (name !~ /(wgmma_map_kernel|wgmma_weight_grad_kernel|[0-9]box_kernel|(box|row|pair)_weight_grad_kernel)/) return
    ++kernels
    if (all == 0) { print "no HGMMA: " name; failed = 1 }
    if (waiting * 2 > all) { print waiting " of " all " HGMMA wait: " name; failed = 1 }
  }
  /Function :/ { check(); name = $3; all = waiting = 0 }
  /HGMMA/ { ++all; if (/gsb0/) ++waiting }
  END { check(); print kernels " kernels with wgmma"; exit failed || kernels == 0 }'
