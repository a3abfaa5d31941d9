// How weight_grad.cpp splits pixels into parts that have sums of their own, and goes over groups.
#pragma once

#include <algorithm>

#include <tapedeck/ops/conv/pixels.h>

namespace tapedeck::cpu {

struct SumParts {
  /// For so many sums of elements of `size` bytes, as sums_of() says.
  SumParts(const ConvTranspose2dGeometry& geometry, std::int64_t sums, std::int64_t size)
      : g(geometry),
        passes(groups_apart(g.groups, g.ci) == g.groups && groups_apart(g.groups, g.co) == g.groups
                   ? std::max<std::int64_t>(1, g.groups)
                   : 1) {
    sums = std::max<std::int64_t>(1, sums);
    const auto bytes = [&](std::int64_t rows) {
      return std::max<std::int64_t>(
          1, size * (g.ci * rows * g.w.in + g.co * rows_of_y(rows) * g.w.out) / passes);
    };
    // Where the sums of a group stay in the cache of a core, its pixels leave them their place, but not by
    // bands that copy the same rows of y.
    const std::int64_t of_group = sums * size / passes;
    const std::int64_t copied =
        of_group > kPartBytes ? kPartBytes : std::clamp(kNearBytes - of_group, kLeastCopied, kPartBytes);
    band = band_of(g.h.in, 1, (g.h.kernel - 1) * g.h.dilation < g.h.stride ? copied : kPartBytes, bytes);
    // Parts that make kParts items: of eight groups and more, one is enough.
    const std::int64_t least = (kParts + passes - 1) / passes;
    const auto bands_of_all = [&] { return g.n * ((g.h.in + band - 1) / band); };
    while (passes > 1 && least > 1 && band > 1 && bands_of_all() < kParts / 2) band = (band + 1) / 2;
    bands = band == 0 ? 0 : (g.h.in + band - 1) / band;
    together =
        bands > 1 ? 1 : std::clamp<std::int64_t>(copied / bytes(band), 1, std::max<std::int64_t>(1, g.n));
    const std::int64_t most = std::min({kParts, kSumBytes / (sums * size), g.n * bands});
    const double flops = g.flops() / static_cast<double>(sums);
    // Either the sums of a group stay in the cache of a core, or are gone over once; or parts are worth
    // adding.
    const bool one_is_enough = least == 1 && (sums * size <= passes * kPartBytes || g.n * bands <= together);
    const bool are_worth_it = most >= kParts / 2 && flops >= kLeastFlopsOfSum * kParts / 2;
    if (bytes(band) <= 2 * kPartBytes && g.n * bands > 0 && (one_is_enough || are_worth_it)) {
      const std::int64_t fewest = std::min(least, kParts / 2);
      count = std::clamp(static_cast<std::int64_t>(flops / kFlopsOfSum), fewest, std::max(fewest, most));
    } else {
      count = passes = 1;
    }
  }
  /// Items of work; one if the sums are split instead.
  std::int64_t items() const { return count * passes; }
  /// Rows of y that so many rows of x meet.
  std::int64_t rows_of_y(std::int64_t rows) const {
    return std::min(g.h.out, (rows - 1) * g.h.stride + (g.h.kernel - 1) * g.h.dilation + 1);
  }

  ConvTranspose2dGeometry g;
  std::int64_t passes;       // over the pixels: of one group each, whose sums are near; or one of all
  std::int64_t count;        // of parts
  std::int64_t band, bands;  // rows of x that a part copies at a time, and bands of an image
  std::int64_t together;     // or images

  static constexpr std::int64_t kPartBytes = 384 << 10;  // of copied rows of a part; of a group's sums
  static constexpr std::int64_t kNearBytes = 448 << 10;  // of both, in the smallest second cache
  static constexpr std::int64_t kLeastCopied = 160 << 10;
  static constexpr std::int64_t kSumBytes = 8 << 20;  // of the sums of all parts
  static constexpr std::int64_t kParts = 8;
  static constexpr double kFlopsOfSum = 1280;      // of each sum of a part: they pay for its way
  static constexpr double kLeastFlopsOfSum = 256;  // or there are no parts
};

/// So many channels in whole vectors.
inline std::int64_t in_lanes(std::int64_t channels, std::int64_t lanes) {
  return (channels + lanes - 1) / lanes * lanes;
}
/// Whether the lanes of vectors are channels of x: that wastes fewer; if equal, y's taps may be joined.
inline bool lanes_are_of_x(std::int64_t cx, std::int64_t cy, std::int64_t lanes) {
  return in_lanes(cx, lanes) * cy <= in_lanes(cy, lanes) * cx;
}
/// How many sums there are, whose lanes are whole vectors.
inline std::int64_t sums_of(const ConvTranspose2dGeometry& g, std::int64_t lanes) {
  const bool x = lanes_are_of_x(g.group_ci(), g.group_co(), lanes);
  const std::int64_t rows = x ? g.group_co() : g.group_ci(), columns = x ? g.group_ci() : g.group_co();
  return g.groups * g.h.kernel * g.w.kernel * rows * in_lanes(columns, lanes);
}

}  // namespace tapedeck::cpu
