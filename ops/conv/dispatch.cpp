// The choice of kernels that kernels.h states.
#include <atomic>
#include <cstdlib>
#include <string_view>

#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv/pack.h>
#include <tapedeck/ops/conv2d.h>
#include <tapedeck/ops/conv_transpose2d.h>

namespace tapedeck {

namespace {

std::atomic<int> forced{-1};  // a ConvAlgorithm, or -1: as the environment says

ConvAlgorithm from_environment() {
  const char* name = std::getenv("TAPEDECK_CONV_ALGORITHM");
  return name == nullptr || *name == '\0' ? ConvAlgorithm::automatic : parse_conv_algorithm(name);
}

}  // namespace

ConvAlgorithm parse_conv_algorithm(std::string_view name) {
  check(name == "automatic" || name == "reference", "conv algorithm: \"", name,
        "\" is unknown; legal are automatic and reference");
  return name == "automatic" ? ConvAlgorithm::automatic : ConvAlgorithm::reference;
}

void set_conv_algorithm(ConvAlgorithm algorithm) {
  forced = static_cast<int>(algorithm);
}

ConvAlgorithm conv_algorithm() {
  const int algorithm = forced;
  return algorithm < 0 ? from_environment() : static_cast<ConvAlgorithm>(algorithm);
}

namespace cpu {

namespace {

/// Calls f with float or double tensors: half types are computed in float32.
template <class F>
void in_computing_type(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out, F f) {
  if (out.dtype() == DType::float64) return f.template operator()<double>(a, b, bias, out);
  if (out.dtype() == DType::float32) return f.template operator()<float>(a, b, bias, out);
  const Tensor wide = Tensor::empty(out.shape(), {DType::float32, out.device(), out.layout()});
  f.template operator()<float>(a.to(DType::float32), b.to(DType::float32),
                               bias.defined() ? bias.to(DType::float32) : Tensor(), wide);
  out.copy_(wide);
}

void convolve(Direction direction, const ConvTranspose2dGeometry& g, const Tensor& from, const Tensor& w,
              const Tensor& bias, const Tensor& to) {
  in_computing_type(from, w, bias, to,
                    [&]<class T>(const Tensor& a, const Tensor& b, const Tensor& start, const Tensor& out) {
                      if (is_matrix(g, direction == Direction::plain ? from : to)) {
                        return matrix<T>(g, direction, a, b, start, out);
                      }
                      windows<T>(ConvMap(g, direction), a, b, start, out);
                    });
}

}  // namespace

void conv_transpose2d(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      const Tensor& y) {
  if (conv_algorithm() == ConvAlgorithm::reference) return reference::conv_transpose2d(g, x, w, bias, y);
  convolve(Direction::transposed, g, x, w, bias, y);
}

void conv2d(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
            const Tensor& x) {
  if (conv_algorithm() == ConvAlgorithm::reference) return reference::conv2d(g, y, w, bias, x);
  convolve(Direction::plain, g, y, w, bias, x);
}

void conv_transpose2d_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                                  const Tensor& w) {
  if (conv_algorithm() == ConvAlgorithm::reference) return reference::weight_grad(g, x, y, w);
  in_computing_type(x, y, {}, w,
                    [&]<class T>(const Tensor& a, const Tensor& b, const Tensor&, const Tensor& out) {
                      if (is_matrix(g, y)) return matrix_weight_grad<T>(g, a, b, out);
                      if (lanes_of<T>(ConvMap(g, Direction::transposed)) == Lanes::channelwise) {
                        return channelwise_weight_grad<T>(g, a, b, out);
                      }
                      weight_grad<T>(g, a, b, out);
                    });
}

}  // namespace cpu
}  // namespace tapedeck
