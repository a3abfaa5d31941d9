// What a path costs, to choose by: cycles of one core, roughly.
//
// The rates are measured on AMD Zen 4 (bench/compare_cpu.py with TAPEDECK_CONV_ALGORITHM=planes and
// =windows). Multiplications cost what they take in whole vectors, and what is moved costs by the element:
// windows.cpp and weight_grad.cpp transpose both tensors of an nchw call, planes are copied as they lie.
#pragma once

#include <algorithm>
#include <limits>

#include <tapedeck/ops/conv/planes.h>
#include <tapedeck/ops/conv/winograd.h>

namespace tapedeck::cpu {

constexpr double kTransposed = 1.5, kRead = 0.5, kWritten = 1.0;  // cycles of an element
constexpr double kMapped = 0.35;                                  // cycles of a channel of a point
constexpr double kSumOfLanes = 7;                                 // cycles of a sum along pixels
constexpr double kLargestBand = 2 << 20;                          // bytes; larger ones fit no cache

inline double in_whole_vectors(std::int64_t channels, std::int64_t lanes) {
  return static_cast<double>((channels + lanes - 1) / lanes * lanes) / static_cast<double>(channels);
}

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Minimal filtering: the products, and the maps of what is read and of what is written.
template <class T>
double winograd_cost(const ConvTranspose2dGeometry& g, Direction direction, std::int64_t from,
                     std::int64_t to) {
  if (!is_winograd(g.h) || !is_winograd(g.w)) return kNever;
  const auto lanes = micro::kernels<T>().lanes;
  const auto points = static_cast<double>(g.n * winograd_products(g.h, direction)) *
                      static_cast<double>(winograd_products(g.w, direction)) *
                      static_cast<double>(g.groups);  // of tiles
  const double products = points * static_cast<double>(from) * in_whole_vectors(to, lanes) *
                          static_cast<double>(to) / static_cast<double>(lanes);
  return products * 1.1 + kMapped * points * static_cast<double>(from + to);
}

/// Of the ways to compute a call. Planes are only for nchw tensors.
struct Costs {
  double planes, winograd, otherwise;
};

/// The costs of the results of a direction.
template <class T>
Costs costs(const ConvTranspose2dGeometry& g, Direction direction) {
  const PlaneAxis h(g.h, direction), w(g.w, direction);
  const PlaneBand band(h, w, 1);
  const auto lanes = micro::kernels<T>().lanes;
  const std::int64_t from = direction == Direction::transposed ? g.group_ci() : g.group_co();
  const std::int64_t to = direction == Direction::transposed ? g.group_co() : g.group_ci();
  const double products = g.flops() / 2 / static_cast<double>(lanes);  // in vectors
  const auto x = static_cast<double>(g.x_shape().count()), y = static_cast<double>(g.y_shape().count());
  const double read = direction == Direction::transposed ? x : y, written = x + y - read;

  // Vectors cover the columns between rows, too. A load serves the rows of a tile, and where a phase has few
  // taps each load comes from a core's second cache.
  const auto pixels = static_cast<double>(std::max<std::int64_t>(1, h.count * w.count));
  const double columns = static_cast<double>((h.count - 1) * band.pitch + w.count + lanes - 1) / pixels;
  const double taps = std::max(
      1.0, static_cast<double>(g.h.kernel * g.w.kernel) / static_cast<double>(h.to_step * w.to_step));
  const double planes =
      static_cast<double>(from * band.channel) * sizeof(T) > kLargestBand
          ? kNever
          : products * (1.08 + 0.2 / taps) * columns * std::max(1.0, 2.0 / static_cast<double>(to)) +
                kRead * read + kWritten * written;
  // The lanes are channels of whichever side wastes fewer of them; of all groups if they are narrow.
  const double waste = std::min(in_whole_vectors(to, lanes),
                                to <= lanes / 3 ? in_whole_vectors(from, lanes) : static_cast<double>(lanes));
  const double all = 2.5 * in_whole_vectors(g.groups * to, lanes);
  const double windows =
      products * 1.05 * (g.groups > 1 ? std::min(waste, all) : waste) + kTransposed * (read + written);
  return {planes, winograd_cost<T>(g, direction, from, to) + kTransposed * (read + written), windows};
}

/// The costs of the weight gradient.
template <class T>
Costs weight_grad_costs(const ConvTranspose2dGeometry& g) {
  const PlaneAxis h(g.h, Direction::plain), w(g.w, Direction::plain);
  const PlaneBand band(h, w, 1);
  const auto lanes = micro::kernels<T>().lanes;
  const double products = g.flops() / 2 / static_cast<double>(lanes);
  const auto moved = static_cast<double>(g.x_shape().count() + g.y_shape().count());
  const double columns = static_cast<double>(band.pitch) / static_cast<double>(g.w.in);
  const double planes = static_cast<double>(g.group_co() * band.channel) * sizeof(T) > kLargestBand
                            ? kNever
                            : products * 1.3 * columns * (g.group_ci() == 1 ? 1.5 : 1.0) + kRead * moved +
                                  kSumOfLanes * static_cast<double>(g.n * g.weight_shape().count());
  const double waste = std::min(in_whole_vectors(g.group_ci(), lanes), in_whole_vectors(g.group_co(), lanes));
  const double all = 2.5 * in_whole_vectors(g.co, lanes);
  const double pixels = products * 1.1 * (g.groups > 1 ? std::min(waste, all) : waste) + kTransposed * moved;
  return {planes,
          winograd_cost<T>(g, Direction::transposed, g.group_ci(), g.group_co()) + kTransposed * moved,
          pixels};
}

}  // namespace tapedeck::cpu
