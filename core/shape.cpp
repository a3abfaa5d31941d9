#include <tapedeck/core/shape.h>

#include <algorithm>

#include <tapedeck/core/error.h>

namespace tapedeck {

Shape::Shape(std::span<const std::int64_t> sizes) {
  check(sizes.size() <= kMaxRank, "shape: rank ", sizes.size(), " is above the limit of ", kMaxRank);
  std::int64_t nonzero = 1;  // a zero must not hide that the other sizes overflow
  for (std::int64_t size : sizes) {
    check(size >= 0, "shape: size ", size, " of dimension ", rank_, " is negative");
    check(size == 0 || !__builtin_mul_overflow(nonzero, size, &nonzero),
          "shape: the number of elements does not fit 63 bits");
    count_ *= size;
    sizes_[static_cast<std::size_t>(rank_++)] = size;
  }
}

int Shape::dim(int i) const {
  check(i >= -rank_ && i < rank_, "shape: dimension ", i, " is out of range for ", *this, "; legal is ",
        -rank_, " to ", rank_ - 1);
  return i < 0 ? i + rank_ : i;
}

Shape Shape::with(int i, std::int64_t size) const {
  auto sizes = sizes_;
  sizes[static_cast<std::size_t>(dim(i))] = size;
  return Shape(std::span(sizes.data(), static_cast<std::size_t>(rank_)));
}

Shape Shape::without(int i) const {
  auto sizes = sizes_;
  std::copy(begin() + dim(i) + 1, end(), sizes.begin() + dim(i));
  return Shape(std::span(sizes.data(), static_cast<std::size_t>(rank_ - 1)));
}

bool Shape::operator==(const Shape& other) const {
  return std::equal(begin(), end(), other.begin(), other.end());
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::int64_t size : shape) {
    if (text.size() > 1) text += ',';
    text += std::to_string(size);
  }
  return text += ']';
}

Shape broadcast(std::string_view op, const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  std::array<std::int64_t, Shape::kMaxRank> sizes{};
  for (int i = 1; i <= rank; ++i) {
    const std::int64_t m = i <= a.rank() ? a[-i] : 1;
    const std::int64_t n = i <= b.rank() ? b[-i] : 1;
    check(m == n || m == 1 || n == 1, op, ": shapes ", a, " and ", b, " do not broadcast: sizes ", m, " and ",
          n, " of dimension ", -i, " differ and neither is 1");
    sizes[static_cast<std::size_t>(rank - i)] = m == 1 ? n : m;
  }
  return Shape(std::span(sizes.data(), static_cast<std::size_t>(rank)));
}

}  // namespace tapedeck
