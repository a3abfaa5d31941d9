// Shapes: up to eight sizes, counted in 64 bits.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace tapedeck {

/// The sizes of a tensor's dimensions, outermost first. A scalar has rank 0 and one element.
class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  /// Throws Error if there are more than kMaxRank sizes, one is negative, or their product does not
  /// fit 63 bits.
  explicit Shape(std::span<const std::int64_t> sizes);

  int rank() const { return rank_; }
  std::int64_t count() const { return count_; }

  /// Size of dimension `i`; negative `i` counts from the end. Throws Error when out of range.
  std::int64_t operator[](int i) const { return sizes_[static_cast<std::size_t>(dim(i))]; }
  /// `i` made non-negative. Throws Error when out of range.
  int dim(int i) const;

  const std::int64_t* begin() const { return sizes_.data(); }
  const std::int64_t* end() const { return sizes_.data() + rank_; }

  /// A copy with dimension `i` set to `size`.
  Shape with(int i, std::int64_t size) const;
  /// A copy without dimension `i`.
  Shape without(int i) const;

  bool operator==(const Shape& other) const;

 private:
  std::array<std::int64_t, kMaxRank> sizes_{};
  std::int64_t count_ = 1;
  int rank_ = 0;
};

/// A number for each axis of an image: one number for both, or {h, w}.
struct Size2 {
  std::int64_t h = 0, w = 0;

  Size2() = default;
  constexpr Size2(std::int64_t both) : h(both), w(both) {}  // NOLINT(google-explicit-constructor)
  constexpr Size2(std::int64_t height, std::int64_t width) : h(height), w(width) {}
  bool operator==(const Size2&) const = default;
};

/// "[2,16,7,5]".
std::string to_string(const Shape& shape);

/// The shape that `a` and `b` broadcast to, by NumPy's rules. Throws Error, naming `op`, when they
/// do not.
Shape broadcast(std::string_view op, const Shape& a, const Shape& b);

}  // namespace tapedeck
