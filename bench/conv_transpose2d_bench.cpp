// GFLOP/s of conv_transpose2d, its input gradient (conv2d) and its weight gradient, shape by shape.
//
//   conv_transpose2d_bench [--batch N] [--threads N] [--shapes a,b] [--reference] [--seconds S]
//
// Only taps that reach an output count. A time is the best of several runs; --reference adds how many times
// faster than the reference kernel (timed on one image) that is. GB/s is the forward's, each of the three
// tensors counted once.
#include <tapedeck/tapedeck.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>

#include <tapedeck/ops/conv/kernels.h>

namespace {

using namespace tapedeck;

struct Case {
  const char* name;
  std::int64_t ci, h, w, co;
  Size2 kernel;
  ConvTranspose2dOptions options;
};

const Case kCases[] = {
    {"dcgan1", 100, 1, 1, 512, 4, {}},
    {"dcgan2", 512, 4, 4, 256, 4, {.stride = 2, .padding = 1}},
    {"dcgan3", 256, 8, 8, 128, 4, {.stride = 2, .padding = 1}},
    {"dcgan4", 128, 16, 16, 64, 4, {.stride = 2, .padding = 1}},
    {"dcgan5", 64, 32, 32, 3, 4, {.stride = 2, .padding = 1}},
    {"vae1", 64, 7, 7, 64, 3, {.stride = 2, .padding = 1, .output_padding = 1}},
    {"vae2", 64, 14, 14, 32, 3, {.stride = 2, .padding = 1, .output_padding = 1}},
    {"vae3", 32, 28, 28, 1, 3, {.padding = 1}},
    {"small", 32, 14, 14, 16, 4, {.stride = 2, .padding = 1}},
    {"mnist", 32, 14, 14, 1, 4, {.stride = 2, .padding = 1}},
    {"c16", 16, 32, 32, 16, 3, {.stride = 2, .padding = 1, .output_padding = 1}},
    {"s1", 64, 32, 32, 64, 3, {.padding = 1}},
    {"unet_up", 256, 28, 28, 128, 2, {.stride = 2}},
    {"depthwise", 64, 56, 56, 64, 4, {.stride = 2, .padding = 1, .groups = 64}},
    {"grouped",
     32,
     64,
     64,
     64,
     {3, 5},
     {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 4}},
    {"empty", 32, 32, 64, 64, 3, {.stride = 5, .padding = 1, .dilation = 2}},
};

/// Seconds: of the CPU with one thread, which other processes do not change, else of the clock.
double now() {
  if (num_threads() == 1) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double best_time(double seconds, const std::function<void()>& f) {
  double best = 1e30;
  int runs = 0;
  for (const double start = now(); runs < 3 || now() - start < seconds; ++runs) {
    const double before = now();
    f();
    best = std::min(best, now() - before);
  }
  return best;
}

struct Flags {
  std::int64_t batch = 16;
  std::string shapes;
  bool reference = false;
  double seconds = 0.2;
};

void run(const Case& c, Layout layout, const Flags& flags) {
  const TensorOptions images{.layout = layout};
  const auto inputs = [&](std::int64_t n) {
    return Variables{randn({n, c.ci, c.h, c.w}, images),
                     randn({c.ci, c.co / c.options.groups, c.kernel.h, c.kernel.w})};
  };
  const auto times = [&](const Variables& in, const Variable& gy, double seconds) {
    const Conv2dOptions plain{c.options.stride, c.options.padding, c.options.dilation, c.options.groups};
    return std::array{
        best_time(seconds, [&] { (void)conv_transpose2d(in[0], in[1], {}, c.options); }),
        best_time(seconds, [&] { (void)conv2d(gy, in[1], {}, plain); }),
        best_time(seconds, [&] { (void)conv_transpose2d_weight_grad(in[0], gy, c.kernel, c.options); })};
  };
  const Variables in = inputs(flags.batch);
  const auto geometry = conv_transpose2d_geometry(in[0].tensor(), in[1].tensor(), {}, c.options);
  const Variable gy = randn(geometry.y_shape(), images);
  const auto fast = times(in, gy, flags.seconds);
  std::printf("%-10s %s n=%-3lld %8.3f GFLOP ", c.name, to_string(layout).c_str(),
              static_cast<long long>(flags.batch), geometry.flops() * 1e-9);
  const char* names[] = {"fwd", "dx", "dw"};
  for (std::size_t i = 0; i < 3; ++i) {
    std::printf("| %s %6.1f GFLOP/s %7.3f ms ", names[i], geometry.flops() / fast[i] * 1e-9, fast[i] * 1e3);
  }
  std::printf("| %4.1f GB/s",
              static_cast<double>(in[0].tensor().bytes() + in[1].tensor().bytes() + gy.tensor().bytes()) /
                  fast[0] * 1e-9);
  if (flags.reference) {
    set_conv_algorithm(ConvAlgorithm::reference);
    const Variables one = inputs(1);
    const auto slow = times(one, Variable(gy.tensor().slice(0, 1).clone()), 0);
    set_conv_algorithm(ConvAlgorithm::automatic);
    std::printf(" | x reference");
    for (std::size_t i = 0; i < 3; ++i) {
      std::printf(" %.0f", slow[i] * static_cast<double>(flags.batch) / fast[i]);
    }
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--reference") {
      flags.reference = true;
      continue;
    }
    const char* value = ++i < argc ? argv[i] : "";
    if (flag == "--batch") {
      flags.batch = std::atoll(value);
    } else if (flag == "--threads") {
      set_num_threads(std::atoi(value));
    } else if (flag == "--shapes") {
      flags.shapes = concat(",", value, ",");
    } else if (flag == "--seconds") {
      flags.seconds = std::atof(value);
    } else {
      std::fprintf(stderr, "conv_transpose2d_bench: unknown flag %s\n", flag.c_str());
      return 2;
    }
  }
  manual_seed(1);
  for (const Case& c : kCases) {
    const bool wanted = flags.shapes.find(concat(",", c.name, ",")) != std::string::npos;
    if (!flags.shapes.empty() && !wanted) continue;
    for (Layout layout : {Layout::nchw, Layout::nhwc}) run(c, layout, flags);
  }
  return 0;
}
