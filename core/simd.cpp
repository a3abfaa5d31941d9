#include <tapedeck/core/simd.h>

#include <algorithm>
#include <atomic>

namespace tapedeck {

namespace {

InstructionSet detect() {
#if defined(__x86_64__) && !defined(TAPEDECK_PORTABLE)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return InstructionSet::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return InstructionSet::avx2;
#endif
  return InstructionSet::baseline;
}

std::atomic<InstructionSet> limit{InstructionSet::avx512};

}  // namespace

std::string to_string(InstructionSet set) {
  switch (set) {
    case InstructionSet::avx512:
      return "avx512";
    case InstructionSet::avx2:
      return "avx2";
    case InstructionSet::baseline:
      break;
  }
  return "baseline";
}

InstructionSet instruction_set() {
  static const InstructionSet widest = detect();
  return std::min(widest, limit.load(std::memory_order_relaxed));
}

void limit_instruction_set(InstructionSet widest) {
  limit = widest;
}

}  // namespace tapedeck
