// The convolution family by its definition, for tests: float64 loops over row-major vectors that share no
// code with the library, and random cases that favour the edges.
#pragma once

#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace tapedeck::test {

using Values = std::vector<double>;

/// One case of conv_transpose2d: the small side is x, the large side y. A conv2d goes from y to x.
struct ConvCase {
  std::int64_t n = 1, ci = 1, co = 1, groups = 1;
  std::int64_t in[2] = {1, 1}, kernel[2] = {1, 1}, stride[2] = {1, 1}, padding[2] = {0, 0};
  std::int64_t output_padding[2] = {0, 0}, dilation[2] = {1, 1};
  bool bias = false, nhwc = false, batched = true, weight_nhwc = false;

  std::int64_t out(int axis) const {
    return (in[axis] - 1) * stride[axis] - 2 * padding[axis] + dilation[axis] * (kernel[axis] - 1) +
           output_padding[axis] + 1;
  }
  std::size_t x_count() const { return static_cast<std::size_t>(n * ci * in[0] * in[1]); }
  std::size_t y_count() const { return static_cast<std::size_t>(n * co * out(0) * out(1)); }
  std::size_t w_count() const { return static_cast<std::size_t>(ci * (co / groups) * kernel[0] * kernel[1]); }

  std::string text() const {
    std::ostringstream s;
    s << "n=" << n << " ci=" << ci << " co=" << co << " groups=" << groups;
    const auto pair = [&](const char* name, const std::int64_t* v) {
      s << ' ' << name << '=' << v[0] << ',' << v[1];
    };
    pair("in", in), pair("kernel", kernel), pair("stride", stride), pair("padding", padding);
    pair("output_padding", output_padding), pair("dilation", dilation);
    s << (bias ? " bias" : "") << (nhwc ? " nhwc" : "") << (batched ? "" : " unbatched")
      << (weight_nhwc ? " weight nhwc" : "");
    return s.str();
  }
};

/// Calls f(x_index, w_index, y_index) for every product of the definition.
template <class F>
void for_each_product(const ConvCase& c, F f) {
  const std::int64_t ci_group = c.ci / c.groups, co_group = c.co / c.groups, oh_end = c.out(0),
                     ow_end = c.out(1);
  for (std::int64_t n = 0; n < c.n; ++n)
    for (std::int64_t ci = 0; ci < c.ci; ++ci)
      for (std::int64_t j = 0; j < co_group; ++j) {
        const std::int64_t co = ci / ci_group * co_group + j;
        for (std::int64_t kh = 0; kh < c.kernel[0]; ++kh)
          for (std::int64_t kw = 0; kw < c.kernel[1]; ++kw)
            for (std::int64_t ih = 0; ih < c.in[0]; ++ih) {
              const std::int64_t oh = ih * c.stride[0] - c.padding[0] + kh * c.dilation[0];
              if (oh < 0 || oh >= oh_end) continue;
              for (std::int64_t iw = 0; iw < c.in[1]; ++iw) {
                const std::int64_t ow = iw * c.stride[1] - c.padding[1] + kw * c.dilation[1];
                if (ow < 0 || ow >= ow_end) continue;
                f(static_cast<std::size_t>(((n * c.ci + ci) * c.in[0] + ih) * c.in[1] + iw),
                  static_cast<std::size_t>(((ci * co_group + j) * c.kernel[0] + kh) * c.kernel[1] + kw),
                  static_cast<std::size_t>(((n * c.co + co) * oh_end + oh) * ow_end + ow));
              }
            }
      }
}

/// y from x, w and bias (empty: none).
inline Values define_y(const ConvCase& c, const Values& x, const Values& w, const Values& bias) {
  Values y(c.y_count(), 0.0);
  const auto plane = static_cast<std::size_t>(c.out(0) * c.out(1));
  for (std::size_t i = 0; i < y.size() && !bias.empty(); ++i) {
    y[i] = bias[i / plane % static_cast<std::size_t>(c.co)];
  }
  for_each_product(c, [&](std::size_t i, std::size_t k, std::size_t o) { y[o] += x[i] * w[k]; });
  return y;
}
/// x from y, w and bias (empty: none).
inline Values define_x(const ConvCase& c, const Values& y, const Values& w, const Values& bias = {}) {
  Values x(c.x_count(), 0.0);
  const auto plane = static_cast<std::size_t>(c.in[0] * c.in[1]);
  for (std::size_t i = 0; i < x.size() && !bias.empty(); ++i) {
    x[i] = bias[i / plane % static_cast<std::size_t>(c.ci)];
  }
  for_each_product(c, [&](std::size_t i, std::size_t k, std::size_t o) { x[i] += y[o] * w[k]; });
  return x;
}
/// w from x and y.
inline Values define_w(const ConvCase& c, const Values& x, const Values& y) {
  Values w(c.w_count(), 0.0);
  for_each_product(c, [&](std::size_t i, std::size_t k, std::size_t o) { w[k] += x[i] * y[o]; });
  return w;
}
/// The sum over all but the channels of values [n, channels, pixels].
inline Values define_channel_sum(const Values& v, std::int64_t n, std::int64_t channels) {
  Values sums(static_cast<std::size_t>(channels), 0.0);
  if (v.empty()) return sums;
  const std::size_t pixels = v.size() / static_cast<std::size_t>(n * channels);
  for (std::size_t i = 0; i < v.size(); ++i) sums[i / pixels % sums.size()] += v[i];
  return sums;
}

/// Cases and values from one seed, the same everywhere (the standard's distributions are not).
class ConvRandom {
 public:
  explicit ConvRandom(std::uint64_t seed) : engine_(seed) {}

  /// A whole number from low to high.
  std::int64_t in(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return in(1, 100) <= percent; }

  /// Whole numbers from -4 to 4: sums of products are exact in every floating type with enough bits, so
  /// results are compared for equality.
  Values integers(std::size_t count) {
    Values v(count);
    for (double& x : v) x = static_cast<double>(in(-4, 4));
    return v;
  }

  /// A legal case with sizes up to about `size` and channels up to `channels` a group.
  /// Channels of a group: `unit` times up to `channels`.
  ConvCase conv_case(std::int64_t size, std::int64_t channels, std::int64_t unit = 1) {
    for (;;) {
      ConvCase c;
      c.batched = !chance(10);
      c.n = !c.batched ? 1 : chance(4) ? 0 : in(1, 3);
      c.groups = chance(60) ? 1 : in(2, 4);
      const bool depthwise = unit == 1 && chance(12);
      if (depthwise) c.groups = in(1, channels * 2);
      c.ci = c.groups * unit * (depthwise ? 1 : in(1, channels));
      c.co = c.groups * unit * (depthwise ? in(1, 2) : in(1, channels));
      c.bias = chance(50);
      c.nhwc = c.batched && chance(50);
      c.weight_nhwc = chance(c.nhwc ? 50 : 15);
      const bool pointwise = chance(8);
      for (int a = 0; a < 2; ++a) {
        c.in[a] = chance(15) ? 1 : in(1, size);
        c.kernel[a] = pointwise ? 1 : in(1, 5);
        c.stride[a] = chance(25) ? 1 : in(1, 5);
        c.dilation[a] = chance(50) ? 1 : chance(40) ? c.stride[a] : in(1, 4);  // a common factor, often
        c.padding[a] = chance(30) ? 0 : in(0, c.dilation[a] * (c.kernel[a] - 1) + 2);
        const std::int64_t limit = std::max(c.stride[a], c.dilation[a]) - 1;
        c.output_padding[a] = chance(40) ? 0 : chance(40) ? limit : in(0, limit);
      }
      if (c.out(0) >= 1 && c.out(1) >= 1 && c.out(0) * c.out(1) <= 40 * size * size) return c;
    }
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace tapedeck::test
