// GPU time of conv_transpose2d, its input gradient and its weight gradient, by replays of a CUDA graph.
//
//   cuda_conv_bench [--shapes a,b] [--modes fp32,tf32,bf16,fp16,fp32_cl,tf32_cl,bf16_cl,fp16_cl]
//
// A line of JSON for each shape and mode, with the names that PyTorch's measurements have: _cl is nhwc; fp32
// is float32 at Precision::highest, tf32 at high. TAPEDECK_CONV_ALGORITHM chooses kernels. The time is a
// median over replays; a graph holds enough calls for a millisecond. GFLOP count the taps that reach an
// output.
#include <tapedeck/tapedeck.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <tapedeck/core/precision.h>
#include <tapedeck/core/cuda.cuh>

namespace {

using namespace tapedeck;
using cu::check_cuda;

struct Case {
  const char* name;
  std::int64_t n, ci, h, w, co;
  Size2 kernel;
  ConvTranspose2dOptions options;
};

const Case kCases[] = {
    {"kb57", 8, 64, 1024, 1024, 64, 3, {}},
    {"kb65", 8, 64, 512, 512, 64, {3, 7}, {}},
    {"kb69", 64, 64, 128, 256, 128, {3, 5}, {}},
    {"kb71", 8, 32, 512, 1024, 32, 3, {}},
    {"kb75",
     16,
     32,
     128,
     256,
     64,
     {3, 5},
     {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 4}},
    {"kb78", 8, 32, 512, 1024, 32, {3, 7}, {.padding = {1, 3}}},
    {"kb81", 16, 32, 64, 128, 64, 3, {.stride = 5, .padding = 1, .dilation = 2}},
    {"dcgan1", 128, 100, 1, 1, 512, 4, {}},
    {"dcgan2", 128, 512, 4, 4, 256, 4, {.stride = 2, .padding = 1}},
    {"dcgan3", 128, 256, 8, 8, 128, 4, {.stride = 2, .padding = 1}},
    {"dcgan4", 128, 128, 16, 16, 64, 4, {.stride = 2, .padding = 1}},
    {"dcgan5", 128, 64, 32, 32, 3, 4, {.stride = 2, .padding = 1}},
    {"vae1", 128, 64, 7, 7, 64, 3, {.stride = 2, .padding = 1, .output_padding = 1}},
    {"vae2", 128, 64, 14, 14, 32, 3, {.stride = 2, .padding = 1, .output_padding = 1}},
    {"unet_up", 16, 1024, 28, 28, 512, 2, {.stride = 2}},
    {"depthwise", 32, 256, 56, 56, 256, 4, {.stride = 2, .padding = 1, .groups = 256}},
    {"big", 32, 512, 64, 64, 256, 4, {.stride = 2, .padding = 1}},
};

const Device kCuda{DeviceType::cuda};

/// Milliseconds of one call of f, in the device's own time.
double milliseconds(const std::function<void()>& f) {
  const auto stream = static_cast<cudaStream_t>(Context::current(kCuda).stream());
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end), "cudaEventCreate");
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
  const int calls = std::clamp(static_cast<int>(1 / first), 1, 100);
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < calls; ++i) f();
  check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check_cuda(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  std::vector<double> times;
  const int runs = std::clamp(static_cast<int>(100 / (first * calls)), 5, 30);
  for (int i = 0; i < runs + 2; ++i) {
    const double ms = timed([&] { check_cuda(cudaGraphLaunch(replay, stream), "cudaGraphLaunch"); }) / calls;
    if (i >= 2) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  check_cuda(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
  check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  check_cuda(cudaEventDestroy(begin), "cudaEventDestroy");
  check_cuda(cudaEventDestroy(end), "cudaEventDestroy");
  return times[times.size() / 2];
}

void run(const Case& c, const std::string& mode) {
  const bool nhwc = mode.ends_with("_cl");
  const DType dtype = mode.starts_with("bf16")   ? DType::bfloat16
                      : mode.starts_with("fp16") ? DType::float16
                                                 : DType::float32;
  set_float32_precision(mode.starts_with("tf32") ? Precision::high : Precision::highest);
  const TensorOptions options{dtype, kCuda, nhwc ? Layout::nhwc : Layout::nchw};
  const Variable x = randn({c.n, c.ci, c.h, c.w}, options),
                 w = randn({c.ci, c.co / c.options.groups, c.kernel.h, c.kernel.w}, {dtype, kCuda});
  const auto g = conv_transpose2d_geometry(x.tensor(), w.tensor(), {}, c.options);
  const Variable gy = randn(g.y_shape(), options);
  const Conv2dOptions plain{c.options.stride, c.options.padding, c.options.dilation, c.options.groups};
  const double fwd = milliseconds([&] { (void)conv_transpose2d(x, w, {}, c.options); });
  const double dx = milliseconds([&] { (void)conv2d(gy, w, {}, plain); });
  const double dw = milliseconds([&] { (void)conv_transpose2d_weight_grad(x, gy, c.kernel, c.options); });
  const double gflop = g.flops() * 1e-9;
  const double bytes = static_cast<double>(x.tensor().bytes() + w.tensor().bytes() + gy.tensor().bytes());
  std::printf(
      "{\"shape\": \"%s\", \"mode\": \"%s\", \"gflop\": %.3f, \"bytes\": %.0f, \"fwd_ms\": %.4f, \"dx_ms\": "
      "%.4f, "
      "\"dw_ms\": %.4f, \"fwd_tflops\": %.1f, \"dx_tflops\": %.1f, \"dw_tflops\": %.1f, \"fwd_tbs\": %.2f}\n",
      c.name, mode.c_str(), gflop, bytes, fwd, dx, dw, gflop / fwd, gflop / dx, gflop / dw,
      bytes / fwd * 1e-9);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::string shapes, modes = "fp32,tf32,bf16,bf16_cl,tf32_cl";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--shapes") shapes = argv[i + 1];
    if (flag == "--modes") modes = argv[i + 1];
  }
  const auto lists = [](const std::string& list, const std::string& name) {
    return concat(",", list, ",").find(concat(",", name, ",")) != std::string::npos;
  };
  manual_seed(1);
  for (const Case& c : kCases) {
    if (!shapes.empty() && !lists(shapes, c.name)) continue;
    for (const char* mode : {"fp32", "fp32_cl", "tf32", "tf32_cl", "bf16", "bf16_cl", "fp16", "fp16_cl"}) {
      if (!lists(modes, mode)) continue;
      try {
        run(c, mode);
      } catch (const Error& error) {
        std::printf("{\"shape\": \"%s\", \"mode\": \"%s\", \"error\": \"%s\"}\n", c.name, mode, error.what());
      }
    }
  }
  return 0;
}
