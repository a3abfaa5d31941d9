// What a path costs, to choose by: cycles of one core, roughly.
//
// The rates are fitted to times on AMD Zen 4, Zen 5 and an Ice Lake Xeon, kSplitPlanes to a Zen 3's
// (bench/compare_cpu.py, with its cases and random ones, under each value of TAPEDECK_CONV_ALGORITHM). On Zen
// 5 what is taken took 2, 5 and 4% longer than the fastest path (forward, input and weight gradient).
// kWeightAgain is from a few layers in groups on a Cascade Lake (of --random: 38, 44, 168, 189).
// Multiplications cost what they take in whole vectors, and what is moved costs by the element: windows.cpp
// and weight_grad.cpp transpose both tensors of an nchw call, planes are copied as they lie.
#pragma once

#include <algorithm>
#include <limits>

#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/in_place.h>
#include <tapedeck/ops/conv/planes.h>
#include <tapedeck/ops/conv/sum_parts.h>
#include <tapedeck/ops/conv/winograd.h>

namespace tapedeck::cpu {

// Cycles of an element.
constexpr double kTransposed = 0.7, kTransposedBack = 1.4, kTransposedLate = 1.2,
                 kSpreadToLanes = 3;                          // of a tensor
constexpr double kRead = 0.74, kWritten = 0.8, kDense = 0.2;  // of planes; in place
constexpr double kRow = 12;                                   // of a row of planes
// Times all of it, where planes are phases and vectors have 32 bytes: without permutations of two registers.
constexpr double kSplitPlanes = 1.15;
constexpr double kFarBytes = 8 << 20;   // of x and y, from which on both are in memory
constexpr double kFarTransposed = 0.6;  // of an element then, beside the transpose
constexpr double kFarPhases = 0.9;      // or of y, where planes or results are phases of it,
constexpr std::int64_t kFarOfRow = 60;  // and of a row of y no more: processors foresee the rest
constexpr double kCopiedAgain = 1.3, kCopiedAgainForSums = 1.8;     // of an element that several bands read
constexpr double kPacked = 1, kPackedForPlanes = 3;                 // of a weight
constexpr double kNearWeights = 768 << 10, kPixelsOfWeights = 256;  // bytes; that go through them at a time
constexpr double kWeightAgain = 0.3;                                // of a weight beside that
constexpr double kMapped = 0.2, kMappedForSums = 0.4;  // of a channel of a point of minimal filtering
constexpr double kTransposedForSums = 2;               // of a tensor, for its sums
constexpr double kSumOfLanes = 10, kThinResult = 13.5;
constexpr double kRun = 2;                // of a tap of a pixel, for each panel
constexpr double kTapOfPairs = 1.5;       // of a tap of a vector, for each row of y
constexpr double kCalled = 10;            // of a row of results whose windows are alike
constexpr double kLoadedProducts = 2.5;   // of vectors both of whose factors are loaded, to those of tiles
constexpr double kLargestBand = 2 << 20;  // bytes; larger ones fit no cache
constexpr double kPixelsOfSum = 1024;     // that are summed before lanes are
constexpr double kInGroups = 2.5;         // of minimal filtering: many small products, each with an end
constexpr double kForced = 1e300;         // only if it is forced
constexpr double kNever = std::numeric_limits<double>::infinity();

inline double vectors_of(std::int64_t count, std::int64_t lanes) {
  return static_cast<double>((count + lanes - 1) / lanes);
}

/// Of the ways to compute a call. Planes are only for nchw tensors.
struct Costs {
  double planes, depthwise, winograd, wide, thin, channelwise, in_place;
};

/// Minimal filtering: the products, and the maps of pixels and of weights.
template <class T>
double winograd_cost(const ConvTranspose2dGeometry& g, Direction direction, std::int64_t from,
                     std::int64_t to, double of_map) {
  if (!is_winograd(g.h) || !is_winograd(g.w)) return kNever;
  if (g.h.kernel <= g.h.stride && g.w.kernel <= g.w.stride)
    return kNever;  // one tap a phase: nothing to save
  const auto points = static_cast<double>(g.n * winograd_products(g.h, direction)) *
                      static_cast<double>(winograd_products(g.w, direction)) *
                      static_cast<double>(g.groups);  // of tiles
  const std::int64_t lanes = micro::kernels<T>().lanes;
  const double products = points * static_cast<double>(from) * vectors_of(to, lanes);
  const double mapped = (vectors_of(from, lanes) + vectors_of(to, lanes)) * static_cast<double>(lanes);
  const double all = 1.25 * products + of_map * points * mapped +
                     3 * kPacked * static_cast<double>(g.weight_shape().count());
  return all * (g.groups > 1 ? kInGroups : 1);
}

/// Rows of single channels at stride 2; `start` is what a channel of an image costs before its rows.
template <class T>
double depthwise_cost(const ConvTranspose2dGeometry& g, double start) {
  if (sizeof(T) != sizeof(float) || !is_depthwise(g)) return kNever;
  const auto taps = static_cast<double>(g.h.kernel * g.w.kernel), rows = static_cast<double>(g.h.out);
  return static_cast<double>(g.n * g.ci) *
         (start + kTapOfPairs * taps * rows * vectors_of(g.w.in, micro::kernels<T>().lanes));
}

/// With y read where it lies (in_place.h). Fitted on Zen 5, by other people's estimates, of which these are
/// wary.
template <class T>
struct InPlaceCost {
  explicit InPlaceCost(const ConvTranspose2dGeometry& geometry)
      : g(geometry), fold(g.w, g.group_ci(), micro::kernels<T>().lanes) {
    const auto& kernels = micro::kernels<T>();
    slots = ConvAxis::ceil_div(g.h.kernel, g.h.tap_step());
    lanes = fold.width / kernels.lanes;
    panels = ConvAxis::ceil_div(slots * lanes, kernels.max_vectors);
    vectors = ConvAxis::ceil_div(slots * lanes, panels);
    products = images() * static_cast<double>(g.group_co() * lanes) * static_cast<double>(g.h.pairs()) *
               static_cast<double>(fold.axis.pairs());
  }
  double plain() const {
    if (!is_worth_it(g.group_ci() >= 4 ? 4 : kMostLanes)) return kHasInPlace ? kForced : kNever;
    constexpr double kProducts[] = {0, 1.41, 1.25, 1.09, 1.09};  // of so many vectors
    const double blocks = vectors_of(g.group_co(), in_place_channels<T>(g)),
                 places = static_cast<double>(fold.axis.in * lanes), pairs = static_cast<double>(g.h.pairs()),
                 segments = static_cast<double>(plain_plan(fold.axis).segments.size());
    const double sums = images() * pairs * blocks * places, calls = images() * pairs /
                                                                    static_cast<double>(slots) * blocks *
                                                                    segments * static_cast<double>(panels);
    return kWary * (kProducts[vectors] * products + 5.7 * sums + 320 * calls + 0.22 * elements(g.x_shape()) +
                    0.73 * images() * static_cast<double>(g.h.in * fold.axis.in * fold.width) +
                    0.3 * elements(g.y_shape()) + 4.8 * weights());
  }
  double weight_grad() const {
    if (!is_worth_it(kMostLanes)) return kHasInPlace ? kForced : kNever;
    constexpr double kProducts[] = {0, 1.1, 1.09, 1.01, 1.01};
    const std::int64_t tile = micro::kernels<T>().apart_rows[vectors];
    const double waits = std::max(1.0, 10.0 / static_cast<double>(std::min(g.group_co(), tile) * vectors));
    const std::int64_t band = in_place_band<T>(g, tile), bands = ConvAxis::ceil_div(g.h.in, band);
    const auto taps = static_cast<double>(fold.axis.kernel);
    const double sums = images() * static_cast<double>(bands * g.h.kernel * g.group_co() * lanes) * taps;
    const double runs = images() * static_cast<double>(g.h.pairs()) / static_cast<double>(slots) * taps *
                        static_cast<double>(panels) * vectors_of(g.group_co(), tile);
    const double copied = images() * static_cast<double>(bands * (band + (slots - 1) * g.h.input_step()) *
                                                         g.w.in * g.group_ci());
    const std::int64_t parts = in_place_parts<T>(static_cast<std::int64_t>(weights()), g.n * bands);
    if (parts < kLeastParts && g.n * bands >= kLeastParts) return kForced;  // too few for many threads
    if (g.n * g.h.in * g.w.in < kLeastPixels) return kForced;  // sums are loaded and stored for too few
    return kWary * (kProducts[vectors] * waits * products + 16 * sums + 0.8 * copied + 110 * runs +
                    0.36 * elements(g.y_shape()) + 3 * weights() * static_cast<double>(parts));
  }

  const ConvTranspose2dGeometry& g;
  const FoldedAxis fold;
  std::int64_t slots, lanes, panels, vectors;  // of the taps that meet a row of y: vectors of a panel
  double products;

 private:
  static constexpr double kWary = 1.1;
  static constexpr std::int64_t kLeastParts = 8, kLeastPixels = 300;
  static constexpr std::int64_t kLeastWidth = 16, kLeastChannels = 4;  // of x; of y
  static constexpr double kMostLanes = 10.0 / 3;

  /// Whether rows are long enough, and lanes filled well enough, for the estimates to be trusted: at most so
  /// many lanes of taps for one that is used. (4 channels in vectors of 16, on Zen 4: input gradients of 6
  /// random layers took 0.49 to 1.2 of the time, 0.85 in the mean; weight gradients up to 1.6.)
  bool is_worth_it(double most_lanes) const {
    const auto used = static_cast<double>(g.w.kernel * g.group_ci()),
               lanes_of_taps = static_cast<double>(fold.axis.kernel * fold.width);
    return kHasInPlace && g.w.in >= kLeastWidth && g.group_co() >= kLeastChannels &&
           most_lanes * used >= lanes_of_taps;
  }
  static double elements(const Shape& shape) { return static_cast<double>(shape.count()); }
  double images() const { return static_cast<double>(g.n * g.groups); }
  double weights() const {
    return static_cast<double>(g.groups * g.h.kernel * fold.axis.kernel * g.group_co() * fold.width);
  }
};

/// Vectors of products on planes: of taps that reach nothing, too, and of the columns between rows. A load
/// serves the rows of a tile, and where a phase has few taps each load comes from a core's second cache.
template <class T>
double plane_products(const ConvTranspose2dGeometry& g, const PlaneAxis& h, const PlaneAxis& w,
                      bool is_dense) {
  const auto lanes = micro::kernels<T>().lanes;
  const auto pairs = [](const PlaneAxis& axis) {
    std::int64_t all = 0;
    for (const PlanePhase& p : axis.phases) all += axis.count * static_cast<std::int64_t>(p.taps.size());
    return static_cast<double>(all);
  };
  const auto pixels = static_cast<double>(std::max<std::int64_t>(1, h.count * w.count));
  const PlaneBand::Runs runs =
      is_dense ? PlaneBand::Runs{h.count * w.count, 1} : PlaneBand(h, w, 1, lanes).runs(h.count);
  const double vectors = static_cast<double>(runs.runs) * vectors_of(runs.count, lanes);
  return static_cast<double>(g.n * g.ci * g.group_co()) * pairs(h) * pairs(w) * vectors / pixels;
}

/// Whether x and y come from memory.
template <class T>
bool is_far(const ConvTranspose2dGeometry& g) {
  return static_cast<double>((g.x_shape().count() + g.y_shape().count()) * sizeof(T)) > kFarBytes;
}

/// What transposing x and y costs more than in a cache.
template <class T>
double far_elements(const ConvTranspose2dGeometry& g) {
  return is_far<T>(g) ? kFarTransposed * static_cast<double>(g.x_shape().count() + g.y_shape().count()) : 0;
}

/// What elements of y cost more than in a cache where planes or results are phases of it.
template <class T>
double far_phases(const ConvTranspose2dGeometry& g) {
  const bool is_apart = g.h.stride > 1 || g.w.stride > 1;
  return is_far<T>(g) && is_apart
             ? kFarPhases * static_cast<double>(g.n * g.co * g.h.out * std::min(g.w.out, kFarOfRow))
             : 0;
}

/// Of `elements` in `rows` rows, those that are copied a second time or more, where bands of `band` of `all`
/// results read `read` rows each.
inline double copied_again(double elements, std::int64_t rows, std::int64_t all, std::int64_t band,
                           std::int64_t read) {
  const std::int64_t copied = band == 0 ? 0 : (all + band - 1) / band * std::min(read, rows);
  return elements *
         std::max(0.0,
                  static_cast<double>(copied) / static_cast<double>(std::max<std::int64_t>(1, rows)) - 1);
}

/// What windows.cpp does again for each part that it copies: a band of rows of results, and the rows that
/// they read.
template <class T>
struct WindowBands {
  WindowBands(const ConvTranspose2dGeometry& geometry, Direction direction)
      : g(geometry), transposed(direction == Direction::transposed) {
    const std::int64_t reach = (g.h.kernel - 1) * g.h.dilation,
                       row = (transposed ? g.ci * g.w.in : g.co * g.w.out) *
                             static_cast<std::int64_t>(sizeof(T));
    const auto reads = [&](std::int64_t rows) {
      return std::min(in,
                      transposed ? (rows - 1 + reach) / g.h.stride + 1 : (rows - 1) * g.h.stride + reach + 1);
    };
    band = band_of(out, transposed ? g.h.stride : 1, kWindowBytes,
                   [&](std::int64_t rows) { return reads(rows) * row; });
    read = reads(band);
  }
  double elements_again() const {
    const auto all = static_cast<double>(transposed ? g.x_shape().count() : g.y_shape().count());
    return copied_again(all, in, out, band, read);
  }
  /// Weights that come from a far cache, beside those for the usual pixels of an item.
  double weights_again() const {
    const auto weights = static_cast<double>(g.weight_shape().count());
    if (weights * sizeof(T) < kNearWeights || band == out) return 0;
    const auto bands = static_cast<double>(g.n * ((out + band - 1) / band)),
               pixels = static_cast<double>(band * (transposed ? g.w.out : g.w.in));
    return weights * bands * std::max(0.0, 1 - pixels / kPixelsOfWeights);
  }

  const ConvTranspose2dGeometry& g;
  const bool transposed;
  const std::int64_t in = transposed ? g.h.in : g.h.out, out = transposed ? g.h.out : g.h.in;
  std::int64_t band = 0, read = 0;
};

/// The costs of the results of a direction.
template <class T>
Costs costs(const ConvTranspose2dGeometry& g, Direction direction, Layout layout) {
  const PlaneAxis h(g.h, direction), w(g.w, direction);
  const auto lanes = micro::kernels<T>().lanes;
  const std::int64_t from = direction == Direction::transposed ? g.group_ci() : g.group_co();
  const std::int64_t to = direction == Direction::transposed ? g.group_co() : g.group_ci();
  const auto x = static_cast<double>(g.x_shape().count()), y = static_cast<double>(g.y_shape().count());
  const double read = direction == Direction::transposed ? x : y, written = x + y - read;
  const auto weights = static_cast<double>(g.weight_shape().count());

  const bool is_dense = DenseBand::is_worth_it(h, w, from, to);
  const double taps = std::max(
      1.0, static_cast<double>(g.h.kernel * g.w.kernel) / static_cast<double>(h.to_step * w.to_step));
  const bool is_split = h.from_step > 1 || w.from_step > 1;
  const double planes =
      static_cast<double>(from * PlaneBand(h, w, 1, lanes).channel) * sizeof(T) > kLargestBand
          ? kNever
          : (is_split && lanes * sizeof(T) == 32 ? kSplitPlanes : 1) *
                (plane_products<T>(g, h, w, is_dense) * (1.06 + 0.11 / taps) *
                     std::max(1.0, 2.0 / static_cast<double>(to)) +
                 kRead * read + (is_dense ? kDense : kWritten) * written +
                 kRow * (read / static_cast<double>(w.from) +
                         (is_dense ? 0 : written / static_cast<double>(w.to))) +
                 kPackedForPlanes * weights + far_phases<T>(g));

  const double pairs = g.flops() / 2 / static_cast<double>(from * to);  // of pixels and taps, for each group
  const WindowBands<T> bands(g, direction);
  const double moved = kTransposed * read + kTransposedBack * written + far_elements<T>(g),
               late = (kTransposedLate - kTransposed) * read,
               again = layout == Layout::nchw
                           ? kCopiedAgain * bands.elements_again() + kWeightAgain * bands.weights_again()
                           : 0;
  const double called =  // some windows hang over each border
      kCalled *
      static_cast<double>(g.n * g.groups * h.to * (w.to_step + std::min<std::int64_t>(g.w.kernel, 4)));
  const double wide =
      pairs * (1.08 * static_cast<double>(from) * vectors_of(to, lanes) + kRun * vectors_of(to, 4 * lanes)) +
      called * vectors_of(to, 4 * lanes) + moved + again + (g.groups > 1 ? late : 0) + kPacked * weights;
  const double thin = to <= lanes / 3 ? 1.42 * pairs * static_cast<double>(to) * vectors_of(from, lanes) +
                                            kThinResult * written + late + called * vectors_of(to, 4) +
                                            moved + again + kPacked * weights
                                      : kNever;
  const double all = vectors_of(g.groups * to, lanes) / static_cast<double>(g.groups);  // for a group
  const double spread = from * to == 1 ? 0
                                       : kSpreadToLanes * read * all * static_cast<double>(lanes) *
                                             (1 + 5.0 / static_cast<double>(w.from));
  const double channelwise = g.groups == 1 ? kNever
                                           : kLoadedProducts * pairs * static_cast<double>(from) * all +
                                                 spread + moved + kPacked * weights;
  return {planes,
          depthwise_cost<T>(g, 400),
          winograd_cost<T>(g, direction, from, to, kMapped) + moved,
          wide,
          thin,
          channelwise,
          direction == Direction::plain ? InPlaceCost<T>(g).plain() : kNever};
}

/// The costs of the weight gradient.
template <class T>
Costs weight_grad_costs(const ConvTranspose2dGeometry& g, Layout layout) {
  const PlaneAxis h(g.h, Direction::plain), w(g.w, Direction::plain);
  const auto lanes = micro::kernels<T>().lanes;
  const std::int64_t cx = g.group_ci(), cy = g.group_co();
  const auto x = static_cast<double>(g.x_shape().count()), y = static_cast<double>(g.y_shape().count());
  const auto weights = static_cast<double>(g.weight_shape().count());

  const bool is_dense = DenseBand::is_worth_it(h, w, cy, cx);
  const double sums = std::max(1.0, static_cast<double>(g.n * g.h.in * g.w.in) / kPixelsOfSum) * weights;
  const double planes =
      static_cast<double>(PlaneBand(h, w, 1, lanes).channel) * sizeof(T) > kLargestBand
          ? kNever
          : plane_products<T>(g, h, w, is_dense) * 1.2 * (cx == 1 ? 1.5 : 1.0) + kRead * y +
                (is_dense ? kDense : kRead) * x +
                kRow * (y / static_cast<double>(w.from) + (is_dense ? 0 : x / static_cast<double>(w.to))) +
                kSumOfLanes * sums + far_phases<T>(g);

  const double pairs = g.flops() / 2 / static_cast<double>(cx * cy);
  const SumParts parts(ReadRows(g).geometry, sums_of(g, lanes), sizeof(T));
  const std::int64_t y_rows = parts.g.h.out;
  const double again = layout == Layout::nchw && parts.items() > 1
                           ? copied_again(static_cast<double>(g.n * g.co * y_rows * g.w.out), y_rows, g.h.in,
                                          parts.band, parts.rows_of_y(parts.band))
                           : 0;
  const double moved = kTransposedLate * (x + y) + far_elements<T>(g) + kPacked * weights;
  // Few rows of lanes wait for each other's sums, except where y's taps of a row are rows of one tile. Groups
  // cost more; fitted before they were taken one after the other.
  const bool is_joined = g.groups == 1 && g.w.kernel > 1 && g.w.dilation == 1;
  const auto tiles = [&](std::int64_t rows, std::int64_t columns, double least) {
    return std::max(static_cast<double>(rows) * vectors_of(columns, lanes),
                    least * vectors_of(columns, 4 * lanes));
  };
  const double wide =
      (g.groups > 1 ? 1.2 : 1.1) * pairs * std::min(tiles(cx, cy, 5), tiles(cy, cx, is_joined ? 1.5 : 5)) +
      moved + kCopiedAgainForSums * again;
  const double all = vectors_of(g.co, lanes) / static_cast<double>(g.groups);  // for a group
  const double spread = cx * cy == 1 ? 0 : kSpreadToLanes * x * all * static_cast<double>(lanes);
  const double channelwise =
      g.groups == 1 ? kNever : kLoadedProducts * pairs * static_cast<double>(cx) * all + spread + moved;
  return {planes,
          depthwise_cost<T>(g, 700),
          winograd_cost<T>(g, Direction::transposed, cx, cy, kMappedForSums) + kTransposedForSums * (x + y) +
              far_elements<T>(g),
          wide,
          kNever,
          channelwise,
          InPlaceCost<T>(g).weight_grad()};
}

}  // namespace tapedeck::cpu
