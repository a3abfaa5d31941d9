// Products over boxes without a GPU: what the kernel computes from conv_gemm::BoxPlan, in plain loops,
// against the definition. What is outside of a box, and the rest of shared memory, is NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include <tapedeck/core/error.h>
#include <tapedeck/ops/conv/box_choice.h>
#include <tapedeck/ops/conv/box_grad_plan.h>
#include <tapedeck/ops/conv/box_plan.h>

#include "conv_geometry.h"

namespace tapedeck::test {
namespace {

using namespace conv_gemm;

/// A box of one channel as the tensor memory accelerator brings it: from pixel (h, w) of a plane on.
Values box_of(const BoxPlan& p, const BoxTile& t, const BoxTaps& of_h, const BoxTaps& of_w, int image, int h,
              int w, const std::function<double(int, int, int)>& pixel) {
  Values box;
  for (int a = image; a < image + t.images; ++a)
    for (int y = h; y < h + t.box_rows; ++y)
      for (int x = w; x < w + t.pitch; ++x) {
        const std::int64_t at_h = std::int64_t{y} * p.h.step + of_h.remainder,
                           at_w = std::int64_t{x} * p.w.step + of_w.remainder;
        const bool inside = a < p.n && y >= 0 && at_h < p.from_h && x >= 0 && at_w < p.from_w;
        box.push_back(inside ? pixel(a, static_cast<int>(at_h), static_cast<int>(at_w)) : 0);
      }
  return box;
}

/// `halves`: of tiles whose results are written as boxes; 0: by places. `pixels`: as boxes of pixels, row by
/// row. Whether there was a tile.
bool check_map(const ConvCase& c, ConvRandom& random, bool transposed, bool join, BoxSplit split,
               int element_bytes, int places, int halves = 0, bool pixels = false) {
  const ConvTranspose2dGeometry g = geometry_of(c);
  if (!fits(g)) return ADD_FAILURE(), false;
  const BoxPlan p(g, transposed, element_bytes, join, split);
  EXPECT_EQ(p.joined, join && p.w.phases == 2 ? 2 : 1);
  if (p.split != split) return false;
  if (split != BoxSplit::none) {
    EXPECT_EQ((split == BoxSplit::columns ? p.w : p.h).halo(), 0);
  }
  if (p.planes() > kMaxPlanes) return false;
  const bool boxes = halves > 0 && !pixels;
  if (boxes && p.joined == 1 && p.w.to_step != 1) return false;
  if (pixels && p.joined == 2) return false;
  const bool even = p.joined == 1 && p.w.to_step == 1 && p.w.most() % 2 == 0 && random.integers(1)[0] > 0;
  const int unit = pixels ? 2 : 4;
  int of_half = 0;
  const BoxTile tile = pixels  ? box_tile(p, places, 2048, false, halves, unit)
                       : boxes ? box_tile_of_halves(p, places, halves, 2048, unit)
                               : box_tile(p, places, 2048, even);
  const ResultBox results = tile.rows > 0 ? ResultBox(tile, std::max(1, halves)) : ResultBox();
  if (pixels && tile.rows > 0) {
    EXPECT_EQ(tile.pitch % unit, 0);
    of_half = places;
    places = (halves - 1) * first_half(tile) + places;
  }
  if (boxes && tile.rows > 0) {
    EXPECT_EQ(tile.pitch % unit, 0);
    EXPECT_LE(tile.pitch * p.joined, kMostOfBox);
    EXPECT_EQ(tile.images > 1 ? tile.images % halves : tile.rows % halves, 0);
    of_half = places;
    places = (halves - 1) * results.places + places;  // in a tile
  }
  if (halves == 0 && even && tile.rows > 0) {
    EXPECT_EQ(tile.columns % 2, 0);
    EXPECT_EQ(tile.pitch % 2, 0);
  }
  if (tile.rows == 0) {
    EXPECT_TRUE(boxes || p.n == 0 || g.x_shape().count() == 0 || g.y_shape().count() == 0 ||
                p.w.halo() >= places);
    return false;
  }
  EXPECT_LE(tile.places(), places);
  EXPECT_LE(tile.pixels(), 2048);

  const std::int64_t from_c = transposed ? c.ci : c.co, to_c = transposed ? c.co : c.ci;
  const std::int64_t to_h = transposed ? c.out(0) : c.in[0], to_w = transposed ? c.out(1) : c.in[1];
  const Values from = random.integers(transposed ? c.x_count() : c.y_count()),
               w = random.integers(c.w_count());
  const Values expected = transposed ? define_y(c, from, w, {}) : define_x(c, from, w);
  const std::int64_t kernel = c.kernel[0] * c.kernel[1];

  // Weights by [group][weight][channel of to][channel of a chunk].
  const int channels = kVectors * p.elements;
  Values packed(static_cast<std::size_t>(p.groups) * p.weights * p.to_channels * channels, 0.0);
  for (int group = 0; group < p.groups; ++group)
    for (int m = 0; m < p.to_channels; ++m)
      for (int k = 0; k < p.from_channels; ++k)
        for (int kh = 0; kh < c.kernel[0]; ++kh)
          for (int kw = 0; kw < c.kernel[1]; ++kw) {
            const int weight = p.weight_of(kh, kw, k / p.elements);
            if (weight < 0) continue;
            EXPECT_LT(weight, p.weights);
            const std::int64_t a = transposed
                                       ? (std::int64_t{group} * p.from_channels + k) * p.to_channels + m
                                       : (std::int64_t{group} * p.to_channels + m) * p.from_channels + k;
            packed[static_cast<std::size_t>(
                ((std::int64_t{group} * p.weights + weight) * p.to_channels + m) * channels + k % channels)] =
                w[static_cast<std::size_t>(a * kernel + kh * c.kernel[1] + kw)];
          }

  Values to(expected.size(), -1e9);
  std::vector<int> written(expected.size(), 0);
  for (int group = 0; group < p.groups; ++group)
    for (int phase = 0; phase < p.phases(); ++phase) {
      const int i = phase / p.phases_w(), j = phase % p.phases_w();
      int most_columns = 0;
      for (int joined = 0; joined < p.joined; ++joined)
        most_columns = std::max(most_columns, p.w.count[j + joined]);
      for (int image = 0; image < p.n; image += tile.images)
        for (int row = 0; row < p.h.count[i]; row += tile.rows)
          for (int column = 0; column < most_columns; column += tile.columns) {
            // Sums by [joined phase][channel][place].
            std::vector<std::vector<Values>> sums(
                static_cast<std::size_t>(p.joined),
                std::vector<Values>(static_cast<std::size_t>(p.to_channels),
                                    Values(static_cast<std::size_t>(places), 0.0)));
            const BoxPlace::Dividers dividers(tile);
            int taps = 0;
            BoxPlan::Box next = p.box_of(phase, 0);
            for (int b = 0; b < p.boxes(phase); ++b, p.advance(next)) {
              const BoxPlan::Box at = p.box_of(phase, b);
              EXPECT_EQ(std::tie(at.i, at.j, at.chunk), std::tie(next.i, next.j, next.chunk));
              const BoxTaps& of_h = p.h.of[at.i];
              for (int joined = 0; joined < p.joined; ++joined) taps += p.taps(at.i, at.j + joined);
              for (int k = 0; k < channels && at.chunk * channels + k < p.from_channels; ++k) {
                EXPECT_LE(k, p.steps(at.chunk) * 2 * p.elements - 1);
                const std::int64_t channel = std::int64_t{group} * p.from_channels + at.chunk * channels + k;
                Values box = box_of(p, tile, of_h, p.w.of[at.j], image, row + of_h.origin,
                                    column + p.w.of[at.j].origin, [&](int a, int y, int x) {
                                      return from[static_cast<std::size_t>(
                                          ((a * from_c + channel) * p.from_h + y) * p.from_w + x)];
                                    });
                EXPECT_LE(box.size(), static_cast<std::size_t>(tile.pixels()));
                EXPECT_LE(tile.slices(), kMostSlices);
                box.resize(static_cast<std::size_t>(4 * places + 4096 + tile.pixels()),
                           std::numeric_limits<double>::quiet_NaN());
                for (int joined = 0; joined < p.joined; ++joined) {
                  const BoxTaps& of_w = p.w.of[at.j + joined];
                  for (int y = 0; y < of_h.taps; ++y)
                    for (int x = 0; x < of_w.taps; ++x) {
                      const int shift = y * of_h.shift * tile.pitch + of_w.first + x * of_w.shift;
                      const int weight = p.weight_of_taps(at.i, at.j + joined, at.chunk) + y * of_w.taps + x;
                      const int kernel_w = static_cast<int>(c.kernel[1]),
                                tap = p.tap_of(at.i, at.j + joined, y, x, kernel_w);
                      EXPECT_EQ(p.weight_of(tap / kernel_w, tap % kernel_w, at.chunk * kVectors), weight);
                      for (int m = 0; m < p.to_channels; ++m)
                        for (int place = 0; place < places; ++place) {
                          sums[static_cast<std::size_t>(joined)][static_cast<std::size_t>(m)]
                              [static_cast<std::size_t>(place)] +=
                              packed[static_cast<std::size_t>(
                                  ((std::int64_t{group} * p.weights + weight) * p.to_channels + m) *
                                      channels +
                                  k)] *
                              box[static_cast<std::size_t>(place + shift)];
                        }
                    }
                }
              }
            }
            EXPECT_EQ(p.taps_of(phase), taps);
            const auto write = [&](int m, int image_at, int row_at, int x, double value) {
              const std::int64_t y = p.h.to[i] + row_at * p.h.to_step;
              const auto result = static_cast<std::size_t>(
                  ((image_at * to_c + std::int64_t{group} * p.to_channels + m) * to_h + y) * to_w + x);
              to[result] = value;
              ++written[result];
            };
            // A box of results in shared memory, of which the map leaves out what is outside.
            for (int half = 0; half < halves && boxes; ++half) {
              EXPECT_EQ(column, 0);
              EXPECT_EQ(p.w.to[j], 0);
              EXPECT_EQ(p.w.to[j + p.joined - 1], p.joined - 1);
              for (int m = 0; m < p.to_channels; ++m)
                for (int n = 0; n < results.images; ++n)
                  for (int y = 0; y < results.rows; ++y)
                    for (int x = 0; x < tile.pitch * p.joined; ++x) {
                      const int image_at = image + (tile.images > 1 ? half * results.images : 0) + n,
                                row_at = row + (tile.images > 1 ? 0 : half * results.rows) + y;
                      if (image_at >= p.n || row_at >= p.h.count[i] || x >= to_w) continue;
                      const int place = (n * results.rows + y) * tile.pitch + x / p.joined;
                      EXPECT_LT(place, of_half);
                      write(m, image_at, row_at, x,
                            sums[static_cast<std::size_t>(x % p.joined)][static_cast<std::size_t>(m)]
                                [static_cast<std::size_t>(half * results.places + place)]);
                    }
            }
            // Rows of each half, from its first place on; the map leaves out what is outside.
            for (int half = 0; half < halves && pixels; ++half) {
              const StoredRows rows(tile, halves == 2, half);
              const int at_once = StoredRows::at_once(tile, halves == 2);
              for (int n = 0; n < rows.images && rows.first_image + n < tile.images; ++n)
                for (int first = 0; first < rows.rows && rows.first_row + first < tile.rows; first += at_once)
                  for (int y = first; y < first + at_once; ++y)
                    for (int x = 0; x < tile.columns; ++x) {
                      const int image_at = image + rows.first_image + n, row_at = row + rows.first_row + y;
                      if (image_at >= p.n || row_at >= p.h.count[i] || column + x >= p.w.count[j]) continue;
                      const int place =
                          n * tile.image_pixels() + first * tile.pitch + (y - first) * tile.columns + x;
                      EXPECT_LT(place, of_half);
                      EXPECT_LT(rows.first_row + y, tile.rows);
                      for (int m = 0; m < p.to_channels; ++m)
                        write(m, image_at, row_at, p.w.to[j] + (column + x) * p.w.to_step,
                              sums[0][static_cast<std::size_t>(m)]
                                  [static_cast<std::size_t>(half * first_half(tile) + place)]);
                    }
            }
            for (int joined = 0; joined < p.joined && halves == 0; ++joined)
              for (int place = 0; place < places; ++place) {
                const BoxPlace at(dividers, place);
                if (!at.exists(std::min(tile.images, p.n - image), std::min(tile.rows, p.h.count[i] - row),
                               std::min(tile.columns, p.w.count[j + joined] - column)))
                  continue;
                for (int m = 0; m < p.to_channels; ++m) {
                  write(m, image + at.image, row + at.row,
                        p.w.to[j + joined] + (column + at.column) * p.w.to_step,
                        sums[static_cast<std::size_t>(joined)][static_cast<std::size_t>(m)]
                            [static_cast<std::size_t>(place)]);
                }
              }
          }
    }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(written[i], 1) << "element " << i;
    EXPECT_EQ(to[i], expected[i]) << "element " << i;
    if (::testing::Test::HasFailure()) return false;
  }
  return true;
}

void sweep(std::uint64_t seed, int cases, std::int64_t size, std::int64_t channels) {
  ConvRandom random(seed);
  // Cases whose results can be written as boxes, or as boxes of pixels; whose taps have boxes.
  int boxes = 0, pixels = 0, splits = 0;
  for (int i = 0; i < cases; ++i) {
    const ConvCase c = random.conv_case(size, channels);
    for (bool transposed : {true, false}) {
      const int element_bytes = i % 2 == 0 ? 2 : 4, places = i % 3 == 0 ? 128 : 24;
      SCOPED_TRACE("case " + std::to_string(i) + (transposed ? " transposed" : " plain") + ", " +
                   std::to_string(element_bytes) + " bytes: " + c.text());
      using enum BoxSplit;
      for (const auto& [join, split] :
           {std::pair(false, none), {true, none}, {false, columns}, {false, BoxSplit::taps}}) {
        const bool checked = check_map(c, random, transposed, join, split, element_bytes, places);
        splits += split != none && checked ? 1 : 0;
        for (const int halves : {1, 2}) {
          boxes += check_map(c, random, transposed, join, split, element_bytes, places, halves) ? 1 : 0;
          pixels +=
              check_map(c, random, transposed, join, split, element_bytes, places, halves, true) ? 1 : 0;
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_GT(boxes, cases / 2);
  EXPECT_GT(pixels, cases);
  EXPECT_GT(splits, cases);
}

TEST(ConvBoxPlan, AtTheEdges) {
  sweep(41, 1500, 6, 3);
}
TEST(ConvBoxPlan, WithSeveralChunks) {
  sweep(42, 20, 6, 130);
}
TEST(ConvBoxPlan, WithSeveralTiles) {
  sweep(43, 100, 20, 2);
}

/// A box of one channel in shared memory: what comes past its images is zero, or what a slice has too much.
Values grad_box(const BoxTile& t, int bytes, const std::function<double(int, int, int)>& pixel) {
  Values box;
  const int images = t.images > 1 ? t.slices() * t.slice() : 1,
            rows = t.images > 1 ? t.box_rows : t.slices() * t.slice();
  for (int a = 0; a < images; ++a)
    for (int y = 0; y < rows; ++y)
      for (int x = 0; x < t.pitch; ++x) box.push_back(pixel(a, y, x));
  EXPECT_EQ(box.size(), static_cast<std::size_t>(t.pixels()));
  EXPECT_LE(t.pixels() * kPixelBytes, bytes);
  box.resize(static_cast<std::size_t>(bytes / kPixelBytes), 0.0);
  return box;
}

void check_weight_grad(const ConvCase& c, ConvRandom& random, const BoxGradPlan& p) {
  ASSERT_TRUE(fits(geometry_of(c)));
  if (!p.exists()) return;
  const int most_bytes = p.most_bytes, parts = p.parts;
  const BoxPlan& planes = p.planes;
  ASSERT_LE(2 * p.stage_bytes(), most_bytes);
  ASSERT_LE(p.atoms, most_grad_atoms(parts));
  ASSERT_LE(p.units * p.x_blocks, grad_warpgroups(p.atoms, parts));
  const std::int64_t ci = c.ci / c.groups, co = c.co / c.groups;
  const Values x = random.integers(c.x_count()), y = random.integers(c.y_count()),
               expected = define_w(c, x, y);
  Values w(expected.size(), -1e9);
  std::vector<int> written(expected.size(), 0);
  for (int index = 0; index < p.works(); ++index) {
    const BoxGradPlan::Work work = p.work(index);
    const BoxTaps &of_h = planes.h.of[work.i], &of_w = planes.w.of[work.j];
    const auto channels = [&](int block, std::int64_t all) {
      return std::max<std::int64_t>(
          0, std::min<std::int64_t>(kBlockChannels, all - std::int64_t{block} * kBlockChannels));
    };
    for (int x_block = work.x_block; x_block < work.x_block + p.x_blocks; ++x_block)
      for (int u = 0; u < p.units; ++u) {
        const BoxGradPlan::Unit unit = p.unit(work, u);
        for (int a = 0; a < p.atoms; ++a) {
          const BoxGradPlan::Atom atom = p.atom(work, unit, a);
          if (a == p.atoms - 1 && p.is_narrow(unit)) {  // is not multiplied
            ASSERT_FALSE(atom.exists);
            continue;
          }
          // Those that do not exist are multiplied, too.
          const bool in_box = p.atoms_are_taps && !p.tile.of_taps;  // atoms of a row share a box
          const int at_tap = p.place(work, unit) + (in_box ? a * p.atom_step(work) : 0);
          ASSERT_LE((p.tile.y_place(p.tile.steps - 1) + 16 + at_tap) * kPixelBytes, p.tile.y_bytes);
          ASSERT_EQ(p.tile.run % 4, 0);
          if (!atom.exists) continue;
          ASSERT_LT(atom.kh, c.kernel[0]);
          ASSERT_LT(atom.kw, c.kernel[1]);
          for (std::int64_t i = 0; i < channels(x_block, ci); ++i)
            for (std::int64_t o = 0; o < channels(atom.y_block, co); ++o) {
              const std::int64_t in_group = std::int64_t{x_block} * kBlockChannels + i,
                                 of_x = work.group * ci + in_group,
                                 of_y = work.group * co + std::int64_t{atom.y_block} * kBlockChannels + o;
              double sum = 0;
              for (int t = 0; t < p.tiles(); ++t) {
                const BoxGradPlan::Pixels at = p.pixels(t);
                const Values xs = grad_box(p.tile.x, p.tile.x_bytes, [&](int n, int row, int column) {
                  const std::int64_t image = at.image + n, h = at.row + row, v = at.column + column;
                  if (image >= c.n || h >= c.in[0] || v >= c.in[1]) return 0.0;
                  return x[static_cast<std::size_t>(((image * c.ci + of_x) * c.in[0] + h) * c.in[1] + v)];
                });
                const Values ys = grad_box(p.tile.y, p.tile.y_bytes, [&](int n, int row, int column) {
                  const std::int64_t image = at.image + n, q_h = at.row + of_h.origin + row,
                                     q_w = at.column + p.column(work, p.tile.of_taps ? a : 0) + column,
                                     h = q_h * planes.h.step + of_h.remainder,
                                     v = q_w * planes.w.step + of_w.remainder;
                  if (image >= c.n || q_h < 0 || q_w < 0 || h >= c.out(0) || v >= c.out(1)) return 0.0;
                  return y[static_cast<std::size_t>(((image * c.co + of_y) * c.out(0) + h) * c.out(1) + v)];
                });
                int place = at_tap;  // as the kernel has it, which looks for jumps behind four steps
                for (int step = 0; step < p.tile.steps; ++step, place += p.tile.y_step) {
                  if (step % 4 == 0 && p.tile.jumps_behind(step) && step > 0) place += p.tile.jump;
                  ASSERT_EQ(place, p.tile.y_place(step) + at_tap);
                  for (int k = 0; k < 16; ++k) {
                    sum += xs.at(static_cast<std::size_t>(step * 16 + k)) *
                           ys.at(static_cast<std::size_t>(place + k));
                  }
                }
              }
              const auto result = static_cast<std::size_t>(
                  ((of_x * co + std::int64_t{atom.y_block} * kBlockChannels + o) * c.kernel[0] + atom.kh) *
                      c.kernel[1] +
                  atom.kw);
              w[result] = sum;
              ++written[result];
            }
        }
      }
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(written[i], 1) << "element " << i;
    ASSERT_EQ(w[i], expected[i]) << "element " << i;
  }
}

TEST(ConvBoxPlan, WeightGradients) {
  ConvRandom random(44);
  int of_rows = 0;
  for (int i = 0; i < 600; ++i) {
    // Small images, wide ones, and several blocks of channels.
    const ConvCase c = i % 3 == 0   ? random.conv_case(6, 2)
                       : i % 3 == 1 ? random.conv_case(i % 5 == 0 ? 300 : 40, 1)
                                    : random.conv_case(3, 200);
    if (c.x_count() * c.w_count() > 30000000) continue;
    SCOPED_TRACE("case " + std::to_string(i) + ": " + c.text());
    const int bytes = i % 2 == 0 ? 225 * 1024 : 60 * 1024, parts = i % 5 < 2 ? 2 : 1;
    const BoxGradPlan plan(geometry_of(c), bytes, parts);
    check_weight_grad(c, random, plan);
    if (::testing::Test::HasFailure()) return;
    const GradTile& tile = plan.tile;
    if (tile.steps > 1 && tile.y_step > 16) ++of_rows;
  }
  EXPECT_GT(of_rows, 50);
}

// What the autotuner tries, too: fewer atoms, other tiles. Each has a name of its own.
TEST(ConvBoxPlan, WeightGradientsOfOtherTilings) {
  ConvRandom random(47);
  int ways = 0, few_atoms = 0, of_taps = 0;
  for (int i = 0; i < 40; ++i) {
    ConvCase c = random.conv_case(i % 2 == 0 ? 6 : 14, 1);
    c.groups = 1, c.ci = random.in(16, 20), c.co = random.in(16, 20);
    if (i % 4 == 0) c.in[0] = c.in[1] = 4;
    if (c.out(0) < 1 || c.out(1) < 1) continue;
    SCOPED_TRACE("case " + std::to_string(i) + ": " + c.text());
    const int parts = i % 3 == 0 ? 2 : 1;
    int most_atoms = 0;
    for (const BoxGradWay& way : grad_ways(geometry_of(c), parts, kMostGradTiles)) {
      ASSERT_EQ(box_grad_way(geometry_of(c), parts, way.tiling()).tiling(), way.tiling());
      if (way.fold.exists()) continue;
      SCOPED_TRACE(way.tiling().to_string());
      check_weight_grad(c, random, way.plan);
      if (::testing::Test::HasFailure()) return;
      most_atoms = std::max(most_atoms, way.plan.atoms);
      ++ways, few_atoms += way.plan.atoms < most_atoms ? 1 : 0, of_taps += way.plan.tile.of_taps ? 1 : 0;
    }
  }
  EXPECT_GT(ways, 200);
  EXPECT_GT(few_atoms, 50);
  EXPECT_GT(of_taps, 10);
}

// Each way has a name of its own, by which it is found, and the best of all is the one that is chosen.
TEST(ConvBoxPlan, WaysHaveNames) {
  int ways = 0;
  for (const int channels : {8, 32, 64, 144})
    for (const std::int64_t stride : {1, 2})
      for (const bool transposed : {false, true})
        for (const BoxResults results : {BoxResults::pixels, BoxResults::rows, BoxResults::boxes}) {
          const ConvAxis axis{40, 40 * stride, 2 + stride, stride, 1, 1};
          const ConvTranspose2dGeometry g{.n = 32, .ci = channels, .co = 64, .h = axis, .w = axis};
          for (const bool gathers : {false, true}) {
            if (gathers && have_channels_last(results)) continue;
            SCOPED_TRACE(concat(channels, " channels, stride ", stride, ", transposed ", transposed,
                                ", results ", static_cast<int>(results), ", gathers ", gathers));
            std::set<std::string> names;
            double least = 1e30;
            for (const BoxWay& way : box_ways(g, transposed, 2, 1, results, 2, gathers)) {
              ASSERT_TRUE(names.insert(way.tiling().to_string()).second) << way.tiling().to_string();
              const BoxWay known = known_box_way(g, transposed, 2, 1, results, 2, gathers, way.tiling());
              ASSERT_EQ(known.tiling(), way.tiling());
              ASSERT_EQ(known.choice.tile.rows, way.choice.tile.rows);
              ASSERT_EQ(known.choice.shared_bytes, way.choice.shared_bytes);
              least = std::min(least, way.choice.clocks);
              ++ways;
            }
            const BoxWay best = known_box_way(g, transposed, 2, 1, results, 2, gathers);
            ASSERT_EQ(best.choice.places > 0, !names.empty());
            if (best.choice.places == 0) continue;
            EXPECT_EQ(names.count(best.tiling().to_string()), 1u);
            if (results != BoxResults::pixels) {
              EXPECT_EQ(best.choice.clocks, least);
            }
            EXPECT_EQ(known_box_way(g, transposed, 2, 1, results, 2, gathers, {1, 2, 3}).choice.places, 0);
          }
        }
  EXPECT_GT(ways, 2000);
}

// Small images whose pixels are whole steps: taps of a row have boxes of their own.
TEST(ConvBoxPlan, WeightGradientsOfSmallImages) {
  ConvRandom random(46);
  int of_steps = 0, of_runs = 0;
  for (int i = 0; i < 400; ++i) {
    ConvCase c;
    c.n = random.in(1, 9);
    c.ci = random.in(1, 3), c.co = random.in(1, 3);
    c.in[0] = i % 2 == 0 ? 4 : 8, c.in[1] = i % 3 == 0 ? c.in[0] : 32 / c.in[0] * (i % 2 + 1);
    for (int a = 0; a < 2; ++a) {
      c.kernel[a] = random.in(2, 5), c.stride[a] = random.in(1, 3), c.padding[a] = random.in(0, 2);
      c.dilation[a] = random.in(1, 2);
    }
    if (c.out(0) < 1 || c.out(1) < 1) continue;
    SCOPED_TRACE("case " + std::to_string(i) + ": " + c.text());
    const BoxGradPlan plan(geometry_of(c), 225 * 1024, i % 4 / 2 + 1);
    check_weight_grad(c, random, plan);
    if (::testing::Test::HasFailure()) return;
    const GradTile& tile = plan.tile;
    if (tile.of_taps && tile.jump == 0) ++of_steps;
    if (tile.of_taps && tile.jump > 0 && tile.x.images > 1) ++of_runs;
  }
  EXPECT_GT(of_steps, 5);
  EXPECT_GT(of_runs, 3);
}

// What the kernel relies on, for plans of all sizes.
TEST(ConvBoxPlan, ChoicesFitAMultiprocessor) {
  ConvRandom random(45);
  int chosen = 0, turns = 0, splits = 0;
  for (int i = 0; i < 3000; ++i) {
    const ConvCase c = random.conv_case(i % 4 == 0 ? 300 : i % 4 == 1 ? 70 : 12, i % 2 == 0 ? 20 : 300);
    const ConvTranspose2dGeometry g = geometry_of(c);
    if (!fits(g)) continue;
    for (bool transposed : {true, false}) {
      SCOPED_TRACE("case " + std::to_string(i) + (transposed ? " transposed: " : " plain: ") + c.text());
      const auto split = static_cast<BoxSplit>(i % 11 % 3);
      const BoxPlan p(g, transposed, i % 2 == 0 ? 2 : 4, i % 5 < 2 && split == BoxSplit::none, split);
      if (p.planes() > kMaxPlanes) continue;
      for (int places : {64, 80, 96, 112, 128, 144, 160, 192, 208, 224, 240, 256})
        for (const auto& [blocks, in_turns] : {std::pair(1, false), {2, false}, {1, true}}) {
          const int parts = i % 3 == 0 && i % 2 == 0 ? 2 : 1;
          const auto results = static_cast<BoxResults>(i % 7);
          if (are_folds(results) && (p.joined != 1 || p.w.to_step != 1)) continue;
          if (places > most_places(parts, p.joined)) continue;
          if (in_turns && !can_take_turns(p, parts, results)) continue;
          const int slots = i % 2 == 0 && i % 7 > 1 && i % 13 < 6 && can_gather(p, 1, 2) ? kSlots[i % 3] : 0;
          const BoxChoice choice =
              box_choice(p, places, blocks, parts, results, i % 2 == 0 ? 2 : 4, in_turns, slots);
          if (choice.places == 0) continue;
          turns += in_turns ? 1 : 0;
          ++chosen;
          ASSERT_GE(choice.box_stages, 2);
          ASSERT_GE(choice.weight_stages, 2);
          ASSERT_LE(choice.weight_stages, kMostStages);
          const BoxTile& t = choice.tile;
          ASSERT_LE(t.places(), (choice.halves() - 1) * choice.half + places);
          ASSERT_LE(t.pitch, kMostOfBox);
          ASSERT_LE(t.box_rows, kMostOfBox);
          ASSERT_LE(t.images, kMostOfBox);
          ASSERT_GE(choice.box_bytes, t.pixels() * kPixelBytes);
          ASSERT_EQ(choice.box_bytes % 1024, 0);
          ASSERT_LE(choice.shared_bytes, kMostSharedBytes);
          ASSERT_LE(
              parts * (choice.box_stages * choice.box_bytes + choice.weight_stages * blocks * kBlockBytes) +
                  choice.staged_bytes + places_bytes(choice.results, places) + gather_bytes(slots),
              kMostSharedBytes);
          // A warpgroup that leads needs no stage that the other one has to give back. One that has its turn
          // needs none, and does not split sums.
          ASSERT_EQ(choice.lead == 0, in_turns);
          if (in_turns) {
            ASSERT_EQ(choice.splits, 1);
          }
          ASSERT_LE(choice.lead, choice.weight_stages);
          for (int a = 0; a < p.h.phases * p.h.reads; ++a)
            for (int b = 0; b < p.w.phases * p.w.reads; b += p.joined) {
              const int of_box = p.taps(a, b) + (p.joined == 2 ? p.taps(a, b + 1) : 0);
              if (of_box > 0) {
                ASSERT_LE(count(choice.lead, of_box), choice.box_stages);
              }
            }
          ASSERT_GE(choice.splits, 1);
          int most_boxes = 1;
          for (int phase = 0; phase < p.phases(); ++phase) most_boxes = std::max(most_boxes, p.boxes(phase));
          ASSERT_LE(choice.splits, most_boxes);
          ASSERT_GT(choice.tiles, 0);
          ASSERT_TRUE(std::isfinite(choice.clocks));
          if (choice.splits > 1) {
            ++splits;
            ASSERT_LE(choice.tiles * choice.splits, 132);
          }
        }
    }
  }
  EXPECT_GT(chosen, 1000);
  EXPECT_GT(turns, 1000);
  EXPECT_GT(splits, 100);
}

/// A way in numbers: what differs where its plan or its choice does (of tiles in turns, the lead).
std::vector<double> numbers_of(const BoxWay& way) {
  const BoxPlan& p = way.plan;
  const BoxChoice& c = way.choice;
  const BoxTile& t = c.tile;
  std::vector<double> numbers = {c.clocks, static_cast<double>(c.tiles)};
  for (const int n : {c.places,       c.blocks,
                      c.box_stages,   c.weight_stages,
                      c.lead,         c.splits,
                      c.box_bytes,    c.shared_bytes,
                      c.staged_bytes, c.half,
                      t.images,       t.rows,
                      t.columns,      t.pitch,
                      t.box_rows,     p.n,
                      p.groups,       p.from_channels,
                      p.from_h,       p.to_channels,
                      p.from_w,       p.elements,
                      p.vectors,      p.chunks,
                      p.joined,       static_cast<int>(p.split),
                      p.weights,      static_cast<int>(c.results),
                      way.fold.x,     way.fold.y,
                      int{p.folded},  p.is_narrow ? 1 : 0,
                      c.slots})
    numbers.push_back(n);
  for (int i = 0; i < kMaxReads; ++i)
    for (const int n : {int{p.steps_from[i]}, int{p.steps_to[i]}}) numbers.push_back(n);
  for (const BoxAxis* a : {&p.h, &p.w}) {
    for (const int n : {a->phases, a->planes, a->to_step, a->step, a->reads, a->taps}) numbers.push_back(n);
    for (int i = 0; i < kMaxPhases; ++i)
      for (const int n : {a->count[i], a->to[i], int{a->of_phase[i]}, a->taps_of[i]}) numbers.push_back(n);
    for (const BoxTaps& taps : a->of)
      for (const int n : {taps.taps, taps.tap, taps.tap_step, taps.origin, taps.shift, taps.first,
                          int{taps.plane}, int{taps.remainder}, taps.before})
        numbers.push_back(n);
  }
  return numbers;
}

// Questions that differ from one asked before in one number only, more than are remembered.
TEST(ConvBoxPlan, WaysAreRememberedAsTheyWere) {
  struct Question {
    ConvTranspose2dGeometry g;
    bool transposed;
    int bytes, parts;
    BoxResults results;
    int value_bytes;
    bool gathers;
  };
  ConvRandom random(46);
  std::vector<Question> asked;
  int ways = 0;
  for (int i = 0; i < 12000; ++i) {
    Question q{geometry_of(random.conv_case(i % 3 == 0 ? 60 : 12, i % 2 == 0 ? 8 : 200)),
               i % 2 == 0,
               2,
               1,
               static_cast<BoxResults>(i % 4),
               4,
               i % 8 < 4};
    if (i % 4 != 0 && !asked.empty()) q = asked[static_cast<std::size_t>(random.in(0, 80)) % asked.size()];
    std::int64_t* const numbers[] = {&q.g.n,         &q.g.ci,         &q.g.co,        &q.g.groups,
                                     &q.g.h.in,      &q.g.h.out,      &q.g.h.kernel,  &q.g.h.stride,
                                     &q.g.h.padding, &q.g.h.dilation, &q.g.w.in,      &q.g.w.out,
                                     &q.g.w.kernel,  &q.g.w.stride,   &q.g.w.padding, &q.g.w.dilation};
    const int change = i % 4 == 0 ? 0 : static_cast<int>(random.in(0, 23));
    if (change == 1) q.transposed = !q.transposed;
    if (change == 2) q.bytes = 6 - q.bytes;
    if (change == 3) q.parts = 3 - q.parts;
    if (change == 4) q.results = static_cast<BoxResults>((static_cast<int>(q.results) + 1) % 4);
    if (change == 5) q.value_bytes = 6 - q.value_bytes;
    if (change == 6) q.gathers = !q.gathers;
    if (change >= 8) *numbers[change - 8] += change == 11 ? q.g.groups : 1;
    if (q.g.ci % q.g.groups != 0 || q.g.co % q.g.groups != 0 || !fits(q.g)) continue;
    SCOPED_TRACE("question " + std::to_string(i) + ", change " + std::to_string(change));
    for (int again = 0; again < 2; ++again) {
      const BoxWay known = known_box_way(q.g, q.transposed, q.bytes, q.parts, q.results, q.value_bytes,
                                         q.gathers),
                   computed = best_folded_box_way(q.g, q.transposed, q.bytes, q.parts, q.results,
                                                  q.value_bytes, q.gathers);
      ASSERT_EQ(numbers_of(known), numbers_of(computed));
      ways += known.choice.places > 0 ? 1 : 0;
    }
    if (asked.size() < 81) {
      asked.push_back(q);
    } else {
      asked[static_cast<std::size_t>(i) % asked.size()] = q;
    }
  }
  EXPECT_GT(ways, 1000);
}

// Tiles of nchw end where sectors of memory do, if rows begin at some, or are wide; else parts of rows are
// long.
TEST(ConvBoxPlan, CutsRowsAtSectors) {
  int parts_of_rows = 0, cut = 0;
  for (std::int64_t width = 200; width <= 1100; width += 6)
    for (const std::int64_t stride : {1, 2})
      for (const int parts : {1, 2})
        for (const int bytes : {2, 4}) {
          if (parts == 2 && bytes == 2) continue;
          const ConvAxis axis{width / stride, width / stride * stride, 2 + stride, stride, 1, 1};
          const ConvTranspose2dGeometry g{.n = 16, .ci = 64, .co = 64, .h = axis, .w = axis};
          const BoxWay way = best_box_way(g, true, 2, parts, BoxResults::pairs, bytes);
          ASSERT_GT(way.choice.places, 0);
          const BoxPlan& p = way.plan;
          const int of_column = bytes * p.joined, part = way.choice.tile.columns * of_column;
          SCOPED_TRACE(concat(width, " stride ", stride, " parts ", parts, " bytes ", bytes, ": ", part));
          EXPECT_EQ(p.w.to_step, p.joined);
          if (way.choice.tile.columns >= p.w.most()) continue;
          ++parts_of_rows;
          if (g.w.out * bytes % kSectorBytes == 0) {
            EXPECT_TRUE(part % kSectorBytes == 0 || part > 8 * kSectorBytes);
            cut += part % kSectorBytes == 0 ? 0 : 1;
          } else {
            EXPECT_GE(part, 3 * kSectorBytes);
          }
        }
  EXPECT_GT(parts_of_rows, 500);
  EXPECT_LT(cut, 10);
}

// What writes results of folded columns, and what estimates that, goes by the plan's.
TEST(ConvBoxPlan, PlansOfFoldsSayHowManyColumnsAreOne) {
  int folded = 0, unfolded = 0;
  for (const int channels : {8, 16, 32, 64})
    for (const std::int64_t stride : {1, 2})
      for (const bool transposed : {false, true})
        for (const BoxResults results : {BoxResults::channels, BoxResults::pairs, BoxResults::boxes})
          for (const int bytes : {2, 4}) {
            const ConvAxis axis{64, 64 * stride, 2 + stride, stride, 1, 1};
            const ConvTranspose2dGeometry g{.n = 32, .ci = channels, .co = channels, .h = axis, .w = axis};
            const BoxWay way = best_folded_box_way(g, transposed, bytes, 1, results, bytes);
            SCOPED_TRACE(concat(channels, " channels, stride ", stride, ", transposed ", transposed,
                                ", results ", static_cast<int>(results), ", bytes ", bytes));
            ASSERT_GT(way.choice.places, 0);
            const int columns = way.fold.exists() ? (transposed ? way.fold.y : way.fold.x) : 1;
            EXPECT_EQ(int{way.plan.folded}, columns);
            EXPECT_EQ(way.plan.to_channels, channels * columns);
            ++(columns > 1 ? folded : unfolded);
          }
  EXPECT_GT(folded, 10);
  EXPECT_GT(unfolded, 10);
}

TEST(ConvBoxPlan, ChannelsHaveRowsOfTheirOwn) {
  std::vector<int> rows(kBlockChannels, 0);
  for (int m = 0; m < kBlockChannels; ++m) ++rows.at(static_cast<std::size_t>(block_row(m)));
  for (int r : rows) EXPECT_EQ(r, 1);
}

}  // namespace
}  // namespace tapedeck::test
