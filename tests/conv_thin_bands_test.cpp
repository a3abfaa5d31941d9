// Thin layers over bands, without a GPU (ops/conv/thin_bands.h): the kernels' loops over units, bands, rows
// and places, on integers, against the definition.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include <tapedeck/ops/conv/thin_bands.h>

#include "conv_geometry.h"
#include "sanitizers.h"

namespace tapedeck::test {
namespace {

using namespace conv_thin;

constexpr double kNowhere = std::numeric_limits<double>::quiet_NaN();

template <class Taps>
ConvCase random_case(ConvRandom& random) {
  constexpr int K = Taps::kKernel, S = Taps::kStride, P = Taps::kPadding;
  return {.n = random.in(1, 4),
          .ci = 16,
          .co = random.in(1, 4),
          .in = {random.in(1, 40), 8 * random.in(1, 25)},
          .kernel = {K, K},
          .stride = {S, S},
          .padding = {P, P}};
}

/// Plans that were checked; others have no room.
int checked = 0;

/// Calls f with each block's bands, one after another, as kernels go through them.
template <class F>
void for_bands(const BandPlan& p, int halo, int blocks, const F& f) {
  const Divider by_parts(p.parts);
  for (int block = 0; block < blocks; ++block)
    for (BandAt band(p, by_parts, halo, block, blocks); band.unit < p.units; band.next(p, by_parts, halo))
      f(block, band);
}

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// z's ring holds what outputs read, between zeros; each output is written once.
template <class Taps>
void check_map(const ConvCase& c, ConvRandom& random, int pixels, int bytes, int parts_of_operand) {
  constexpr int K = Taps::kKernel, S = Taps::kStride, P = Taps::kPadding;
  const ConvTranspose2dGeometry g = geometry_of(c);
  const BandMapPlan p(g, Taps::kHalo, Taps::kTaps, pixels, bytes, parts_of_operand);
  ASSERT_LE(p.shared_bytes(), kMostSharedBytes);
  if (p.stages == 0) return;
  const Values x = random.integers(c.x_count()), w = random.integers(c.w_count()),
               expected = define_y(c, x, w, {});
  Values y(expected.size(), kNowhere);
  const int pitch = band_pitch(pixels), blocks = static_cast<int>(random.in(1, 9));
  std::vector<Values> z(at(blocks), Values(at(p.products * pitch), kNowhere));
  for (Values& of_block : z)
    for (int i = 0; i < p.products * (p.slots + 1); ++i)
      for (int k = 0; k < kBandBorder; ++k)
        of_block[at(i / (p.slots + 1) * pitch + p.z_at(i % (p.slots + 1), k - kBandBorder))] = 0;
  std::vector<int> known(at(blocks), 0);
  for_bands(p, Taps::kHalo, blocks, [&](int block, const BandAt& band) {
    Values& mine = z[at(block)];
    const int rows = band.rows(p);
    ASSERT_GT(rows, 0);
    ASSERT_LE(rows * p.w, pixels);
    for (int r = 0; r < p.products; ++r)
      for (int row = band.row; row < band.row + rows; ++row)
        for (int column = 0; column < p.w; ++column) {
          double sum = 0;
          for (int k = 0; k < p.ci; ++k)
            sum += w[at(k * p.products + r)] *
                   x[at(((band.image * p.ci + k) * p.h + row) * std::int64_t{p.w} + column)];
          const int place = p.z_at(row % p.slots, column);
          ASSERT_LT(place, pitch - kBandBorder);
          mine[at(r * pitch + place)] = sum;
        }
    if (band.row <= band.first) known[at(block)] = Taps::outputs_before(band.first, p.h);
    const int before = Taps::outputs_before(band.row + rows, p.h);
    for (int o = known[at(block)]; o < before; ++o)
      for (int column = 0; column < p.w; ++column)
        for (int m = 0; m < p.co; ++m)
          for (int e = 0; e < S; ++e) {
            double sum = 0;
            for (int n = 0; n < Taps::kOfPhase; ++n) {
              const int kh = (o + P) % S + S * n, row = (o + P) / S - n;
              if (kh >= K || row < 0 || row >= p.h) continue;
              for (int k = 0; Taps::tap_of(e, k) < K; ++k)
                sum += mine[at((m * Taps::kTaps + kh * K + Taps::tap_of(e, k)) * pitch +
                               p.z_at(row % p.slots, column) + Taps::to_tap(e, k))];
            }
            double& to =
                y[at(((band.image * p.co + m) * (S * p.h) + o) * std::int64_t{S * p.w} + column * S + e)];
            ASSERT_TRUE(std::isnan(to));
            to = sum;
          }
    known[at(block)] = std::max(known[at(block)], before);
  });
  EXPECT_EQ(y, expected);
  ++checked;
}

/// y's rows that a band meets, as kernels bring them: f(channel, row of the region, column, value).
template <class Taps, class F>
void for_region(const BandPlan& p, const BandAt& band, int region_rows, const Values& y, const F& f) {
  constexpr int S = Taps::kStride;
  for (int m = 0; m < p.co; ++m)
    for (int i = 0; i < region_rows; ++i)
      for (int column = 0; column < S * p.w; ++column) {
        const int row = S * band.row - Taps::kPadding + i;
        f(m, i, column,
          row >= 0 && row < S * p.h
              ? y[at(((band.image * p.co + m) * (S * p.h) + row) * std::int64_t{S * p.w} + column)]
              : 0);
      }
}

/// Each pixel and product finds its element of y, in 16 bits with the next pixel's behind it.
template <class Taps>
void check_weight_grad(const ConvCase& c, ConvRandom& random, int pixels, int bytes) {
  const ConvTranspose2dGeometry g = geometry_of(c);
  const BandGradPlan p(g, Taps::kKernel, Taps::kStride, pixels, bytes);
  ASSERT_LE(p.shared_bytes(), kMostSharedBytes);
  if (p.stages == 0) return;
  const Values x = random.integers(c.x_count()), y = random.integers(c.y_count());
  const int products = p.co * Taps::kTaps, vector = 16 / bytes;
  const bool has_copy = bytes == 2;
  Values w(at(c.w_count()), 0.0);
  Values region(at(p.region_bytes / bytes), 0.0);
  for_bands(p, 0, band_blocks(p), [&](int, const BandAt& band) {
    for_region<Taps>(p, band, p.region_rows, y, [&](int m, int row, int column, double value) {
      const int e = column % vector, place = p.template of_y<Taps>(m, row, column - e, e);
      region[at(place)] = value;
      if (has_copy && BandGradPlan::is_in_copy<Taps>(column - e, e)) region[at(place + p.to_copy())] = value;
    });
    for (int pixel = 0; pixel < band.rows(p) * p.w; ++pixel) {
      const int row = pixel / p.w, column = pixel % p.w, first = has_copy ? column / 2 * 2 : column;
      for (int r = 0; r < products; ++r) {
        const int place = row * p.template of_row<Taps>() + first + p.template of_product<Taps>(r, has_copy);
        if (has_copy) {
          ASSERT_EQ(place % 2, 0);
        }
        const double value = region[at(place + column - first)];
        for (int k = 0; k < p.ci; ++k)
          w[at(k * products + r)] +=
              value * x[at(((band.image * p.ci + k) * p.h + band.row + row) * std::int64_t{p.w} + column)];
      }
    }
  });
  EXPECT_EQ(w, define_w(c, x, y));
  ++checked;
}

/// Each pixel's words have its products' elements of y, two of a row of the kernel in 16 bits.
template <class Taps>
void check_plain(const ConvCase& c, ConvRandom& random, int pixels, int bytes) {
  constexpr int K = Taps::kKernel;
  const ConvTranspose2dGeometry g = geometry_of(c);
  const BandPlainPlan p(g, K, Taps::kStride, pixels, bytes, 1);
  if (p.rows == 0) return;
  const Values y = random.integers(c.y_count()), w = random.integers(c.w_count());
  const int word = 4 / bytes, of_row = BandPlainPlan::products_of_row(K, bytes),
            all = BandPlainPlan::steps(p.co, K, bytes) * 8 * word;
  const bool has_copy = p.region_bytes > p.copy_elements * bytes;
  EXPECT_EQ(has_copy, bytes == 2 && Taps::kStride % 2 == 1);
  ASSERT_GE(all, p.co * K * of_row);
  Values x(at(c.x_count()), 0.0), region(at(p.region_bytes / bytes), 0.0);
  std::vector<int> written(x.size(), 0);
  for_bands(p, 0, static_cast<int>(random.in(1, 9)), [&](int, const BandAt& band) {
    for_region<Taps>(p, band, p.region_rows, y, [&](int m, int row, int column, double value) {
      const int place = p.template of_y<Taps>(m, row, column);
      region[at(place)] = value;
      if (has_copy && column + Taps::kPadding > 0) region[at(place + p.to_copy())] = value;
    });
    for (int pixel = 0; pixel < band.rows(p) * p.w; ++pixel)
      for (int k = 0; k < p.ci; ++k) {
        const std::int64_t to = ((band.image * p.ci + k) * p.h + band.row) * std::int64_t{p.w} + pixel;
        ++written[at(to)];
        for (int r = 0; r < p.co * K * of_row; ++r) {
          const int kw = r % of_row, begin = r / word * word;
          if (kw >= K) continue;
          const int place = p.of_word(p.template of_pixel<Taps>(pixel / p.w, pixel % p.w) +
                                          p.template of_product<Taps>(begin, of_row),
                                      has_copy);
          ASSERT_EQ(place % word, 0);
          x[at(to)] += region[at(place + r - begin)] * w[at((k * p.co * K + r / of_row) * K + kw)];
        }
      }
  });
  EXPECT_EQ(x, define_x(c, y, w));
  ++checked;
  for (const int times : written) ASSERT_EQ(times, 1);
}

template <class Taps>
void sweep(std::uint64_t seed) {
  ConvRandom random(seed);
  checked = 0;
  constexpr int kCases = kSanitized ? 6 : 24;
  for (int i = 0; i < kCases; ++i) {
    const ConvCase c = random_case<Taps>(random);
    SCOPED_TRACE(c.text());
    const int pixels = i % 2 == 0 ? 256 : 128;
    for (const int bytes : {2, 4}) {
      check_map<Taps>(c, random, pixels, bytes, 1);
      check_weight_grad<Taps>(c, random, pixels, bytes);
      check_plain<Taps>(c, random, pixels, bytes);
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(checked, 3 * kCases);  // of six times as many: wide rows have no room
}

TEST(ConvThinBands, OfKernel4AtStride2) {
  sweep<BandTaps<4, 2, 1>>(71);
}
TEST(ConvThinBands, OfKernel3) {
  sweep<BandTaps<3, 1, 1>>(72);
}

// What is left to other thin kernels: other kernels and layouts, rows that are no whole vectors, and what
// threads or shared memory have no room for.
TEST(ConvThinBands, TakesOnlyWhatFits) {
  const auto pixels_of = [](ConvCase c, int bytes, ThinPass pass = ThinPass::transposed) {
    return band_pixels(geometry_of(c), pass, c.nhwc ? Layout::nhwc : Layout::nchw, bytes, 1);
  };
  const ConvCase c{
      .n = 128, .ci = 64, .co = 3, .in = {32, 32}, .kernel = {4, 4}, .stride = {2, 2}, .padding = {1, 1}};
  for (const ThinPass pass : {ThinPass::transposed, ThinPass::plain, ThinPass::weight})
    for (const int bytes : {2, 4}) EXPECT_EQ(pixels_of(c, bytes, pass), 256);
  const auto with = [&](const auto& change) {
    ConvCase changed = c;
    change(changed);
    return pixels_of(changed, 2);
  };
  EXPECT_EQ(with([](ConvCase& d) { d.nhwc = true; }), 0);
  EXPECT_EQ(with([](ConvCase& d) { d.padding[1] = 0; }), 0);
  EXPECT_EQ(with([](ConvCase& d) { d.output_padding[0] = 1; }), 0);
  EXPECT_EQ(with([](ConvCase& d) { d.ci = 40; }), 0);
  EXPECT_EQ(with([](ConvCase& d) { d.co = 5; }), 0);
  EXPECT_EQ(with([](ConvCase& d) { d.in[1] = 28; }), 0);
  EXPECT_EQ(with([](ConvCase& d) { d.in[1] = 512; }), 0);
  EXPECT_EQ(with([](ConvCase& d) { d.ci = 160; }), 128);
  EXPECT_EQ(with([](ConvCase& d) { d.kernel[0] = d.kernel[1] = 3, d.stride[0] = d.stride[1] = 1; }), 256);
  EXPECT_EQ(with([](ConvCase& d) { d.ci = 0; }), 0);
  EXPECT_EQ(band_splits(geometry_of(c), Layout::nchw, 2, 1), 128);
  EXPECT_EQ(band_splits(geometry_of(c), Layout::nhwc, 2, 1), 0);
}

}  // namespace
}  // namespace tapedeck::test
