// The GPU's matrix products without a GPU: what its kernels compute from conv_gemm::Plan, in plain loops,
// against the definition.
#include <gtest/gtest.h>

#include <tapedeck/ops/conv/gemm_plan.h>

#include "conv_geometry.h"

namespace tapedeck::test {
namespace {

using namespace conv_gemm;

ImageStrides strides(std::int64_t channels, std::int64_t h, std::int64_t w, bool nhwc) {
  const auto i = [](std::int64_t v) { return static_cast<int>(v); };
  if (nhwc) return {channels * h * w, 1, i(w * channels), i(channels)};
  return {channels * h * w, i(h * w), i(w), 1};
}

/// Element (n, c, h, w) in row-major order for each place of the layout.
template <class F>
void for_each_place(std::int64_t n, std::int64_t channels, std::int64_t h, std::int64_t w,
                    const ImageStrides& s, F f) {
  std::size_t i = 0;
  for (std::int64_t a = 0; a < n; ++a)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t y = 0; y < h; ++y)
        for (std::int64_t x = 0; x < w; ++x, ++i) {
          f(i, static_cast<std::size_t>(a * s.n + c * s.c + y * s.h + x * s.w));
        }
}

void check_map(const ConvCase& c, ConvRandom& random, bool transposed, int element_bytes) {
  const ConvTranspose2dGeometry g = geometry_of(c);
  ASSERT_TRUE(fits(g));
  Plan p(g, transposed, element_bytes);
  const std::int64_t from_c = transposed ? c.ci : c.co, to_c = transposed ? c.co : c.ci;
  const std::int64_t to_h = transposed ? c.out(0) : c.in[0], to_w = transposed ? c.out(1) : c.in[1];
  p.from = strides(from_c, p.from_h, p.from_w, c.nhwc);
  p.to = strides(to_c, to_h, to_w, c.nhwc);
  const Values from = random.integers(transposed ? c.x_count() : c.y_count());
  const Values w = random.integers(c.w_count());
  const Values expected = transposed ? define_y(c, from, w, {}) : define_x(c, from, w);
  Values from_there(from.size());
  for_each_place(c.n, from_c, p.from_h, p.from_w, p.from,
                 [&](std::size_t i, std::size_t at) { from_there[at] = from[i]; });

  // The weight as pack_kernel leaves it, after a fill with zeros only where the plan says that it needs one.
  const int padded_n = (p.to_channels + 31) / 32 * 32;
  const std::int64_t group_elements = p.packed_vectors(padded_n) * p.vector;
  Values packed(static_cast<std::size_t>(group_elements * p.groups),
                p.packed_has_holes(padded_n) ? 0.0 : 1e9);
  for (int group = 0; group < p.groups; ++group)
    for (int m = 0; m < p.to_channels; ++m)
      for (int v = 0; v < static_cast<int>(p.tap_vectors.divisor); ++v)
        for (int kh = 0; kh < p.kernel_h; ++kh)
          for (int kw = 0; kw < p.kernel_w; ++kw) {
            const std::int64_t place = p.packed_vector(kh, kw, v, m, padded_n);
            if (place < 0) continue;
            for (int k = 0; k < p.vector; ++k) {
              const int channel = v * p.vector + k;
              const std::int64_t at = group * group_elements + place * p.vector + k;
              ASSERT_LT(place * p.vector + k, group_elements);
              packed[static_cast<std::size_t>(at)] =
                  channel < p.from_channels
                      ? w[static_cast<std::size_t>(p.weight_index(group, channel, m, kh, kw))]
                      : 0;
            }
          }

  Values to_there(expected.size(), -1e9);
  std::vector<int> written(expected.size(), 0);
  for (int group = 0; group < p.groups; ++group)
    for (int i = 0; i < p.h.count; ++i)
      for (int j = 0; j < p.w.count; ++j)
        for (int m = 0; m < (p.rows(i, j) + 63) / 64 * 64; ++m) {
          const Row row = row_of(p, i, j, m);
          if (row.to < 0) {
            for (int at = 0; at < p.phase_chunks(i, j) * kVectors; ++at) {
              ASSERT_LT(source_of(p, i, j, row.h, row.w, at).offset, 0);
            }
            continue;
          }
          for (int n = 0; n < p.to_channels; ++n) {
            double sum = 0;
            for (int at = 0; at < p.phase_chunks(i, j) * kVectors; ++at) {
              const Source s = source_of(p, i, j, row.h, row.w, at);
              if (s.offset < 0) continue;
              const std::int64_t vector =
                  ((static_cast<std::int64_t>(p.chunk_begin[i * p.w.count + j]) + at / kVectors) * padded_n +
                   n) *
                      kVectors +
                  at % kVectors;
              for (int k = 0; k < p.vector && s.channel + k < p.from_channels; ++k) {
                const std::int64_t x = row.from + s.offset +
                                       static_cast<std::int64_t>(group) * p.from_channels * p.from.c +
                                       k * p.from.c;
                sum += from_there[static_cast<std::size_t>(x)] *
                       packed[static_cast<std::size_t>(group * group_elements + vector * p.vector + k)];
              }
            }
            const std::int64_t to = row.to + static_cast<std::int64_t>(group * p.to_channels + n) * p.to.c;
            to_there[static_cast<std::size_t>(to)] = sum;
            ++written[static_cast<std::size_t>(to)];
          }
        }
  for_each_place(c.n, to_c, to_h, to_w, p.to, [&](std::size_t i, std::size_t at) {
    ASSERT_EQ(written[at], 1) << "element " << i;
    ASSERT_EQ(to_there[at], expected[i]) << "element " << i;
  });
}

void sweep(std::uint64_t seed, int cases, std::int64_t size, std::int64_t channels) {
  ConvRandom random(seed);
  for (int i = 0; i < cases; ++i) {
    const ConvCase c = random.conv_case(size, channels);
    for (bool transposed : {true, false}) {
      for (int element_bytes : {2, 4, 8}) {
        SCOPED_TRACE("case " + std::to_string(i) + (transposed ? " transposed" : " plain") + ", " +
                     std::to_string(element_bytes) + " bytes: " + c.text());
        check_map(c, random, transposed, element_bytes);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(ConvGemmPlan, AtTheEdges) {
  sweep(31, 1500, 6, 3);
}
TEST(ConvGemmPlan, WithBlocks) {
  sweep(32, 60, 8, 20);
}

TEST(ConvGemmPlan, DividesExactly) {
  for (std::int64_t d : {1, 2, 3, 5, 7, 9, 48, 49, 784, 1000, 65535, 65536, 65537, 1 << 30, 0x7fffffff}) {
    const Divider divider(d);
    for (std::int64_t q :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, 0x7fffffff / d / 2, 0x7fffffff / d}) {
      for (std::int64_t n : {q * d - 1, q * d, q * d + 1, q * d + d - 1}) {
        if (n < 0 || n > 0x7fffffff) continue;
        EXPECT_EQ(divider.divide(static_cast<int>(n)), n / d) << n << " / " << d;
        EXPECT_EQ(divider.modulo(static_cast<int>(n), static_cast<int>(n / d)), n % d);
      }
    }
  }
}

}  // namespace
}  // namespace tapedeck::test
