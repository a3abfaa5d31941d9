// Times ConvTranspose2d for bench/compare_cpu.py: one case a line of input, one answer a line of output.
//
//   case     N CI H W CO KH KW SH SW PH PW OPH OPW DH DW GROUPS LAYOUT THREADS OP MILLISECONDS
//   answer   FLOPS BYTES PATH SECONDS SECONDS ...
//   "limits THREADS" is answered by the FLOP/s of fused multiply-adds in registers and the bytes/s, read and
//   written, of a copy that fits no cache.
//
// OP is forward, input_gradient or weight_gradient; MILLISECONDS is how long to repeat it. Inputs are random.
// Only taps that reach an output count; bytes are those of x, weight and y, each once.
#include <tapedeck/tapedeck.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>

#include <tapedeck/core/parallel.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/ops/conv/explain.h>
#include <tapedeck/ops/conv/kernels.h>

#include "conv_shapes.h"

namespace {

using namespace tapedeck;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class F>
double best(int runs, F f) {
  double seconds = 1e30;
  for (int i = 0; i < runs; ++i) {
    const double start = now();
    f();
    seconds = std::min(seconds, now() - start);
  }
  return seconds;
}

template <int Bytes>
struct VectorOf {
  typedef float type __attribute__((vector_size(Bytes)));
};

constexpr int kSums = 12;
constexpr std::int64_t kRounds = 10'000'000;

/// kRounds multiplications and additions of kSums independent vectors; fused where the target can.
template <int Bytes>
[[gnu::always_inline]] inline float multiply_add() {
  using Vector = typename VectorOf<Bytes>::type;
  Vector sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = Vector{} + static_cast<float>(i);
  for (std::int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * 0.999F + 0.5F;
  }
  for (int i = 1; i < kSums; ++i) sums[0] += sums[i];
  return sums[0][0];
}

using MultiplyAdd = float (*)();
#if defined(__x86_64__)
[[gnu::target("avx512f")]] float multiply_add_avx512() {
  return multiply_add<64>();
}
[[gnu::target("avx2,fma")]] float multiply_add_avx2() {
  return multiply_add<32>();
}
#else
constexpr MultiplyAdd multiply_add_avx512 = multiply_add<16>, multiply_add_avx2 = multiply_add<16>;
#endif

double peak_flops(int threads) {
  volatile float sink = 0;
  const InstructionSet set = instruction_set();
  const MultiplyAdd f = set == InstructionSet::avx512 ? multiply_add_avx512
                        : set == InstructionSet::avx2 ? multiply_add_avx2
                                                      : multiply_add<16>;
  const int lanes = set == InstructionSet::avx512 ? 16 : set == InstructionSet::avx2 ? 8 : 4;
  const double seconds =
      best(5, [&] { parallel_for(threads, 1, [&](std::int64_t, std::int64_t) { sink = f(); }); });
  return 2.0 * static_cast<double>(kRounds) * kSums * lanes * threads / seconds;
}

double copy_bandwidth() {
  const std::int64_t bytes = 128 << 20;
  const Tensor from = Tensor::zeros({bytes}, {DType::uint8}), to = Tensor::zeros({bytes}, {DType::uint8});
  const double seconds = best(7, [&] {
    parallel_for(bytes, 1 << 20, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to.data<std::uint8_t>() + begin, from.data<std::uint8_t>() + begin,
                  static_cast<std::size_t>(end - begin));
    });
  });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

struct Case : bench::ConvShape {
  Layout layout = Layout::nchw;
};

std::istream& operator>>(std::istream& in, Case& c) {
  std::string layout;
  in >> static_cast<bench::ConvShape&>(c) >> layout;
  c.layout = layout == "nhwc" ? Layout::nhwc : Layout::nchw;
  return in;
}

void time(const Case& c, const std::string& op, double seconds) {
  const TensorOptions images{.layout = c.layout};
  const Variable x = randn(c.x(), images), w = randn(c.weight()), b = randn({c.co});
  const auto geometry = conv_transpose2d_geometry(x.tensor(), w.tensor(), {}, c.options);
  const Variable gy = randn(geometry.y_shape(), images);
  const Conv2dOptions plain{c.options.stride, c.options.padding, c.options.dilation, c.options.groups};
  const ConvExplanation explained = explain(geometry, DType::float32, c.layout);
  const auto call = [&] {
    if (op == "forward") return conv_transpose2d(x, w, b, c.options);
    if (op == "input_gradient") return conv2d(gy, w, {}, plain);
    return conv_transpose2d_weight_grad(x, gy, c.kernel, c.options);
  };
  std::cout << explained.flops << ' ' << explained.bytes << ' '
            << (op == "forward"          ? explained.forward
                : op == "input_gradient" ? explained.input_gradient
                                         : explained.weight_gradient)
                   .kernel;
  (void)call();
  int runs = 0;
  for (const double start = now(); runs < 3 || (now() - start < seconds && runs < 1000); ++runs) {
    w.tensor().bump_version();  // as in training: nothing is kept of weights that change
    const double before = now();
    (void)call();
    std::cout << ' ' << now() - before;
  }
  std::cout << std::endl;
}

}  // namespace

int main() {
  manual_seed(static_cast<std::uint64_t>(now() * 1e6));
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    int threads = 1;
    if (line.rfind("limits ", 0) == 0) {
      in.ignore(7) >> threads;
      set_num_threads(threads);
      std::cout << peak_flops(threads) << ' ' << copy_bandwidth() << std::endl;
      continue;
    }
    Case c;
    std::string op;
    double milliseconds = 0;
    if (!(in >> c >> threads >> op >> milliseconds)) {
      std::cerr << "time_conv_bench: cannot read: " << line << "\n";
      return 2;
    }
    set_num_threads(threads);
    time(c, op, milliseconds * 1e-3);
  }
  return 0;
}
