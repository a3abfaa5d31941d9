// The choice of instruction set, which is that of core/simd.h.
#include <type_traits>

#include <tapedeck/core/simd.h>
#include <tapedeck/ops/micro/kernels.h>

namespace tapedeck::micro {

template <class T>
const Kernels<T>& kernels() {
  const auto pick = [](const Kernels<float>& a, const Kernels<double>& b) -> const Kernels<T>& {
    if constexpr (std::is_same_v<T, float>) {
      return a;
    } else {
      return b;
    }
  };
#if defined(TAPEDECK_MICRO_X86)
#if defined(TAPEDECK_SMALL)  // has float64 for any CPU only
  const Kernels<double>&avx512_64 = baseline::kernels64, &avx2_64 = baseline::kernels64;
#else
  const Kernels<double>&avx512_64 = avx512::kernels64, &avx2_64 = avx2::kernels64;
#endif
  switch (instruction_set()) {
    case InstructionSet::avx512:
      return pick(avx512::kernels32, avx512_64);
    case InstructionSet::avx2:
      return pick(avx2::kernels32, avx2_64);
    case InstructionSet::baseline:
      break;
  }
#endif
  return pick(baseline::kernels32, baseline::kernels64);
}

template const Kernels<float>& kernels<float>();
template const Kernels<double>& kernels<double>();

}  // namespace tapedeck::micro
