// Times ConvTranspose2d for bench/compare_cpu.py: one case a line of input, one answer a line of output.
//
//   case     N CI H W CO KH KW SH SW PH PW OPH OPW DH DW GROUPS LAYOUT THREADS OP MILLISECONDS
//   answer   FLOPS BYTES PATH SECONDS SECONDS ...
//   "limits THREADS" is answered by the FLOP/s of fused multiply-adds in registers and the bytes/s, read and
//   written, of a copy that fits no cache.
//   "together" and a case is answered by the seconds that as many multiply-adds in registers take while as
//   many bytes are read and written (cpu_limits.h).
//
// OP is forward, input_gradient or weight_gradient; MILLISECONDS is how long to repeat it. Inputs are random.
// Only taps that reach an output count; bytes are those of x, weight and y, each once.
#include <tapedeck/tapedeck.h>

#include <iostream>
#include <sstream>
#include <string>

#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/conv/explain.h>
#include <tapedeck/ops/conv/kernels.h>

#include "conv_shapes.h"
#include "cpu_limits.h"

namespace {

using namespace tapedeck;

using bench::now;

struct Case : bench::ConvShape {
  Layout layout = Layout::nchw;
};

std::istream& operator>>(std::istream& in, Case& c) {
  std::string layout;
  in >> static_cast<bench::ConvShape&>(c) >> layout;
  c.layout = layout == "nhwc" ? Layout::nhwc : Layout::nchw;
  return in;
}

double together(const Case& c, const std::string& op) {
  const Tensor x = Tensor::empty(c.x()), w = Tensor::empty(c.weight());
  const auto geometry = conv_transpose2d_geometry(x, w, {}, c.options);
  const Tensor y = Tensor::empty(geometry.y_shape());
  const ConvExplanation explained = explain(geometry, DType::float32, c.layout);
  const Tensor& result = op == "forward" ? y : op == "input_gradient" ? x : w;
  const auto written = static_cast<double>(result.bytes());
  return bench::seconds_together(explained.flops, explained.bytes - written, written);
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
      std::cout << bench::peak_flops() << ' ' << bench::copy_bandwidth() << std::endl;
      continue;
    }
    const bool is_together = line.rfind("together ", 0) == 0;
    if (is_together) in.ignore(9);
    Case c;
    std::string op;
    double milliseconds = 0;
    if (!(in >> c >> threads >> op >> milliseconds)) {
      std::cerr << "time_conv_bench: cannot read: " << line << "\n";
      return 2;
    }
    set_num_threads(threads);
    if (is_together) {
      std::cout << together(c, op) << std::endl;
    } else {
      time(c, op, milliseconds * 1e-3);
    }
  }
  return 0;
}
