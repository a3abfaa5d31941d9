// The addresses of the GPU's kernels for strips of rows, without a GPU: what the kernels compute from
// conv_strip::Strip, in plain loops over shared memory that is poisoned, against the definition.
#include <gtest/gtest.h>

#include <tapedeck/ops/conv/strip_ahead_plan.h>
#include <tapedeck/ops/conv/strip_passes.h>
#include <tapedeck/ops/conv/strip_stage.h>

#include <cmath>
#include <limits>

#include "conv_geometry.h"
#include "sanitizers.h"

namespace tapedeck::test {
namespace {

using namespace conv_strip;

ImageStrides strides(std::int64_t channels, std::int64_t h, std::int64_t w) {
  return {channels * h * w, static_cast<int>(h * w), static_cast<int>(w), 1};
}

std::size_t at(const ImageStrides& s, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  return static_cast<std::size_t>(n * s.n + c * s.c + h * s.h + w * s.w);
}

/// A tile of random size, as kernels choose them. Copies that rows of `from` allow.
void set_random_tile(Strip& p, ConvRandom& random, std::int64_t width, int chunk) {
  const int copy = copy_bytes(nullptr, width, p.bytes);
  const bool apart = random.chance(50);
  p.set_tile(1 << random.in(0, 3), 8 << random.in(0, 3), chunk, copy, apart ? 16 : 8, apart ? 8 : 4);
}

/// Channels that are in shared memory at once.
int random_chunk(const Strip& p, ConvRandom& random) {
  return static_cast<int>(random.in(1, p.plan.from_channels / p.pixel)) * p.pixel;
}

/// Shared memory with what a block copies of a tile.
class SharedTile {
 public:
  SharedTile(const Strip& p, const Tile& tile, const Values& from, int first_channel, int channels)
      : values_(static_cast<std::size_t>(p.slots * p.slot_pitch), std::numeric_limits<double>::quiet_NaN()) {
    for (int slot = 0; slot < p.slots; ++slot)
      for (int c = 0; c < p.chunk; ++c)
        for (int i = 0; i < p.copies * p.copy; ++i) {
          const int y = p.row(tile, slot), x = p.first_column(tile) + i, first = x - i % p.copy;
          // A copy is inside as a whole or not at all.
          EXPECT_EQ(first >= 0 && first < p.plan.from_w, x >= 0 && x < p.plan.from_w);
          const bool inside = y >= 0 && y < p.plan.from_h && x >= 0 && x < p.plan.from_w && c < channels;
          EXPECT_LT(i * p.pixel, p.pitch);
          values_[static_cast<std::size_t>(slot * p.slot_pitch + p.channel_offset(c) + i * p.pixel)] =
              inside ? from[at(p.plan.from, tile.image, first_channel + c, y, x)] : 0;
        }
  }
  double operator[](int offset) const {
    EXPECT_GE(offset, 0);
    EXPECT_LT(static_cast<std::size_t>(offset), values_.size());
    return values_.at(static_cast<std::size_t>(offset));
  }

 private:
  Values values_;
};

void check_map(const ConvCase& c, ConvRandom& random, bool transposed, int element_bytes, bool last) {
  const ConvTranspose2dGeometry g = geometry_of(c);
  ASSERT_TRUE(conv_gemm::fits(g));
  Strip p(g, transposed, element_bytes, last);
  const std::int64_t from_c = transposed ? c.ci : c.co, to_c = transposed ? c.co : c.ci;
  p.plan.from = strides(from_c, p.plan.from_h, p.plan.from_w);
  p.plan.to = strides(to_c, p.to_h, p.to_w);
  const int chunk = transposed ? p.plan.from_channels : random_chunk(p, random);
  set_random_tile(p, random, p.plan.from_w, chunk);
  const Values from = random.integers(transposed ? c.x_count() : c.y_count()),
               w = random.integers(c.w_count());
  const Values expected = transposed ? define_y(c, from, w, {}) : define_x(c, from, w);
  Values to(expected.size(), 0.0);
  std::vector<int> written(expected.size(), 0);
  for (int t = 0; t < p.tiles(); ++t)
    for (int group = 0; group < p.plan.groups; ++group)
      for (int chunk_index = 0; chunk_index < p.chunks; ++chunk_index) {
        const Tile tile = p.tile(t);
        const int first = chunk_index * p.chunk;
        const SharedTile shared(p, tile, from, group * p.plan.from_channels + first,
                                std::min(p.chunk, p.plan.from_channels - first));
        for (int i = 0; i < p.plan.h.count; ++i)
          for (int j = 0; j < p.plan.w.count; ++j) {
            const PhaseAxis &h = p.plan.h.phase[i], &v = p.plan.w.phase[j];
            const int phase = i * p.plan.w.count + j, steps = p.step_begin[phase + 1] - p.step_begin[phase];
            ASSERT_GE(steps * kStep, p.count(i, j));
            for (int a = 0; a < p.rows; ++a)
              for (int b = 0; b < p.columns; ++b)
                for (int m = 0; m < p.plan.to_channels; ++m) {
                  double sum = 0;
                  for (int e = 0; e < steps * kStep; ++e) {
                    const int k = p.element_of(e / kStep, e % 4, e / 4 % 2);
                    const double value = shared[p.offset(i, j, k) + p.result_offset(a, b)];
                    ASSERT_FALSE(std::isnan(value));  // also of results that do not exist
                    const std::int64_t weight = p.weight(group, chunk_index, i, j, k, m);
                    if (weight >= 0) sum += value * w.at(static_cast<std::size_t>(weight));
                  }
                  if (tile.a + a >= h.count || tile.b + b >= v.count) continue;
                  const std::size_t place =
                      at(p.plan.to, tile.image, group * p.plan.to_channels + m,
                         h.to + (tile.a + a) * h.to_step, v.to + (tile.b + b) * v.to_step);
                  // Where a tile of `to` is one rectangle.
                  ASSERT_LT(v.to, v.to_step);
                  to.at(place) += sum;
                  written.at(place) += chunk_index == 0 ? 1 : 0;
                }
          }
      }
  for (std::size_t i = 0; i < to.size(); ++i) {
    ASSERT_EQ(written[i], 1) << "element " << i;
    ASSERT_EQ(to[i], expected[i]) << "element " << i;
  }
}

/// Going down rows of y, as strip_plain_kernel does: each is copied once, and met by rows of x above it.
void check_rows(const ConvCase& c, ConvRandom& random, int element_bytes, bool last) {
  const ConvTranspose2dGeometry g = geometry_of(c);
  Strip p(g, false, element_bytes, last);
  p.plan.from = strides(c.co, p.plan.from_h, p.plan.from_w);
  p.plan.to = strides(c.ci, p.to_h, p.to_w);
  const int copy = copy_bytes(nullptr, p.plan.from_w, p.bytes), groups = p.slot_of.groups;
  p.set_tile(1, 8 << random.in(0, 2), random_chunk(p, random), copy, 16, 8, true);
  const Values y = random.integers(c.y_count()), w = random.integers(c.w_count());
  Values x(c.x_count(), 0.0);
  for (int image = 0; image < p.plan.n; ++image)
    for (int b0 = 0; b0 < p.to_w; b0 += p.columns)
      for (int group = 0; group < p.plan.groups; ++group)
        for (int chunk = 0; chunk < p.chunks; ++chunk)
          for (int q = 0; q < p.to_h + groups; ++q)
            for (int kh = 0; kh < p.plan.kernel_h; ++kh) {
              const int slot = p.tap_slot(kh), row = q - slot / p.slot_of.count,
                        in = p.group_row(q, slot % p.slot_of.count);
              ASSERT_LE(slot / p.slot_of.count, groups);
              if (row < 0 || row >= p.to_h) continue;
              ASSERT_EQ(in, g.h.output(row, kh));
              for (int b = 0; b < p.columns && b0 + b < p.to_w; ++b)
                for (int k = 0; k < p.row_steps() * kStep; ++k) {
                  const int offset = p.row_offset(k) + b * p.reach_w.step * p.pixel,
                            channel = offset / p.pitch * p.pixel + offset % p.pixel;
                  const int column = b0 * p.reach_w.step + p.low_w + offset % p.pitch / p.pixel;
                  // Elements 8 channels further have the same shift.
                  const int base = static_cast<int>(random.in(0, 7)), first = b0 * p.reach_w.step + p.low_w;
                  const int shift = p.shift(base, channel, in, first);
                  ASSERT_EQ(shift, p.shift(base, channel % kStep, in, first));
                  const int at_column = offset % p.pitch / p.pixel + shift;
                  ASSERT_LT(channel, p.chunk);
                  ASSERT_LT(at_column, p.copies * p.copy);
                  const int co = chunk * p.chunk + channel;
                  const bool inside = in >= 0 && in < p.plan.from_h && column >= 0 &&
                                      column < p.plan.from_w && co < p.plan.from_channels;
                  for (int m = 0; m < p.plan.to_channels; ++m) {
                    const std::int64_t weight = p.row_weight(group, chunk, kh, k, m);
                    if (weight < 0 || !inside) continue;
                    x.at(at(p.plan.to, image, group * p.plan.to_channels + m, row, b0 + b)) +=
                        w.at(static_cast<std::size_t>(weight)) *
                        y.at(at(p.plan.from, image, group * p.plan.from_channels + co, in, column));
                  }
                }
            }
  const Values expected = define_x(c, y, w);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], expected[i]) << "element " << i;
}

/// That what a pass multiplies are octets of channels, and its sums are where a whole pass's columns are: as
/// strip_transposed_halves_kernel takes for granted.
void check_octets(const Strip& p, const Passes& passes) {
  for (int i = 0; i < p.plan.h.count; ++i)
    for (int q = 0; q < passes.count; ++q) {
      const int steps = passes.steps(p, i, q, 0);
      ASSERT_EQ(steps % 2, 0);
      for (int e = 0; e < steps * kStep; ++e) {
        const auto first = passes.element(p, i, q, e / kStep * kStep), element = passes.element(p, i, q, e);
        const int offset = passes.offset(p, i, first);
        ASSERT_EQ(offset % kStep, 0);
        ASSERT_EQ(element.jh, first.jh);
        if (first.jh >= 0) {
          ASSERT_EQ(passes.offset(p, i, element), offset + e % kStep);
        }
      }
      int found = 0;
      for (int place = 0; place < passes.most; ++place) {
        const int n = passes.phase_at(p, q, place);
        if (n < 0) continue;
        ++found;
        const int column = p.plan.w.phase[passes.order[passes.first[q] + n]].to - p.first_to;
        ASSERT_EQ(passes.whole ? column : n, place);
      }
      ASSERT_EQ(found, passes.phases[q]);
      ASSERT_TRUE(!passes.whole || passes.most == p.plan.w.phase[0].to_step);
    }
}

/// Column phases in passes, as strip_transposed_channels_last_kernel multiplies them; or, with 8 channels of
/// a pixel `turned` together in shared memory, strip_transposed_halves_kernel.
void check_passes(const ConvCase& c, ConvRandom& random, int element_bytes, bool last, bool turned = false) {
  Strip p(geometry_of(c), true, element_bytes, last);
  p.plan.from = strides(c.ci, p.plan.from_h, p.plan.from_w);
  p.plan.to = strides(c.co, p.to_h, p.to_w);
  Passes passes = turned ? choose_whole_passes(p) : choose_passes(p, static_cast<int>(random.in(1, 3)));
  if (passes.count < 0) return;
  if (random.in(0, 1) == 1) choose_rows(p);
  if (turned) {
    set_random_tile(p, random, p.plan.from_w, (p.plan.from_channels + kStep - 1) / kStep * kStep);
    p = p.turned();
  } else {
    set_random_tile(p, random, p.plan.from_w, p.plan.from_channels);
  }
  passes.set_tile(p);
  if (turned) {
    check_octets(p, passes);
    if (::testing::Test::HasFailure()) return;
  }
  const Values x = random.integers(c.x_count()), w = random.integers(c.w_count());
  const Values expected = define_y(c, x, w, {});
  Values y(expected.size(), 0.0);
  std::vector<int> written(expected.size(), 0);
  const int stride = p.plan.w.phase[0].to_step;
  ASSERT_GT(p.first_to, -stride);
  for (int t = 0; t < p.tiles(); ++t)
    for (int group = 0; group < p.plan.groups; ++group) {
      const Tile tile = p.tile(t);
      const SharedTile shared(p, tile, x, group * p.plan.from_channels, p.plan.from_channels);
      for (int i = 0; i < p.plan.h.count; ++i)
        for (int place = 0; place < p.plan.w.count; ++place) {
          const int j = passes.order[place];
          int q = 0;
          while (q + 1 < passes.count && passes.first[q + 1] <= place) ++q;
          const bool live = place < passes.live;
          ASSERT_EQ(p.plan.w.phase[j].taps > 0, live);
          const int n = place - passes.first[q], steps = live ? passes.steps(p, i, q, n) : 0;
          ASSERT_LE(steps, live ? passes.steps(p, i, q, 0) : 0);
          const int column = p.plan.w.phase[j].to - p.first_to;
          ASSERT_GE(column, 0);
          ASSERT_LT(column, stride);
          for (int a = 0; a < p.rows; ++a)
            for (int b = 0; b < p.columns; ++b) {
              const int row = p.plan.h.phase[i].to + (tile.a + a) * p.plan.h.phase[i].to_step,
                        at_column = (tile.b + b) * stride + p.first_to + column;
              const bool exists = row >= 0 && row < p.to_h && at_column >= 0 && at_column < p.to_w;
              for (int m = 0; m < p.plan.to_channels; ++m) {
                double sum = 0;
                for (int e = 0; e < steps * kStep; ++e) {
                  const auto element = passes.element(p, i, q, p.element_of(e / kStep, e % 4, e / 4 % 2));
                  const double value = shared[passes.offset(p, i, element) + p.result_offset(a, b)];
                  ASSERT_FALSE(std::isnan(value));
                  const std::int64_t weight = passes.weight(p, group, i, q, n, element, m);
                  // Only past the last element of a level, or channel, is something multiplied by no weight.
                  ASSERT_EQ(weight < 0, element.jh < 0 || element.channel >= p.plan.from_channels);
                  if (weight >= 0) sum += value * w.at(static_cast<std::size_t>(weight));
                }
                if (!exists) continue;
                const std::size_t to =
                    at(p.plan.to, tile.image, group * p.plan.to_channels + m, row, at_column);
                y.at(to) += sum;
                written.at(to) += 1;
              }
            }
        }
    }
  for (std::size_t i = 0; i < y.size(); ++i) {
    ASSERT_EQ(written[i], 1) << "element " << i;
    ASSERT_EQ(y[i], expected[i]) << "element " << i;
  }
}

/// y as strip_transposed_kernel writes it: rows of a tile to a stage, and its lines to memory. `congruent`:
/// as strip_transposed_halves_kernel does.
void check_stage(const ConvCase& c, ConvRandom& random, int element_bytes, bool congruent) {
  Strip p(geometry_of(c), true, element_bytes);
  p.plan.to = strides(c.co, p.to_h, p.to_w);
  if (choose_passes(p).count < 0) return;
  choose_rows(p);
  set_random_tile(p, random, p.plan.from_w, p.plan.from_channels);
  const int step_h = p.plan.h.phase[0].to_step, block = static_cast<int>(8 * random.in(1, 2));
  const int rows = static_cast<int>(random.in(1, 3));
  const Stage stage = congruent ? Stage::congruent(p, rows, block) : Stage(p, rows, block);
  if (!congruent) {
    EXPECT_EQ(stage.pitch % stage.sector, 0);
    EXPECT_EQ(stage.pitch * element_bytes / 4 % 32, 8);
  }
  EXPECT_EQ(stage.row_pitch % stage.sector, 0);
  const int y_shift = static_cast<int>(random.in(0, stage.sector - 1));
  std::vector<int> y(c.y_count(), -1);  // what an element has: its own number
  for (int t = 0; t < p.tiles(); ++t)
    for (int first = 0; first < c.co; first += block) {
      const Tile tile = p.tile(t);
      const int channels = std::min(block, static_cast<int>(c.co) - first);
      const std::int64_t image = tile.image * p.plan.to.n + first * p.plan.to.c;
      const int base = y_shift + static_cast<int>(image), column = Stage::first_column(p, tile);
      const Stage::Span all = stage.columns(column);
      ASSERT_GE(all.begin, 0);
      ASSERT_LE(all.end, stage.span);
      for (int i = 0; i < p.rows * step_h; ++i) {
        const int row = tile.a * step_h + p.first_row + i;
        if (row < 0 || row >= p.to_h) continue;
        for (int place = 0; place < block; ++place) {
          const int channel = congruent ? place : Stage::channel(place);
          if (!congruent) {
            ASSERT_EQ(Stage::place(channel), place);
          }
          if (channel >= channels) continue;
          const int shift = stage.shift(p, base, congruent ? 0 : channel, row, column),
                    line = i % rows * stage.row_pitch + place * stage.pitch, from = line + shift;
          ASSERT_GE(shift, 0);
          ASSERT_LE(place + 1 == block ? i % rows * stage.row_pitch + stage.row_pitch : line + stage.pitch,
                    stage.size());
          // Up to the next line.
          ASSERT_LE(from + stage.span, place + 1 == block ? (i % rows + 1) * stage.row_pitch
                                                          : line + stage.pitch + (congruent ? shift : 0));
          const std::int64_t to = image + channel * p.plan.to.c + row * p.plan.to.h + column;
          ASSERT_EQ((y_shift + to - from) % stage.sector, 0);
          const Shares shares{random.chance(50), random.chance(50)};
          const unsigned past = static_cast<unsigned>(y_shift + to);
          for (bool live : {false, true}) {
            const Ends ends = element_bytes == 2 ? ends_of<std::uint16_t>(all, past, shares, live)
                                                 : ends_of<float>(all, past, shares, live);
            if (stage.width < 2 * stage.sector) continue;
            // Vectors lie in shared memory as in memory; before and behind them are less than a sector.
            ASSERT_EQ((ends.end - ends.begin) % stage.elements, 0);
            if (ends.end > ends.begin) {
              ASSERT_EQ((from + ends.begin) % stage.elements, 0);
            }
            ASSERT_LE(ends.begin - ends.first, stage.sector);
            ASSERT_LE(ends.last - ends.end, stage.sector);
            // A line without taps leaves what one with taps beside it writes.
            const int begins = static_cast<int>((past + static_cast<unsigned>(all.begin)) %
                                                static_cast<unsigned>(stage.sector)),
                      rest = (stage.sector - begins) % stage.sector;
            if (all.end - all.begin >= 2 * stage.sector) {
              ASSERT_EQ(ends.first, all.begin + (!shares.begin ? 0 : live ? -begins : rest));
            }
            const int behind = static_cast<int>((past + static_cast<unsigned>(all.end)) %
                                                static_cast<unsigned>(stage.sector)),
                      room = (stage.sector - behind) % stage.sector;
            if (all.end - all.begin >= 2 * stage.sector) {
              ASSERT_EQ(ends.last, all.end + (!shares.end ? 0 : live ? room : -behind));
            }
          }
          for (int e = all.begin; e < all.end; ++e) {
            ASSERT_EQ(y.at(static_cast<std::size_t>(to + e)), -1);
            y.at(static_cast<std::size_t>(to + e)) = static_cast<int>(to + e);
          }
        }
      }
    }
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], static_cast<int>(i));
}

/// Rows are (tap, channel of y): what strip_weight_grad_kernel sums.
void check_weight_grad(const ConvCase& c, ConvRandom& random, int element_bytes, bool last) {
  const ConvTranspose2dGeometry g = geometry_of(c);
  Strip p(g, false, element_bytes, last);
  p.plan.from = strides(c.co, p.plan.from_h, p.plan.from_w);
  const ImageStrides of_x = strides(c.ci, p.to_h, p.to_w);
  const int channels = random_chunk(p, random);
  set_random_tile(p, random, p.plan.from_w, channels);
  const Values x = random.integers(c.x_count()), y = random.integers(c.y_count());
  Values sums(c.w_count(), 0.0);
  const int taps = p.plan.taps(0, 0);
  for (int t = 0; t < p.tiles(); ++t)
    for (int group = 0; group < p.plan.groups; ++group)
      for (int first = 0; first < p.plan.from_channels; first += channels) {
        const Tile tile = p.tile(t);
        const SharedTile shared(p, tile, y, group * p.plan.from_channels + first,
                                std::min(channels, p.plan.from_channels - first));
        for (int row = 0; row < channels * taps; ++row) {
          const int tap = p.by_chunk.divide(row), co = first + p.by_chunk.modulo(row, tap);
          for (int a = 0; a < p.rows; ++a)
            for (int b = 0; b < p.columns; ++b)
              for (int ci = 0; ci < p.plan.to_channels; ++ci) {
                const double value = shared[p.offset(0, 0, row) + p.result_offset(a, b)];
                ASSERT_FALSE(std::isnan(value));
                if (tile.a + a >= p.to_h || tile.b + b >= p.to_w || co >= p.plan.from_channels) continue;
                const std::size_t weight = static_cast<std::size_t>(
                    ((group * p.plan.to_channels + ci) * p.plan.from_channels + co) * taps + tap);
                sums.at(weight) +=
                    value * x[at(of_x, tile.image, group * p.plan.to_channels + ci, tile.a + a, tile.b + b)];
              }
        }
      }
  const Values expected = define_w(c, x, y);
  for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(sums[i], expected[i]) << "element " << i;
}

/// A stage as RowCopy::start_row() fills it: row y of `channels`, of which `existing` exist, each as far from
/// a multiple of 16 bytes as it is in memory, where the tensor begins `base` elements past one.
struct FilledStage {
  /// From `first_column` of row y of an image and a first channel on.
  void fill(int image, int first_channel, int y, int first_column, int height, int width) {
    values.assign(static_cast<std::size_t>(channels * pitch), std::numeric_limits<double>::quiet_NaN());
    for (int c = 0; c < channels; ++c) {
      const bool exists = y >= 0 && y < height && c < existing;
      const int shift = (base + static_cast<int>(at(s, image, first_channel + c, 0, 0)) + y * s.h +
                         first_column) &
                        shifts,
                first = first_column - shift;
      const RowEnds ends(first, width, copies, vector);
      std::vector<int> copied(static_cast<std::size_t>(copies), 0);
      for (int i = ends.low; i < ends.high; ++i) {
        ++copied.at(static_cast<std::size_t>(i));
        ASSERT_GE(first + i * vector, 0);
        ASSERT_LE(first + (i + 1) * vector, width);
      }
      for (int end = 0; end < ends.count(); ++end) ++copied.at(static_cast<std::size_t>(ends.at(end)));
      for (int i = 0; i < copies * vector; ++i) {
        ASSERT_EQ(copied.at(static_cast<std::size_t>(i / vector)), 1);
        const int column = first + i;
        const bool inside = exists && column >= 0 && column < width;
        ASSERT_LT(i, pitch);
        values.at(static_cast<std::size_t>(c * pitch + i)) =
            inside ? from.at(at(s, image, first_channel + c, y, column)) : 0;
      }
    }
  }
  double operator[](int offset) const { return values.at(static_cast<std::size_t>(offset)); }

  const Values& from;
  ImageStrides s;
  int base, channels, existing, pitch, copies, shifts, vector;
  Values values;
};

/// What strip_ahead_kernel multiplies; whether it serves.
bool check_ahead(const ConvCase& c, ConvRandom& random, int bytes) {
  const int base = static_cast<int>(random.in(0, 7));
  const auto start = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(base * bytes));
  Ahead ahead(geometry_of(c), bytes, copy_bytes(start, c.out(1), bytes));
  if (!ahead.fits()) return false;
  Strip& p = ahead.strip;
  p.plan.from = strides(c.co, p.plan.from_h, p.plan.from_w);
  p.plan.to = strides(c.ci, p.to_h, p.to_w);
  const Values y = random.integers(c.y_count()), w = random.integers(c.w_count());
  Values x(c.x_count(), 0.0);
  EXPECT_LE(ahead.shared_bytes(), kMostShared);
  EXPECT_EQ(ahead.stage(Ahead::kTeams - 1, ahead.stages - 1) + ahead.stage_bytes, ahead.shared_bytes());
  EXPECT_EQ(p.slot_of.count, p.plan.kernel_h);
  EXPECT_GE(ahead.side * ahead.n * 8, p.plan.to_channels);
  EXPECT_EQ(p.columns * ahead.side, kPixels * kWarps);
  FilledStage stage{y, p.plan.from, base, p.chunk, p.chunk, p.pitch, p.copies, p.shifts, 16 / bytes, {}};
  for (int index = 0; index < ahead.units; ++index)
    for (int group = 0; group < p.plan.groups; ++group)
      for (int chunk = 0; chunk < p.chunks; ++chunk)
        for (int slot = 0; slot < p.slot_of.count; ++slot) {
          const Unit unit(p, index);
          EXPECT_EQ(p.tap_slot(slot), slot);
          const int row = unit.row * p.reach_h.step + p.slot_of.row(slot),
                    column = unit.column * p.reach_w.step + p.low_w;
          stage.fill(unit.image, group * p.plan.from_channels + chunk * p.chunk, row, column, p.plan.from_h,
                     p.plan.from_w);
          const int first =
              base + static_cast<int>(at(p.plan.from, unit.image, group * p.plan.from_channels, 0, 0));
          for (int b = 0; b < p.columns; ++b)
            for (int k = 0; k < ahead.steps * kStep; ++k) {
              const int shift = p.shift(first, k % kStep, row, column);
              const double value = stage[p.row_offset(k) + shift + b * p.reach_w.step];
              EXPECT_FALSE(std::isnan(value));
              for (int m = 0; m < p.plan.to_channels; ++m) {
                const std::int64_t weight = p.row_weight(group, chunk, slot, k, m);
                if (weight < 0 || unit.column + b >= p.to_w) continue;
                x.at(at(p.plan.to, unit.image, group * p.plan.to_channels + m, unit.row, unit.column + b)) +=
                    w.at(static_cast<std::size_t>(weight)) * value;
              }
            }
          if (::testing::Test::HasFailure()) return true;
        }
  EXPECT_EQ(x, define_x(c, y, w));
  return true;
}

/// And strip_ahead_weight_grad_kernel.
bool check_ahead_weight_grad(const ConvCase& c, ConvRandom& random, int bytes) {
  const int y_base = static_cast<int>(random.in(0, 7)), x_base = static_cast<int>(random.in(0, 7));
  const auto copy_of = [&](int base, std::int64_t width) {
    return copy_bytes(reinterpret_cast<const void*>(static_cast<std::uintptr_t>(base * bytes)), width, bytes);
  };
  AheadWeightGrad ahead(geometry_of(c), bytes, copy_of(y_base, c.out(1)), copy_of(x_base, c.in[1]));
  if (!ahead.fits()) return false;
  Strip& p = ahead.strip;
  p.plan.from = strides(c.co, p.plan.from_h, p.plan.from_w);
  const ImageStrides of_x = strides(c.ci, p.to_h, p.to_w);
  const Values x = random.integers(c.x_count()), y = random.integers(c.y_count());
  Values sums(c.w_count(), 0.0);
  const int taps = p.plan.kernel_h, channels = p.plan.to_channels;
  EXPECT_LE(channels, ahead.x_channels);
  constexpr int kChannels = AheadWeightGrad::kChannels;
  FilledStage of_y{y, p.plan.from, y_base, kChannels, kChannels, p.pitch, p.copies, p.shifts, 16 / bytes, {}},
      row_of_x{
          x,          of_x, x_base, ahead.x_channels, channels, ahead.x_pitch, ahead.x_copies, ahead.x_shifts,
          16 / bytes, {}};
  EXPECT_LE(kChannels * p.pitch * bytes, ahead.stage_bytes);
  EXPECT_LE(ahead.copying, ahead.stages);
  EXPECT_LE(ahead.x_channels * ahead.x_pitch * bytes, ahead.stage_bytes);
  EXPECT_EQ(p.plan.from_channels, ahead.y_blocks * kChannels);
  for (int index = 0; index < ahead.units; ++index)
    for (int group = 0; group < p.plan.groups; ++group) {
      const Unit unit(p, index);
      row_of_x.fill(unit.image, group * channels, unit.row, unit.column, p.to_h, p.to_w);
      const int x_first =
          x_base + static_cast<int>(at(of_x, unit.image, group * channels, unit.row, unit.column));
      for (int first = 0; first < p.plan.from_channels; first += kChannels)
        for (int slot = 0; slot < taps; ++slot) {
          const int row = unit.row * p.reach_h.step + p.slot_of.row(slot),
                    column = unit.column * p.reach_w.step + p.low_w;
          const int from = group * p.plan.from_channels + first;
          of_y.fill(unit.image, from, row, column, p.plan.from_h, p.plan.from_w);
          for (int tap = 0; tap < taps; ++tap)
            for (int co = 0; co < kChannels; ++co)
              for (int ci = 0; ci < channels; ++ci)
                for (int b = 0; b < p.columns; ++b) {
                  const int y_shift =
                                p.shift(y_base + static_cast<int>(at(p.plan.from, unit.image, from, 0, 0)),
                                        co % kStep, row, column),
                            x_shift = (x_first + ci % kStep * of_x.c) & ahead.x_shifts;
                  const double product =
                      of_y[co * p.pitch + y_shift + p.row_offset(tap * kChannels) + b * p.reach_w.step] *
                      row_of_x[ci * ahead.x_pitch + x_shift + b];
                  EXPECT_FALSE(std::isnan(product));
                  const int weight =
                      ((group * channels + ci) * p.plan.from_channels + first + co) * taps + slot;
                  sums.at(static_cast<std::size_t>(weight * taps + tap)) += product;
                }
          if (::testing::Test::HasFailure()) return true;
        }
    }
  EXPECT_EQ(sums, define_w(c, x, y));
  return true;
}

TEST(ConvStripPlan, MultipliesWhatTheDefinitionDoes) {
  ConvRandom random(33);
  for (int i = 0; i < 1500 / kFewer; ++i) {
    const ConvCase c = i % 8 == 0 ? random.conv_case(8, 10) : random.conv_case(6, 3);
    if (c.stride[0] > kMaxPhases || c.stride[1] > kMaxPhases) continue;
    for (int element_bytes : {2, 4}) {
      SCOPED_TRACE("case " + std::to_string(i) + ", " + std::to_string(element_bytes) +
                   " bytes: " + c.text());
      check_map(c, random, true, element_bytes, false);
      check_map(c, random, false, element_bytes, false);
      check_passes(c, random, element_bytes, false);
      check_stage(c, random, element_bytes, false);
      if (element_bytes == 2) {
        check_passes(c, random, element_bytes, false, true);
        check_stage(c, random, element_bytes, true);
      }
      check_rows(c, random, element_bytes, false);
      check_weight_grad(c, random, element_bytes, false);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(ConvStripPlan, MultipliesWhatTheDefinitionDoesWithChannelsLast) {
  ConvRandom random(34);
  for (int i = 0; i < 120 / kFewer; ++i) {
    const ConvCase c = random.conv_case(4, 2, kStep);
    for (int element_bytes : {2, 4}) {
      SCOPED_TRACE("case " + std::to_string(i) + ", " + std::to_string(element_bytes) +
                   " bytes: " + c.text());
      check_map(c, random, true, element_bytes, true);
      check_map(c, random, false, element_bytes, true);
      check_passes(c, random, element_bytes, true);
      check_rows(c, random, element_bytes, true);
      check_weight_grad(c, random, element_bytes, true);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Where a row of y meets one row of x, rows of all taps lie where the table for the first one's shift says.
TEST(ConvStripPlan, ShiftsRowsOfTapsAsTheirTableSays) {
  ConvRandom random(35);
  int shifted = 0;
  for (int i = 0; i < 300; ++i) {
    ConvCase c = random.conv_case(6, 3);
    c.co = c.groups * kStep * random.in(1, 2);
    for (int a = 0; a < 2; ++a)
      c.stride[a] = std::min<std::int64_t>((c.kernel[a] - 1) * c.dilation[a] + 1, kMaxPhases);
    for (int element_bytes : {2, 4}) {
      SCOPED_TRACE("case " + std::to_string(i) + ", " + std::to_string(element_bytes) +
                   " bytes: " + c.text());
      Strip p(geometry_of(c), false, element_bytes);
      if (p.slot_of.groups > 0 || c.out(0) < 1 || c.out(1) < 1) continue;
      p.plan.from = strides(c.co, p.plan.from_h, p.plan.from_w);
      p.set_tile(1, 8, kStep, copy_bytes(nullptr, p.plan.from_w, p.bytes), 16, 8, true);
      if (p.shifts == 0) continue;
      ++shifted;
      const int base = static_cast<int>(random.in(0, 7)), column = static_cast<int>(random.in(0, 50)),
                row = static_cast<int>(random.in(0, 2)) * p.reach_h.step;
      // Each row as far from a multiple of 16 bytes as in memory: what an element finds is its address there.
      std::vector<int> memory(static_cast<std::size_t>(p.slot_of.count * p.slot_pitch), -1);
      const auto address = [&](int channel, int y, int x) {
        return base + channel * p.plan.from.c + y * p.plan.from.h + x;
      };
      for (int slot = 0; slot < p.slot_of.count; ++slot)
        for (int channel = 0; channel < p.chunk; ++channel) {
          const int first = address(channel, row + p.slot_of.row(slot), column);
          for (int x = 0; x < p.copies * p.copy; ++x)
            memory.at(static_cast<std::size_t>(slot * p.slot_pitch + channel * p.pitch + x)) =
                first - (first & p.shifts) + x;
        }
      const int shift = p.shift(base, 0, row + p.slot_of.row(0), column);
      for (int k = 0; k < p.count(0, 0); ++k) {
        const Strip::Element e = p.element(0, k);
        const PhaseAxis &h = p.plan.h.phase[0], &w = p.plan.w.phase[0];
        ASSERT_EQ(memory.at(static_cast<std::size_t>(p.offset(0, 0, k) + p.shift_of_element(k, shift))),
                  address(e.channel, row + h.from + e.jh * h.tap_from_step,
                          column + w.from + e.jw * w.tap_from_step - p.low_w));
      }
    }
  }
  EXPECT_GT(shifted, 100);
}

TEST(ConvStripPlan, RunsAheadOverWhatTheDefinitionMultiplies) {
  ConvRandom random(36);
  int served = 0, weight_grads = 0;
  for (int i = 0; i < 60; ++i) {
    ConvCase c;
    c.n = random.in(1, 2);
    c.groups = random.in(1, 2);
    c.ci = c.groups * random.in(1, 20);
    c.co = c.groups * kStep * random.in(1, 2);
    c.in[0] = random.in(1, 2), c.in[1] = random.in(30, 200);
    const bool square = random.chance(60);
    for (int a = 0; a < 2; ++a) {
      c.kernel[a] = a == 1 && square ? c.kernel[0] : random.in(1, 3);
      c.dilation[a] = random.in(1, 2), c.padding[a] = random.in(0, 2);
    }
    c.stride[0] = (c.kernel[0] - 1) * c.dilation[0] + random.in(1, 2), c.stride[1] = random.in(2, kMaxPhases);
    c.output_padding[1] = random.in(0, c.stride[1] - 1);
    if (c.out(0) < 1 || c.out(1) < 1) continue;
    for (int element_bytes : {2, 4}) {
      SCOPED_TRACE("case " + std::to_string(i) + ", " + std::to_string(element_bytes) +
                   " bytes: " + c.text());
      served += check_ahead(c, random, element_bytes);
      weight_grads += check_ahead_weight_grad(c, random, element_bytes);
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(served, 40);
  EXPECT_GT(weight_grads, 10);
}

TEST(ConvStripPlan, BeginsWhereResultsOfAStepSeeTheFewestRows) {
  // Taps of row 5i - 1, 5i + 1 and 5i + 3 bring row i.
  ConvTranspose2dGeometry g;
  g.ci = g.co = 8;
  g.h = g.w = {.in = 64, .out = 318, .kernel = 3, .stride = 5, .padding = 1, .dilation = 2};
  Strip p(g, true, 4);
  choose_rows(p);
  p.set_tile(1, 32, 8, 16, 16, 8);
  EXPECT_EQ(p.first_row, -1);
  EXPECT_EQ(p.slots, 1);
  EXPECT_EQ(p.tiles_h, 64);
}

TEST(ConvStripPlan, ReadsOnlyRowsThatTapsReach) {
  // Stride 5 and dilation 2: taps reach 3 of 5 rows. Stride 2 and dilation 2: every other row.
  ConvTranspose2dGeometry g;
  g.ci = g.co = 8;
  g.h = g.w = {.in = 64, .out = 318, .kernel = 3, .stride = 5, .padding = 1, .dilation = 2};
  Strip p(g, false, 4);
  p.set_tile(4, 32, 8, 8, 16, 8);
  EXPECT_EQ(p.slots, 12);
  g.h = {.in = 64, .out = 129, .kernel = 3, .stride = 2, .padding = 1, .dilation = 2};
  p = Strip(g, false, 4);
  p.set_tile(4, 32, 8, 8, 16, 8);
  EXPECT_EQ(p.slots, 6);
}

}  // namespace
}  // namespace tapedeck::test
