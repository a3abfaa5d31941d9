// Layers of real decoders, for tests of the convolution family with real numbers.
#pragma once

#include <tapedeck/tapedeck.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace tapedeck::test {

struct LayerCase {
  const char* name;
  Shape x, w;
  ConvTranspose2dOptions options;
};

/// The shapes of real decoders, with few images, and each special path.
inline const LayerCase kLayerCases[] = {
    {"pixel to map", {6, 50, 1, 1}, {50, 70, 4, 4}, {}},
    {"tiny map", {19, 48, 4, 4}, {48, 40, 4, 4}, {.stride = 2, .padding = 1}},
    {"odd map", {9, 33, 7, 7}, {33, 65, 3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}},
    {"rows", {2, 32, 9, 40}, {32, 16, 4, 4}, {.stride = 2, .padding = 1}},
    {"colour", {2, 40, 13, 15}, {40, 3, 4, 4}, {.stride = 2, .padding = 1}},
    {"grey", {3, 32, 14, 14}, {32, 1, 3, 3}, {.padding = 1}},
    {"from grey", {3, 1, 14, 14}, {1, 20, 3, 3}, {.stride = 2}},
    {"depthwise", {2, 21, 9, 10}, {21, 1, 4, 3}, {.stride = 2, .padding = 1, .groups = 21}},
    {"multiplier", {2, 10, 6, 7}, {10, 3, 3, 3}, {.stride = 2, .padding = 1, .groups = 10}},
    {"narrow groups", {2, 12, 6, 7}, {12, 2, 3, 3}, {.stride = {2, 3}, .dilation = {2, 1}, .groups = 4}},
    {"wide groups", {2, 64, 6, 7}, {64, 20, 3, 5}, {.stride = {2, 3}, .dilation = {2, 1}, .groups = 2}},
    {"empty phases", {2, 20, 7, 6}, {20, 18, 3, 3}, {.stride = 5, .padding = 1, .dilation = 2}},
    {"large map", {2, 5, 70, 50}, {5, 6, 3, 4}, {.stride = {2, 3}, .padding = 1}},
    {"depthwise rows", {2, 12, 9, 128}, {12, 1, 4, 4}, {.stride = 2, .padding = 1, .groups = 12}},
    {"depthwise 3x3", {2, 8, 10, 64}, {8, 1, 3, 3}, {.padding = 1, .groups = 8}},
    {"multiplier rows",
     {2, 8, 10, 32},
     {8, 2, 3, 3},
     {.stride = 2, .padding = 1, .output_padding = 1, .groups = 8}},
    {"long strips",
     {2, 16, 20, 150},
     {16, 8, 3, 5},
     {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 2}},
    {"depthwise blocks", {2, 72, 9, 21}, {72, 1, 4, 4}, {.stride = 2, .padding = 1, .groups = 72}},
    {"depthwise odd map",
     {2, 40, 7, 19},
     {40, 1, 3, 3},
     {.stride = 2, .padding = 1, .output_padding = 1, .groups = 40}},
    {"depthwise narrow", {3, 6, 11, 24}, {6, 1, 4, 4}, {.stride = 2, .padding = 1, .groups = 6}},
    {"depthwise tall", {3, 16, 70, 5}, {16, 1, 3, 3}, {.padding = 1, .groups = 16}},
    {"strips of eights",
     {2, 32, 11, 70},
     {32, 24, 3, 5},
     {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 2}},
    {"sparse strips", {2, 32, 12, 45}, {32, 36, 3, 3}, {.stride = 5, .padding = 1, .dilation = 2}},
    {"aligned rows", {2, 6, 9, 144}, {6, 5, 3, 3}, {.stride = {2, 1}, .padding = {1, 3}, .dilation = {1, 2}}},
    {"many channels", {3, 300, 6, 5}, {300, 130, 2, 2}, {.stride = 2}},
};

struct Results {
  Tensor y, gx, gw, gb;
};

/// conv_transpose2d of random values of `dtype`, and its gradients, computed on `device`; in float64 if
/// `widened`. The weight and its gradient have a layout of their own.
inline Results run(const LayerCase& c, Layout layout, DType dtype, Device device = {}, bool widened = false,
                   Layout of_weight = Layout::nchw) {
  manual_seed(21);
  const auto make = [&](const Shape& shape, Layout to) {
    const Tensor values = randn(shape, {.dtype = DType::float64}).to(dtype);
    return Variable::parameter((widened ? values.to(DType::float64) : values).to(to).to(device));
  };
  const Variable x = make(c.x, layout), w = make(c.w, of_weight),
                 b = make({c.w[1] * c.options.groups}, Layout::nchw);
  Tape tape;
  const Variable y = conv_transpose2d(x, w, b, c.options);
  const Variables g = tape.gradient(y, {x, w, b}, {.gradient = make(y.shape(), layout).tensor()});
  return {y.tensor(), g[0].tensor(), g[1].tensor(), g[2].tensor()};
}

/// The largest difference in units of the largest value.
inline double difference(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  double most = 0, scale = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    most = std::isnan(x[i] - y[i]) ? std::numeric_limits<double>::infinity()
                                   : std::max(most, std::abs(x[i] - y[i]));
    scale = std::max(scale, std::abs(y[i]));
  }
  return most / scale;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

}  // namespace tapedeck::test
