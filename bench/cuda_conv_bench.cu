// GPU time of conv_transpose2d, its input gradient and its weight gradient, by replays of a CUDA graph.
//
//   cuda_conv_bench [--list | --terms | --twice | --candidates] [--tune] [--shapes a,b] [--sets FILE]
//                   [--modes fp32,tf32,bf16,fp16,fp32_cl,tf32_cl,bf16_cl,fp16_cl]
//                   [--passes fwd,dx,dw] [--kernel BEGIN]
//
// --list prints the shapes themselves instead, a line of JSON each; --terms what the estimates of all
// algorithms are made of (ops/conv/gpu_estimate.h); for these no GPU is needed. --twice calls each of the
// three twice, for a profiler: kernels of the second call are those of replays. --candidates times, briefly,
// all that the autotuner would try (--kernel leaves none out), the estimated choice first, a line of JSON
// each. --sets takes shapes from a file, a line each: NAME N CI H W CO KH KW SH SW PH PW OPH OPW DH DW
// GROUPS; they are many, and timed briefly, or once if that takes long. --passes and --kernel leave out, with
// no time and no name, other passes, and those whose kernel, as explain_alone() tells it before anything is
// tuned, has a name that does not begin so. A line of JSON for each shape and mode, with the names that
// PyTorch's measurements have: _cl is nhwc, of images and weights; fp32 is float32 at Precision::highest,
// tf32 at high. TAPEDECK_CONV_ALGORITHM chooses kernels; --tune has them tried, for as long as it takes
// (ops/conv/autotune.h; TAPEDECK_CONV_AUTOTUNE names the file of choices, which ship_choices.py makes the
// library's). The time is a median over replays, after a rest; a graph holds enough calls for a millisecond.
// GFLOP count the taps that reach an output. fwd_kernel and fwd_share, dx_ and dw_ likewise, are what
// explain_alone() says of it, and the share of its limit that was reached. The first line tells the bandwidth
// of a copy of 1 GiB, reading and writing, in this run.
#include <tapedeck/tapedeck.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/autotune.h>
#include <tapedeck/ops/conv/gpu_estimate.h>
#include <tapedeck/core/cuda.cuh>
#include <tapedeck/ops/conv/autotune.cuh>
#include <tapedeck/ops/conv/strip.cuh>

#include "conv_shapes.h"

namespace {

using namespace tapedeck;
using bench::ConvShape;
using cu::check_cuda;

const Device kCuda{DeviceType::cuda};

/// How long to time: milliseconds of a graph, and replays; and of the rest before them, which is the same for
/// PyTorch (compare_gpu.py): after the pauses of trials kernels took 0.87 to 0.95 of the time on an H200.
/// What takes more than `once` is timed once. Without replays there are two calls, and no time.
struct Effort {
  double graph;
  int least, most, rest;
  double once;
};
constexpr Effort kThorough{1, 5, 30, 50, 1000}, kBrief{0.3, 5, 9, 10, 20}, kTwice{};

/// Milliseconds of one call of f, in the device's own time.
double milliseconds(const Effort& effort, const std::function<void()>& f) {
  if (effort.most == 0) {
    f(), f();
    return 0;
  }
  const auto stream = static_cast<cudaStream_t>(Context::current(kCuda).stream());
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end), "cudaEventCreate");
  const auto destroy_events = [&] {
    check_cuda(cudaEventDestroy(begin), "cudaEventDestroy");
    check_cuda(cudaEventDestroy(end), "cudaEventDestroy");
  };
  const auto timed = [&](const auto& work) {
    check_cuda(cudaEventRecord(begin, stream), "cudaEventRecord");
    work();
    check_cuda(cudaEventRecord(end, stream), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end), "cudaEventSynchronize");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    return static_cast<double>(ms);
  };
  f();
  const double first = timed(f);
  if (first > effort.once) {
    destroy_events();
    return first;
  }
  const int calls = std::clamp(static_cast<int>(effort.graph / first), 1, 100);
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < calls; ++i) f();
  check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check_cuda(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  std::this_thread::sleep_for(std::chrono::milliseconds(effort.rest));
  std::vector<double> times;
  const int runs = std::clamp(static_cast<int>(100 / (first * calls)), effort.least, effort.most);
  for (int i = 0; i < runs + 2; ++i) {
    const double ms = timed([&] { check_cuda(cudaGraphLaunch(replay, stream), "cudaGraphLaunch"); }) / calls;
    if (i >= 2) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  check_cuda(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
  check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  destroy_events();
  return times[times.size() / 2];
}

/// Sets a mode's precision; what tensors it has.
TensorOptions options_of(const std::string& mode) {
  const DType dtype = mode.starts_with("bf16")   ? DType::bfloat16
                      : mode.starts_with("fp16") ? DType::float16
                                                 : DType::float32;
  set_float32_precision(mode.starts_with("tf32") ? Precision::high : Precision::highest);
  return {dtype, kCuda, mode.ends_with("_cl") ? Layout::nhwc : Layout::nchw};
}

/// What is timed of a layer.
struct Wanted {
  std::string passes = "fwd,dx,dw", kernel;
};

/// Whether a list with commas has a name.
bool lists(const std::string& list, const std::string& name) {
  return concat(",", list, ",").find(concat(",", name, ",")) != std::string::npos;
}

void run(const ConvShape& c, const std::string& mode, const Effort& effort, const Wanted& wanted) {
  const TensorOptions options = options_of(mode);
  const DType dtype = options.dtype;
  const Variable x = randn(c.x(), options), w = randn(c.weight(), options);
  const auto g = conv_transpose2d_geometry(x.tensor(), w.tensor(), {}, c.options);
  const Variable gy = randn(g.y_shape(), options);
  const Conv2dOptions plain{c.options.stride, c.options.padding, c.options.dilation, c.options.groups};
  const auto time = [&](const char* pass, ConvChoice ConvExplanation::*choice, const auto& f) {
    const bool is_wanted =
        lists(wanted.passes, pass) &&
        (wanted.kernel.empty() ||
         to_string(cu::explain_alone(g, dtype, options.layout, kCuda).*choice).starts_with(wanted.kernel));
    return is_wanted ? milliseconds(effort, f) : 0;
  };
  const double fwd =
      time("fwd", &ConvExplanation::forward, [&] { (void)conv_transpose2d(x, w, {}, c.options); });
  const double dx = time("dx", &ConvExplanation::input_gradient, [&] { (void)conv2d(gy, w, {}, plain); });
  const double dw = time("dw", &ConvExplanation::weight_gradient, [&] {
    (void)conv_transpose2d_weight_grad(x, gy, c.kernel, c.options, options.layout);
  });
  if (effort.most == 0) return;
  const ConvExplanation e = cu::explain_alone(g, dtype, options.layout, kCuda);
  const double gflop = g.flops() * 1e-9;
  const double bytes = static_cast<double>(x.tensor().bytes() + w.tensor().bytes() + gy.tensor().bytes());
  const auto rate = [](double amount, double ms) { return ms > 0 ? amount / ms : 0; };
  const auto kernel = [](const ConvChoice& choice, double ms) { return ms > 0 ? to_string(choice) : ""; };
  const auto share = [&](double ms) { return ms > 0 ? e.share(ms * 1e-3) : 0; };
  std::printf(
      "{\"shape\": \"%s\", \"mode\": \"%s\", \"gflop\": %.3f, \"bytes\": %.0f, \"fwd_ms\": %.4f, \"dx_ms\": "
      "%.4f, "
      "\"dw_ms\": %.4f, \"fwd_tflops\": %.1f, \"dx_tflops\": %.1f, \"dw_tflops\": %.1f, \"fwd_tbs\": %.2f, "
      "\"fwd_kernel\": \"%s\", \"dx_kernel\": \"%s\", \"dw_kernel\": \"%s\", \"fwd_share\": %.3f, "
      "\"dx_share\": %.3f, \"dw_share\": %.3f}\n",
      c.name.c_str(), mode.c_str(), gflop, bytes, fwd, dx, dw, rate(gflop, fwd), rate(gflop, dx),
      rate(gflop, dw), rate(bytes * 1e-9, fwd), kernel(e.forward, fwd).c_str(),
      kernel(e.input_gradient, dx).c_str(), kernel(e.weight_gradient, dw).c_str(), share(fwd), share(dx),
      share(dw));
  std::fflush(stdout);
}

void time_candidates(const ConvShape& c, const std::string& mode, const Wanted& wanted) {
  using conv_estimate::ConvPass;
  const TensorOptions options = options_of(mode);
  const Tensor x = randn(c.x(), options), w = randn(c.weight(), options);
  const auto g = conv_transpose2d_geometry(x, w, {}, c.options);
  const Tensor y = randn(g.y_shape(), options), to_x = Tensor::empty_like(x), to_y = Tensor::empty_like(y),
               to_w = Tensor::empty_like(w);
  const auto time = [&](const char* name, ConvPass pass, const auto& f) {
    if (!lists(wanted.passes, name)) return;
    for (const ConvCandidate& candidate : cu::conv_candidates(g, pass, x, y)) {
      const ConvAlgorithmScope forced(candidate);
      std::string result;
      try {
        result = concat("\"us\": ", milliseconds(kBrief, f) * 1e3);
      } catch (const Error& error) {
        result = concat("\"error\": \"", error.what(), "\"");
      }
      std::printf("{\"shape\": \"%s\", \"mode\": \"%s\", \"op\": \"%s\", \"candidate\": \"%s\", %s}\n",
                  c.name.c_str(), mode.c_str(), name, to_string(candidate).c_str(), result.c_str());
      std::fflush(stdout);
    }
  };
  time("fwd", ConvPass::forward, [&] { cu::conv_transpose2d(g, x, w, {}, to_y, 1); });
  time("dx", ConvPass::input_gradient, [&] { cu::conv2d(g, y, w, {}, to_x, 1); });
  time("dw", ConvPass::weight_gradient, [&] { cu::conv_transpose2d_weight_grad(g, x, y, to_w); });
}

void print_terms(const ConvShape& c, const std::string& mode) {
  using namespace conv_estimate;
  const TensorOptions options = options_of(mode);
  const auto g = conv_transpose2d_geometry(Tensor::empty(c.x()), Tensor::empty(c.weight()), {}, c.options);
  if (!conv_gemm::fits(g) || g.n == 0) return;
  for (const auto& [pass, name] : {std::pair(ConvPass::forward, "fwd"),
                                   {ConvPass::input_gradient, "dx"},
                                   {ConvPass::weight_gradient, "dw"}}) {
    const ConvCall call(g, pass, options.dtype, options.layout);
    const auto strip = pass == ConvPass::weight_gradient
                           ? cu::strip_weight_grad_effort(g, options.dtype, options.layout)
                           : cu::strip_effort(g, pass == ConvPass::forward, options.dtype, options.layout);
    for (const ConvAlgorithm a : kEstimated) {
      if (a == ConvAlgorithm::strip && !strip) continue;
      const Terms terms = terms_of(a, call, strip.value_or(conv_strip::StripEffort{}));
      if (terms == Terms{}) continue;
      std::printf("{\"shape\": \"%s\", \"mode\": \"%s\", \"op\": \"%s\", \"algorithm\": \"%s\", \"terms\": [",
                  c.name.c_str(), mode.c_str(), name, to_string(a).c_str());
      for (const double& term : terms) std::printf("%s%.6g", &term == terms.data() ? "" : ", ", term);
      std::puts("]}");
    }
  }
}

/// Four vectors a thread, which is faster than cudaMemcpyAsync().
__global__ void __launch_bounds__(1024) copy_kernel(const uint4* from, uint4* to) {
  const std::int64_t first = std::int64_t{blockIdx.x} * 4096 + threadIdx.x;
  uint4 values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = from[first + i * 1024];
#pragma unroll
  for (int i = 0; i < 4; ++i) to[first + i * 1024] = values[i];
}

void copy() {
  const Tensor from = randn({std::int64_t{1} << 28}, {DType::float32, kCuda}), to = Tensor::empty_like(from);
  const auto stream = static_cast<cudaStream_t>(Context::current(kCuda).stream());
  const double ms = milliseconds(kThorough, [&] {
    copy_kernel<<<static_cast<unsigned>(to.bytes() / sizeof(uint4) / 4096), 1024, 0, stream>>>(
        static_cast<const uint4*>(from.raw()), static_cast<uint4*>(to.raw()));
    check_cuda(cudaGetLastError(), "copy_kernel");
  });
  std::printf("{\"copy_tbs\": %.3f}\n", 2e-9 * static_cast<double>(to.bytes()) / ms);
}

void list(const ConvShape& c) {
  const auto pair = [](const Size2& s) { return Shape{s.h, s.w}; };
  const auto& o = c.options;
  std::puts(concat("{\"shape\": \"", c.name, "\", \"x\": ", c.x(), ", \"weight\": ", c.weight(),
                   ", \"stride\": ", pair(o.stride), ", \"padding\": ", pair(o.padding),
                   ", \"output_padding\": ", pair(o.output_padding), ", \"dilation\": ", pair(o.dilation),
                   ", \"groups\": ", o.groups, "}")
                .c_str());
}

}  // namespace

int main(int argc, char** argv) {
  std::string shapes, sets, modes = "fp32,tf32,bf16,fp32_cl,tf32_cl,bf16_cl";
  Wanted wanted;
  bool only_list = false, only_terms = false, twice = false, candidates = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    only_list |= flag == "--list";
    only_terms |= flag == "--terms";
    twice |= flag == "--twice";
    candidates |= flag == "--candidates";
    if (flag == "--tune") {
      const char* const file = std::getenv("TAPEDECK_CONV_AUTOTUNE");
      set_conv_autotune(ConvAutotuneOptions{.file = file ? file : "", .budget_seconds = 3600});
    }
    if (i + 1 == argc) break;
    if (flag == "--shapes") shapes = argv[i + 1];
    if (flag == "--modes") modes = argv[i + 1];
    if (flag == "--sets") sets = argv[i + 1];
    if (flag == "--passes") wanted.passes = argv[i + 1];
    if (flag == "--kernel") wanted.kernel = argv[i + 1];
  }
  std::vector<ConvShape> all(std::begin(bench::kConvShapes), std::end(bench::kConvShapes));
  if (!sets.empty()) {
    all.clear();
    std::ifstream file(sets);
    for (ConvShape c; file >> c.name >> c;) all.push_back(c);
    if (!file.eof()) {
      std::fprintf(stderr, "cuda_conv_bench: %s: cannot read set %zu\n", sets.c_str(), all.size() + 1);
      return 2;
    }
  }
  manual_seed(1);
  if (!only_list && !only_terms && !twice) copy();
  for (const ConvShape& c : all) {
    if (!shapes.empty() && !lists(shapes, c.name)) continue;
    if (only_list) {
      list(c);
      continue;
    }
    for (const char* mode : {"fp32", "fp32_cl", "tf32", "tf32_cl", "bf16", "bf16_cl", "fp16", "fp16_cl"}) {
      if (!lists(modes, mode)) continue;
      if (only_terms) {
        print_terms(c, mode);
        continue;
      }
      try {
        if (candidates) {
          time_candidates(c, mode, wanted);
        } else {
          run(c, mode, twice ? kTwice : sets.empty() ? kThorough : kBrief, wanted);
        }
      } catch (const Error& error) {
        std::printf("{\"shape\": \"%s\", \"mode\": \"%s\", \"error\": \"%s\"}\n", c.name.c_str(), mode,
                    error.what());
      }
    }
  }
  return 0;
}
