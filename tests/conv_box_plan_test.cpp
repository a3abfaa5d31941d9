// Products over boxes without a GPU: what the kernel computes from conv_gemm::BoxPlan, in plain loops,
// against the definition. What is outside of a box, and the rest of shared memory, is NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include <tapedeck/ops/conv/box_runs.h>

#include "conv_geometry.h"
#include "sanitizers.h"

namespace tapedeck::test {
namespace {

using namespace conv_gemm;

/// A box of one channel as the tensor memory accelerator brings it: from pixel (h, w) of a plane on.
Values box_of(const BoxPlan& p, const BoxTile& t, const BoxTaps& of_h, const BoxTaps& of_w, int image, int h,
              int w, const std::function<double(int, int, int)>& pixel) {
  Values box;
  for (int y = h; y < h + t.box_rows; ++y)
    for (int a = image; a < image + t.images; ++a)
      for (int x = w; x < w + t.pitch; ++x) {
        const std::int64_t at_h = std::int64_t{y} * p.h.step + of_h.remainder,
                           at_w = std::int64_t{x} * p.w.step + of_w.remainder;
        const bool inside = a < p.n && y >= 0 && at_h < p.from_h && x >= 0 && at_w < p.from_w;
        box.push_back(inside ? pixel(a, static_cast<int>(at_h), static_cast<int>(at_w)) : 0);
      }
  return box;
}

constexpr int kRunVector = 4;  // elements of a vector of runs

/// Tiles of several images whose halves two warpgroups have.
struct HalvesSeen {
  int odd_rows = 0, even_rows = 0, one_row = 0, one_box = 0, rows_beyond = 0, swapped = 0, runs = 0;
};

/// `halves`: of tiles whose results are written as boxes; 0: by places. `pixels`: as boxes of pixels, row by
/// row. Whether there was a tile.
bool check_map(const ConvCase& c, ConvRandom& random, bool transposed, BoxJoin join, BoxSplit split,
               int element_bytes, int places, int halves = 0, bool pixels = false,
               HalvesSeen* seen = nullptr) {
  const ConvTranspose2dGeometry g = geometry_of(c);
  if (!fits(g)) return ADD_FAILURE(), false;
  const BoxPlan p(g, transposed, element_bytes, join, split);
  const bool all_join = p.h.phases == 2 && p.w.phases == 2 && p.h.to_step == 2 && p.w.to_step == 2;
  EXPECT_EQ(p.joined(), join == BoxJoin::columns && p.w.phases == 2 ? 2
                        : join == BoxJoin::all && all_join          ? 4
                                                                    : 1);
  if (join == BoxJoin::all && !all_join) return false;
  if (p.split != split) return false;
  if (split != BoxSplit::none) {
    EXPECT_EQ((split == BoxSplit::columns ? p.w : p.h).halo(), 0);
  }
  if (p.planes() > kMaxPlanes) return false;
  const bool boxes = halves > 0 && !pixels, runs = boxes && p.joined() == 4;
  if (runs && !ResultRuns::exist(p)) return false;
  const bool swaps = boxes && p.has_twin_columns();  // with the tile of the other phase
  if (boxes && p.joined() == 1 && p.w.to_step != 1 && !swaps) return false;
  const int together = swaps ? 2 : p.joined_w;  // phases of columns in a box of results
  if (pixels && p.joined() > 1) return false;
  const bool even = p.joined() == 1 && p.w.to_step == 1 && p.w.most() % 2 == 0 && random.integers(1)[0] > 0;
  const int unit = pixels ? 1 << random.in(0, 2) : runs ? 2 : 4;
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
    EXPECT_LE(tile.pitch * p.joined_w, kMostOfBox);
    if (tile.pitch * together > kMostOfBox) return false;  // as box_choice() says
    EXPECT_EQ((tile.halves_are_of_rows() ? tile.rows : tile.images) % halves, 0);
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
  if (seen != nullptr && swaps) ++seen->swapped;
  if (seen != nullptr && runs) ++seen->runs;
  if (seen != nullptr && halves == 2 && tile.images > 1) {
    ++(tile.rows == 1 ? seen->one_row : tile.rows % 2 == 1 ? seen->odd_rows : seen->even_rows);
    if (pixels && StoredRows::are_one_box(tile, true, p.h.most())) ++seen->one_box;
    if (tile.rows > p.h.most()) ++seen->rows_beyond;
  }

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
      int most_columns = 0, most_rows = 0;
      for (int joined = 0; joined < p.joined(); ++joined) {
        most_columns = std::max(most_columns, p.w.count[j + BoxPlan::column_of_joined(joined)]);
        most_rows = std::max(most_rows, p.h.count[i + BoxPlan::row_of_joined(joined)]);
      }
      for (int image = 0; image < p.n; image += tile.images)
        for (int row = 0; row < most_rows; row += tile.rows)
          for (int column = 0; column < most_columns; column += tile.columns) {
            // Sums by [joined phase][channel][place].
            std::vector<std::vector<Values>> sums(
                static_cast<std::size_t>(p.joined()),
                std::vector<Values>(static_cast<std::size_t>(p.to_channels),
                                    Values(static_cast<std::size_t>(places), 0.0)));
            const BoxPlace::Dividers dividers(tile);
            int taps = 0;
            BoxPlan::Box next = p.box_of(phase, 0);
            for (int b = 0; b < p.boxes(phase); ++b, p.advance(next)) {
              const BoxPlan::Box at = p.box_of(phase, b);
              EXPECT_EQ(std::tie(at.i, at.j, at.chunk), std::tie(next.i, next.j, next.chunk));
              taps += p.taps_of_box(at);
              for (int k = 0; k < channels && at.chunk * channels + k < p.from_channels; ++k) {
                EXPECT_LE(k, p.steps(at.chunk) * 2 * p.elements - 1);
                const std::int64_t channel = std::int64_t{group} * p.from_channels + at.chunk * channels + k;
                Values box = box_of(p, tile, p.h.of[at.i], p.w.of[at.j], image, row + p.h.of[at.i].origin,
                                    column + p.w.of[at.j].origin, [&](int a, int y, int x) {
                                      return from[static_cast<std::size_t>(
                                          ((a * from_c + channel) * p.from_h + y) * p.from_w + x)];
                                    });
                EXPECT_LE(box.size(), static_cast<std::size_t>(tile.pixels()));
                EXPECT_LE(tile.slices(), kMostSlices);
                box.resize(static_cast<std::size_t>(4 * places + 4096 + tile.pixels()),
                           std::numeric_limits<double>::quiet_NaN());
                for (int joined = 0; joined < p.joined(); ++joined) {
                  const int i_joined = at.i + BoxPlan::row_of_joined(joined),
                            j_joined = at.j + BoxPlan::column_of_joined(joined);
                  const BoxTaps &of_h = p.h.of[i_joined], &of_w = p.w.of[j_joined];
                  for (int y = 0; y < of_h.taps; ++y)
                    for (int x = 0; x < of_w.taps; ++x) {
                      const int shift =
                          (of_h.first + y * of_h.shift) * tile.row_pixels() + of_w.first + x * of_w.shift;
                      const int weight = p.weight_of_taps(i_joined, j_joined, at.chunk) + y * of_w.taps + x;
                      const int kernel_w = static_cast<int>(c.kernel[1]),
                                tap = p.tap_of(i_joined, j_joined, y, x, kernel_w);
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
            for (int half = 0; half < halves && boxes && !runs; ++half) {
              EXPECT_EQ(column, 0);
              if (!swaps) {
                EXPECT_EQ(p.w.to[j], 0);
                EXPECT_EQ(p.w.to[j + p.joined() - 1], p.joined() - 1);
              }
              for (int m = 0; m < p.to_channels; ++m)
                for (int n = 0; n < results.images; ++n)
                  for (int y = 0; y < results.rows; ++y)
                    for (int x = 0; x < tile.pitch * together; ++x) {
                      if (swaps && x % 2 != p.w.to[j]) continue;  // the other tile's
                      const bool of_rows = tile.halves_are_of_rows();
                      const int image_at = image + (of_rows ? 0 : half * results.images) + n,
                                row_at = row + (of_rows ? half * results.rows : 0) + y;
                      if (image_at >= p.n || row_at >= p.h.count[i] || x >= to_w) continue;
                      const int place = (y * results.images + n) * tile.pitch + x / together;
                      EXPECT_LT(place, of_half);
                      write(m, image_at, row_at, x,
                            sums[static_cast<std::size_t>(x % p.joined())][static_cast<std::size_t>(m)]
                                [static_cast<std::size_t>(half * results.places + place)]);
                    }
            }
            // Runs in shared memory, of a warp's channels at a time, and whole vectors of these.
            for (int half = 0; half < halves && runs; ++half) {
              EXPECT_EQ(column, 0);
              const ResultRuns all(p, results, 16 / kRunVector);
              const bool of_rows = tile.halves_are_of_rows();
              const int first_image = image + (of_rows ? 0 : half * results.images),
                        first_row = row + (of_rows ? half * results.rows : 0), count = all.count(first_row);
              for (int first_m = 0; first_m < p.to_channels; first_m += all.channels) {
                Values staged(static_cast<std::size_t>(all.staged()),
                              std::numeric_limits<double>::quiet_NaN());
                const auto run_of = [&](int m, int n) {
                  const std::int64_t channel = std::int64_t{group} * p.to_channels + first_m + m;
                  return (((first_image + n) * to_c + channel) * to_h + 2 * first_row) * to_w;
                };
                for (int m = 0; m < all.channels && first_m + m < p.to_channels; ++m)
                  for (int place = 0; place < results.places; ++place) {
                    const BoxPlace at(dividers, place);
                    for (int joined = 0; joined < 4; ++joined) {
                      const int x = BoxPlan::column_of_joined(joined);
                      if (2 * at.column + x >= all.width) continue;
                      const std::int64_t in_run = run_of(m, at.image) % kRunVector +
                                                  all.result(at.row, at.column) +
                                                  BoxPlan::row_of_joined(joined) * all.width + x;
                      EXPECT_LT(in_run, all.pitch);
                      staged[static_cast<std::size_t>((m * all.images + at.image) * all.pitch + in_run)] =
                          sums[static_cast<std::size_t>(joined)][static_cast<std::size_t>(first_m + m)]
                              [static_cast<std::size_t>(half * results.places + place)];
                    }
                  }
                for (int r = 0; r < all.all() && count > 0; ++r) {
                  const int m = all.by_images.divide(r), n = all.by_images.modulo(r, m);
                  if (first_image + n >= p.n || first_m + m >= p.to_channels) continue;
                  const std::int64_t run = run_of(m, n);
                  const int at = static_cast<int>(run % kRunVector);
                  const ResultRuns::Whole whole = all.whole(count, at);
                  EXPECT_LE(0, whole.begin);
                  EXPECT_LE(whole.begin, whole.end);
                  EXPECT_LE(whole.end, count);
                  if (whole.end > whole.begin) {
                    EXPECT_EQ((run + whole.begin) % kRunVector, 0);
                    EXPECT_EQ((whole.end - whole.begin) % kRunVector, 0);
                  }
                  EXPECT_LT(whole.begin, kRunVector);
                  EXPECT_LT(count - whole.end, kRunVector);
                  for (int e = 0; e < count; ++e) {
                    const auto result = static_cast<std::size_t>(run + e);
                    to[result] = staged[static_cast<std::size_t>(r * all.pitch + at + e)];
                    ++written[result];
                  }
                }
              }
            }
            // Rows of each half, from its first place on; the map leaves out what is outside.
            for (int half = 0; half < halves && pixels; ++half) {
              const StoredRows rows(tile, halves == 2, half);
              const bool one_box = StoredRows::are_one_box(tile, halves == 2, p.h.most());
              for (int y = 0; y < rows.rows && (one_box || rows.first_row + y < tile.rows); ++y)
                for (int n = 0; n < rows.images && (one_box || rows.first_image + n < tile.images); ++n)
                  for (int x = 0; x < tile.columns; ++x) {
                    const int image_at = image + rows.first_image + n, row_at = row + rows.first_row + y;
                    if (image_at >= p.n || row_at >= p.h.count[i] || column + x >= p.w.count[j]) continue;
                    const int place = one_box ? (y * rows.images + n) * tile.columns + x
                                              : y * tile.row_pixels() + n * tile.pitch + x;
                    EXPECT_LT(place, of_half);
                    for (int m = 0; m < p.to_channels; ++m)
                      write(m, image_at, row_at, p.w.to[j] + (column + x) * p.w.to_step,
                            sums[0][static_cast<std::size_t>(m)]
                                [static_cast<std::size_t>(half * first_half(tile) + place)]);
                  }
            }
            for (int joined = 0; joined < p.joined() && halves == 0; ++joined)
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
  cases /= kFewer;
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
           {std::pair(BoxJoin::none, none), std::pair(BoxJoin::columns, none), std::pair(BoxJoin::all, none),
            std::pair(BoxJoin::none, columns), std::pair(BoxJoin::none, BoxSplit::taps)}) {
        const bool checked =
            join != BoxJoin::all && check_map(c, random, transposed, join, split, element_bytes, places);
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
  if (kSanitized) return;  // too few to be of all kinds
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

// Many small images, whose tiles' halves are of all images' rows, or of one row's images.
TEST(ConvBoxPlan, OfManySmallImages) {
  ConvRandom random(48);
  HalvesSeen pixels, boxes;
  for (int i = 0; i < 400 / kFewer; ++i) {
    ConvCase c;
    c.n = random.in(2, 20);
    c.ci = random.in(1, 3), c.co = random.in(1, 3);
    for (int a = 0; a < 2; ++a) {
      c.in[a] = random.in(1, a == 0 ? 5 : 4), c.kernel[a] = random.in(1, 3), c.stride[a] = random.in(1, 2);
      c.padding[a] = random.in(0, 1);
    }
    if (c.out(0) < 1 || c.out(1) < 1) continue;
    for (bool transposed : {true, false}) {
      SCOPED_TRACE("case " + std::to_string(i) + (transposed ? " transposed: " : " plain: ") + c.text());
      for (const BoxSplit split : {BoxSplit::none, BoxSplit::columns, BoxSplit::taps}) {
        const int places = random.in(0, 1) == 0 ? 64 : 32;
        check_map(c, random, transposed, BoxJoin::none, split, 2, places, 2, true, &pixels);
        check_map(c, random, transposed, BoxJoin::none, split, 2, places, 2, false, &boxes);
        if (split == BoxSplit::none)
          check_map(c, random, transposed, BoxJoin::all, split, 2, places, 2, false, &boxes);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  if (kSanitized) return;  // too few to be of all kinds
  for (const HalvesSeen& seen : {pixels, boxes}) {
    EXPECT_GT(seen.even_rows, 50);
    EXPECT_GT(seen.one_row, 50);
  }
  EXPECT_GT(boxes.swapped, 50);
  EXPECT_GT(boxes.runs, 50);
  EXPECT_GT(pixels.odd_rows, 50);
  EXPECT_GT(pixels.one_box, 50);
  EXPECT_GT(boxes.rows_beyond, 50);
}

TEST(ConvBoxPlan, ChannelsHaveRowsOfTheirOwn) {
  std::vector<int> rows(kBlockChannels, 0);
  for (int m = 0; m < kBlockChannels; ++m) ++rows.at(static_cast<std::size_t>(block_row(m)));
  for (int r : rows) EXPECT_EQ(r, 1);
}

}  // namespace
}  // namespace tapedeck::test
