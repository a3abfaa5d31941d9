// An op on a GPU against the CPU in float64: values and gradients, for every floating type and layout, into
// memory that held NaN, and the same bits each time.
#pragma once

#include "cuda_support.h"
#include "op_support.h"

namespace tapedeck::test {

struct Case {
  const char* name;
  std::function<Variable(const Variables&)> f;
  std::vector<Shape> shapes;
  double low = -2, high = 2;
  double room = 1;     ///< the tolerance's factor, where the function is badly conditioned
  bool halves = true;  ///< whether the half types can be held to the bound at all
};

/// A result and the gradients of all inputs, on the host.
struct Results {
  Tensors tensors;
};

/// The inputs are rounded to `dtype`; `exact` computes with what comes of it in float64.
inline Results run(const Case& c, DType dtype, Layout layout, Device device, bool exact) {
  const DType compute = exact ? DType::float64 : dtype;
  Variables x;
  for (std::size_t i = 0; i < c.shapes.size(); ++i) {
    const Layout own = c.shapes[i].rank() == 4 ? layout : Layout::nchw;
    const Tensor value = random_tensor(c.shapes[i], {dtype, {}, own}, c.low, c.high, 100 + i);
    x.push_back(Variable::parameter(value.to(compute).to(device)));
  }
  Tape tape;
  const Variable y = c.f(x);
  const Tensor gy = random_tensor(y.shape(), {dtype}, -1, 1, 7);
  tape.backward(y, {.gradient = gy.to(compute).to(device)});
  Results results{{y.tensor().to(Device{})}};
  for (const Variable& v : x) {
    if (v.grad().defined()) {
      results.tensors.push_back(v.grad().tensor().to(Device{}));
    }
  }
  return results;
}

/// Errors as a part of the largest element, and of 1 if all are smaller: the half types round between
/// the ops that a function is made of.
inline double bound(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return 1e-12;
    case DType::float32:
      return 1e-5;
    case DType::bfloat16:
      return 3e-2;
    default:
      return 4e-3;
  }
}

inline void expect_close(const Tensor& got, const Tensor& exact, double bound) {
  ASSERT_EQ(got.shape(), exact.shape());
  const auto a = got.to_vector<double>(), b = exact.to_vector<double>();
  double size = 1;
  for (double v : b) {
    if (std::isfinite(v)) size = std::max(size, std::abs(v));
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(b[i])) {
      ASSERT_NEAR(a[i], b[i], bound * size) << "element " << i;
    } else {
      ASSERT_TRUE(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])))
          << "element " << i << " is " << a[i] << ", not " << b[i];
    }
  }
}

inline std::vector<std::uint8_t> bytes_of(const Tensor& x) {
  const auto* first = static_cast<const std::uint8_t*>(x.raw());
  return {first, first + x.bytes()};
}

inline void check_case(const Case& c) {
  static Share share(3);  // of 4 types, in two layouts or one: each case has a turn
  bool images = false;
  for (const Shape& shape : c.shapes) images |= shape.rank() == 4;
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    if (layout == Layout::nhwc && !images) continue;
    for (DType dtype : kFloatingTypes) {
      if ((!c.halves && size_of(dtype) == 2) || !share.takes_next()) continue;
      SCOPED_TRACE(concat(c.name, " ", dtype, " ", layout));
      try {
        const Results exact = run(c, dtype, layout, Device{}, true);
        const Results got = run(c, dtype, layout, kCuda, false);
        poison_memory(100000);
        const Results again = is_sanitized() ? got : run(c, dtype, layout, kCuda, false);
        ASSERT_EQ(got.tensors.size(), exact.tensors.size());
        for (std::size_t i = 0; i < exact.tensors.size(); ++i) {
          SCOPED_TRACE(i == 0 ? std::string("result") : concat("gradient ", i - 1));
          EXPECT_EQ(got.tensors[i].layout(), exact.tensors[i].layout());
          expect_close(got.tensors[i], exact.tensors[i], bound(dtype) * c.room);
          EXPECT_EQ(got.tensors[i].dtype(),
                    exact.tensors[i].dtype() == DType::float64 ? dtype : exact.tensors[i].dtype());
          EXPECT_EQ(bytes_of(got.tensors[i]), bytes_of(again.tensors[i])) << "not the same bits again";
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

inline void check_cases(const std::vector<Case>& cases) {
  for (const Case& c : cases) check_case(c);
}

inline Tensor integers(const Variable& like, const std::vector<std::int64_t>& values, const Shape& shape) {
  return Tensor::from(values, shape).to(like.device());
}
inline Tensor constant(const Variable& like, double value, const Shape& shape) {
  return Tensor::full(shape, value, {like.dtype(), like.device()});
}
/// x with NaN in every 7th element, counted along the last dimension.
inline Variable with_nan(const Variable& x) {
  std::vector<std::int64_t> mask(static_cast<std::size_t>(x.size(-1)));
  for (std::size_t i = 3; i < mask.size(); i += 7) mask[i] = 1;
  const Tensor condition = integers(x, mask, {x.size(-1)}).to(DType::uint8);
  return where(condition, constant(x, kNan, {}), x);
}
/// x rounded to multiples of 1/2, so that elements are equal; with x's gradient.
inline Variable with_ties(const Variable& x) {
  return x * 0 + Variable(x.tensor().to(DType::int64).to(x.dtype()));
}

}  // namespace tapedeck::test
