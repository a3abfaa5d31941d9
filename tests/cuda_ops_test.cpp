// Every op but the convolutions on a GPU against the CPU in float64: values and gradients, for every
// floating type and layout, into memory that held NaN, and the same bits each time.
#include "cuda_support.h"
#include "op_support.h"

namespace tapedeck {
namespace {

using namespace test;

class CudaOps : public CudaTest {};

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
Results run(const Case& c, DType dtype, Layout layout, Device device, bool exact) {
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
double bound(DType dtype) {
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

void expect_close(const Tensor& got, const Tensor& exact, double bound) {
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

std::vector<std::uint8_t> bytes_of(const Tensor& x) {
  const auto* first = static_cast<const std::uint8_t*>(x.raw());
  return {first, first + x.bytes()};
}

void check_case(const Case& c) {
  bool images = false;
  for (const Shape& shape : c.shapes) images |= shape.rank() == 4;
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    if (layout == Layout::nhwc && !images) continue;
    for (DType dtype : kFloatingTypes) {
      if (!c.halves && size_of(dtype) == 2) continue;
      SCOPED_TRACE(concat(c.name, " ", dtype, " ", layout));
      try {
        const Results exact = run(c, dtype, layout, Device{}, true);
        const Results got = run(c, dtype, layout, kCuda, false);
        poison_memory(100000);
        const Results again = run(c, dtype, layout, kCuda, false);
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

void check_cases(const std::vector<Case>& cases) {
  for (const Case& c : cases) check_case(c);
}

Tensor integers(const Variable& like, const std::vector<std::int64_t>& values, const Shape& shape) {
  return Tensor::from(values, shape).to(like.device());
}
Tensor constant(const Variable& like, double value, const Shape& shape) {
  return Tensor::full(shape, value, {like.dtype(), like.device()});
}
/// x with NaN in every 7th element, counted along the last dimension.
Variable with_nan(const Variable& x) {
  std::vector<std::int64_t> mask(static_cast<std::size_t>(x.size(-1)));
  for (std::size_t i = 3; i < mask.size(); i += 7) mask[i] = 1;
  const Tensor condition = integers(x, mask, {x.size(-1)}).to(DType::uint8);
  return where(condition, constant(x, kNan, {}), x);
}
/// x rounded to multiples of 1/2, so that elements are equal; with x's gradient.
Variable with_ties(const Variable& x) {
  return x * 0 + Variable(x.tensor().to(DType::int64).to(x.dtype()));
}

TEST_F(CudaOps, Arithmetic) {
  check_cases({
      {"add", [](const Variables& v) { return v[0] + v[1]; }, {{2, 3, 5, 7}, {2, 3, 5, 7}}},
      {"add bias", [](const Variables& v) { return v[0] + v[1]; }, {{33, 65}, {65}}},
      {"sub channels", [](const Variables& v) { return v[0] - v[1]; }, {{2, 3, 5, 7}, {3, 1, 1}}},
      {"mul outer", [](const Variables& v) { return v[0] * v[1]; }, {{17, 1}, {1, 1031}}},
      {"div", [](const Variables& v) { return v[0] / v[1]; }, {{4, 1, 3}, {5, 1}}, 0.5, 2},
      {"add scalar tensor", [](const Variables& v) { return v[0] + v[1]; }, {{}, {129}}},
      {"add nothing", [](const Variables& v) { return v[0] + v[1]; }, {{0, 3}, {3}}},
      {"affine", [](const Variables& v) { return 3 - v[0] * 2; }, {{1001}}},
      {"minimum", [](const Variables& v) { return minimum(v[0], v[1]); }, {{3, 50}, {50}}},
      {"maximum of equals", [](const Variables& v) { return maximum(v[0], v[0] * 1); }, {{50}}},
      {"pow", [](const Variables& v) { return pow(v[0], v[1]); }, {{40}, {40}}, 0.5, 2},
      {"where", [](const Variables& v) { return where(gt(v[0], v[1]), v[0], v[1]); }, {{9, 1, 4}, {3, 4}}},
      {"cast", [](const Variables& v) { return cast(cast(v[0], DType::float64), v[0].dtype()) * 2; }, {{77}}},
  });
}

TEST_F(CudaOps, ElementwiseFunctions) {
  const std::vector<Shape> shapes = {Shape{2, 3, 5, 7}};
  const auto unary = [&](const char* name, Variable (*f)(const Variable&), double low = -2, double high = 2) {
    check_case({name, [f](const Variables& v) { return f(v[0]); }, shapes, low, high});
  };
  unary("exp", exp);
  unary("log", log, 0.5, 2);
  unary("sqrt", sqrt, 0.5, 2);
  unary("square", square);
  unary("abs", abs);
  unary("sin", sin);
  unary("cos", cos);
  unary("erf", erf);
  unary("relu", relu);
  unary("silu", silu);
  unary("mish", mish);
  unary("tanh", tanh);
  unary("sigmoid", sigmoid);
  check_cases({
      {"pow", [](const Variables& v) { return pow(v[0], 2.5); }, shapes, 0.5, 2},
      {"clamp", [](const Variables& v) { return clamp(v[0], -1, 0.5); }, shapes},
      {"hardtanh", [](const Variables& v) { return hardtanh(v[0]); }, shapes},
      {"leaky_relu", [](const Variables& v) { return leaky_relu(v[0], 0.2); }, shapes},
      {"elu", [](const Variables& v) { return elu(v[0], 1.5); }, shapes},
      {"gelu", [](const Variables& v) { return gelu(v[0]); }, shapes},
      {"gelu tanh", [](const Variables& v) { return gelu(v[0], Gelu::tanh); }, shapes},
      {"softplus", [](const Variables& v) { return softplus(v[0], 2, 1); }, shapes},
      {"NaN stays", [](const Variables& v) { return relu(with_nan(v[0])); }, {{3, 40}}},
  });
}

TEST_F(CudaOps, Reductions) {
  using V = const Variables&;
  for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{3, 70, 33, 2}}) {
    for (const std::vector<int>& dims :
         std::vector<std::vector<int>>{{}, {0}, {1}, {-1}, {0, 2, 3}, {1, 3}}) {
      for (bool keepdim : {false, true}) {
        SCOPED_TRACE(concat(shape, " ", dims.size(), " dims, ", dims.empty() ? 99 : dims[0], keepdim));
        check_cases({
            {"sum", [&](V v) { return sum(v[0], dims, keepdim); }, {shape}},
            {"mean", [&](V v) { return mean(v[0], dims, keepdim); }, {shape}},
            {"max", [&](V v) { return max(v[0], dims, keepdim); }, {shape}},
            {"min", [&](V v) { return min(v[0], dims, keepdim); }, {shape}},
            {"max of equals", [&](V v) { return max(with_ties(v[0]), dims, keepdim); }, {shape}},
            {"var",
             [&](V v) { return var(v[0] + 10, dims, {.correction = 1, .keepdim = keepdim}); },
             {shape},
             -2,
             2,
             8},
            {"logsumexp", [&](V v) { return logsumexp(v[0], dims, keepdim); }, {shape}},
        });
      }
    }
  }
  check_cases({
      {"sum of many", [](V v) { return sum(v[0]); }, {{1000003}}},
      {"sum of long rows", [](V v) { return sum(v[0], {1}); }, {{3, 70001}}},
      {"sum of long columns", [](V v) { return sum(v[0], {0}); }, {{40001, 5}}},
      {"sum of both",
       [](V v) {
         return sum(v[0], {0, 2});
       },
       {{129, 33, 65}}},
      {"max of long rows", [](V v) { return max(v[0], {1}); }, {{3, 70001}}},
      {"max of long columns", [](V v) { return max(v[0], {0}); }, {{40001, 5}}},
      {"var of long columns", [](V v) { return var(v[0], {0}); }, {{40001, 5}}},
      {"sum of nothing", [](V v) { return sum(v[0], {0}); }, {{0, 3}}},
      {"sum to nothing", [](V v) { return sum(v[0], {0}); }, {{3, 0}}},
      {"mean of nothing", [](V v) { return mean(v[0], {1}); }, {{3, 0}}},
      {"max of NaN", [](V v) { return max(with_nan(v[0]), {1}); }, {{5, 3}}},
      {"max over NaN", [](V v) { return max(with_nan(v[0]), {0}); }, {{5, 30}}},
      {"min over NaN", [](V v) { return min(with_nan(v[0]), {1}); }, {{5, 30}}},
      {"var of one", [](V v) { return var(v[0], {1}); }, {{5, 1}}},
      {"scalar", [](V v) { return sum(v[0]); }, {{}}},
      {"broadcast_to",
       [](V v) {
         return broadcast_to(v[0], {4, 3, 5, 7});
       },
       {{3, 1, 7}}},
      {"sum_to",
       [](V v) {
         return sum_to(v[0], {3, 1, 7});
       },
       {{4, 3, 5, 7}}},
      // The gradient is exp(x - y) of a y that is rounded to x's type: off by any factor in the half types.
      {"logsumexp of large", [](V v) { return logsumexp(v[0] * 1000, {1}); }, {{5, 300}}, -2, 2, 8, false},
  });
}

TEST_F(CudaOps, Softmax) {
  using V = const Variables&;
  for (int dim : {0, 1, 2, 3}) {
    check_cases({
        {"softmax", [&](V v) { return softmax(v[0], dim); }, {{3, 5, 7, 4}}},
        {"log_softmax", [&](V v) { return log_softmax(v[0], dim); }, {{3, 5, 7, 4}}},
    });
  }
  check_cases({
      {"long rows", [](V v) { return softmax(v[0], 1); }, {{3, 5003}}},
      {"long columns", [](V v) { return log_softmax(v[0], 0); }, {{1025, 3}}, -2, 2, 8},
      {"one", [](V v) { return softmax(v[0], 1); }, {{3, 1}}},
      {"nothing", [](V v) { return softmax(v[0], 1); }, {{0, 4}}},
      {"NaN", [](V v) { return softmax(with_nan(v[0]), 0); }, {{4, 10}}},
  });
}

TEST_F(CudaOps, MatrixProducts) {
  using V = const Variables&;
  const auto product = [](V v) { return matmul(v[0], v[1]); };
  check_cases({
      {"square", product, {{64, 64}, {64, 64}}},
      {"odd", product, {{17, 33}, {33, 5}}},
      {"row", product, {{1, 130}, {130, 70}}},
      {"vector vector", product, {{37}, {37}}},
      {"matrix vector", product, {{5, 37}, {37}}},
      {"vector matrix", product, {{37}, {37, 9}}},
      {"batches", product, {{3, 7, 9}, {3, 9, 4}}},
      {"broadcast batches", product, {{2, 1, 7, 9}, {3, 9, 4}}},
      {"one matrix for all", product, {{4, 7, 9}, {9, 5}}},
      {"long sum", product, {{3, 4099}, {4099, 2}}},
      {"sum of nothing", product, {{3, 0}, {0, 2}}},
      {"nothing", product, {{0, 3}, {3, 2}}},
      {"linear", [](V v) { return linear(v[0], v[1], v[2]); }, {{33, 20}, {130, 20}, {130}}},
      {"linear of 3 dimensions", [](V v) { return linear(v[0], v[1], v[2]); }, {{2, 3, 19}, {11, 19}, {11}}},
      {"linear without bias", [](V v) { return linear(v[0], v[1]); }, {{6, 24}, {16, 24}}},
      {"transposed",
       [](V v) { return matmul(transpose(v[0], 0, 1), transpose(v[1], 0, 1)); },
       {{9, 7}, {5, 9}}},
  });
}

TEST_F(CudaOps, Normalisation) {
  using V = const Variables&;
  const auto batch = [](V v, bool training, Shape c) {
    const Tensor mean = constant(v[0], 0.25, c), var = constant(v[0], 1.5, c);
    const Variable y = batch_norm(v[0], v.size() > 1 ? v[1] : Variable(), v.size() > 2 ? v[2] : Variable(),
                                  mean, var, {.training = training, .momentum = 0.3});
    return cat({flatten(y), mean, var}, 0);
  };
  for (bool training : {false, true}) {
    check_cases({
        {"batch_norm", [&](V v) { return batch(v, training, {3}); }, {{4, 3, 5, 7}, {3}, {3}}, -2, 2, 4},
        {"many channels",
         [&](V v) { return batch(v, training, {133}); },
         {{3, 133, 9, 11}, {133}, {133}},
         -2,
         2,
         4},
        {"many pixels", [&](V v) { return batch(v, training, {2}); }, {{3, 2, 129, 131}, {2}, {2}}, -2, 2, 8},
        {"vectors", [&](V v) { return batch(v, training, {70}); }, {{65, 70}, {70}, {70}}, -2, 2, 4},
        {"sequences", [&](V v) { return batch(v, training, {5}); }, {{6, 5, 31}, {5}, {5}}, -2, 2, 4},
        {"without weight", [&](V v) { return batch(v, training, {3}); }, {{4, 3, 5, 7}}, -2, 2, 4},
        {"empty batch", [&](V v) { return batch(v, training, {3}); }, {{0, 3, 5, 7}, {3}, {3}}},
        {"parameters of half types in float32",
         [&](V v) {
           const auto wide = [](const Variable& p) {
             return size_of(p.dtype()) == 2 ? cast(p, DType::float32) : p;
           };
           const Variable w = wide(v[1]), mean = constant(w, 0.25, {3}), var = constant(w, 1.5, {3});
           const Variable y = batch_norm(v[0], w, wide(v[2]), mean, var, {.training = training});
           return cat({flatten(y), cast(mean, y.dtype()), cast(var, y.dtype())}, 0);
         },
         {{4, 3, 5, 7}, {3}, {3}},
         -2,
         2,
         4},
    });
  }
  check_cases({
      {"group_norm", [](V v) { return group_norm(v[0], 2, v[1], v[2]); }, {{3, 6, 5, 7}, {6}, {6}}, -2, 2, 4},
      {"one group",
       [](V v) { return group_norm(v[0], 1, v[1], v[2]); },
       {{3, 5, 33, 31}, {5}, {5}},
       -2,
       2,
       4},
      {"own groups", [](V v) { return group_norm(v[0], 5); }, {{3, 5, 9, 11}}, -2, 2, 4},
      {"large groups",
       [](V v) { return group_norm(v[0], 2, v[1], v[2]); },
       {{2, 64, 31, 33}, {64}, {64}},
       -2,
       2,
       4},
      {"no images", [](V v) { return group_norm(v[0], 2, v[1], v[2]); }, {{0, 6, 5, 7}, {6}, {6}}},
      {"layer_norm",
       [](V v) { return layer_norm(v[0], {70}, v[1], v[2]); },
       {{9, 4, 70}, {70}, {70}},
       -2,
       2,
       4},
      {"layer_norm 2",
       [](V v) {
         return layer_norm(v[0], {5, 7}, v[1], v[2]);
       },
       {{9, 3, 5, 7}, {5, 7}, {5, 7}},
       -2,
       2,
       4},
      {"layer_norm long", [](V v) { return layer_norm(v[0], {5003}); }, {{3, 5003}}, -2, 2, 4},
  });
}

TEST_F(CudaOps, PoolingAndResampling) {
  using V = const Variables&;
  check_cases({
      {"max_pool2d", [](V v) { return max_pool2d(v[0], {.kernel_size = 2}); }, {{2, 3, 9, 8}}},
      {"max overlapping",
       [](V v) { return max_pool2d(v[0], {.kernel_size = 3, .stride = 2, .padding = 1}); },
       {{2, 5, 11, 13}}},
      {"max dilated",
       [](V v) {
         return max_pool2d(v[0], {.kernel_size = {2, 3}, .stride = 1, .dilation = 2, .ceil_mode = true});
       },
       {{1, 2, 9, 9}}},
      {"max of equals", [](V v) { return max_pool2d(with_ties(v[0]), {.kernel_size = 3}); }, {{2, 3, 9, 9}}},
      {"max of NaN", [](V v) { return max_pool2d(with_nan(v[0]), {.kernel_size = 3}); }, {{2, 3, 9, 19}}},
      {"max of nothing", [](V v) { return max_pool2d(v[0], {.kernel_size = 2}); }, {{0, 3, 8, 8}}},
      {"avg_pool2d", [](V v) { return avg_pool2d(v[0], {.kernel_size = 2}); }, {{2, 3, 9, 8}}},
      {"avg padded",
       [](V v) { return avg_pool2d(v[0], {.kernel_size = 3, .stride = 2, .padding = 1, .ceil_mode = true}); },
       {{2, 5, 10, 13}}},
      {"avg not counting",
       [](V v) {
         return avg_pool2d(v[0], {.kernel_size = 3, .stride = 1, .padding = 1, .count_include_pad = false});
       },
       {{2, 3, 6, 5}}},
      {"adaptive",
       [](V v) {
         return adaptive_avg_pool2d(v[0], {3, 4});
       },
       {{2, 3, 10, 7}}},
      {"adaptive to one", [](V v) { return adaptive_avg_pool2d(v[0], 1); }, {{2, 70, 33, 31}}},
      {"nearest",
       [](V v) {
         return upsample_nearest2d(v[0], {11, 14});
       },
       {{2, 3, 5, 7}}},
      {"nearest down",
       [](V v) {
         return upsample_nearest2d(v[0], {3, 4});
       },
       {{2, 3, 5, 7}}},
      {"bilinear",
       [](V v) {
         return upsample_bilinear2d(v[0], {10, 14});
       },
       {{2, 3, 5, 7}}},
      {"bilinear corners",
       [](V v) {
         return upsample_bilinear2d(v[0], {11, 3}, true);
       },
       {{2, 3, 5, 7}}},
      {"bilinear of nothing",
       [](V v) {
         return upsample_bilinear2d(v[0], {11, 3});
       },
       {{0, 3, 5, 7}}},
      {"pixel_shuffle", [](V v) { return pixel_shuffle(v[0], 2); }, {{2, 12, 5, 7}}},
      {"pixel_unshuffle", [](V v) { return pixel_unshuffle(v[0], 3); }, {{2, 2, 6, 9}}},
  });
}

TEST_F(CudaOps, Shapes) {
  using V = const Variables&;
  check_cases({
      {"reshape",
       [](V v) {
         return reshape(v[0], {6, -1});
       },
       {{2, 3, 5, 7}}},
      {"flatten", [](V v) { return flatten(v[0], 1); }, {{2, 3, 5, 7}}},
      {"permute",
       [](V v) {
         return permute(v[0], {2, 0, 3, 1});
       },
       {{2, 3, 5, 7}}},
      {"transpose", [](V v) { return transpose(v[0], 0, 1); }, {{65, 33}}},
      {"transpose large", [](V v) { return transpose(v[0], 1, 2); }, {{3, 300, 131}}},
      {"to_layout", [](V v) { return to_layout(v[0], Layout::nhwc) * 2; }, {{2, 3, 5, 7}}},
      {"cat",
       [](V v) {
         return cat({v[0], v[1]}, 1);
       },
       {{2, 3, 5, 7}, {2, 4, 5, 7}}},
      {"cat with nothing",
       [](V v) {
         return cat({v[0], v[1]}, 0);
       },
       {{2, 3}, {0, 3}}},
      {"stack",
       [](V v) {
         return stack({v[0], v[1]}, 1);
       },
       {{4, 9}, {4, 9}}},
      {"slice", [](V v) { return slice(v[0], 2, 1, -1, 2); }, {{2, 3, 8, 7}}},
      {"slice to nothing", [](V v) { return slice(v[0], 1, 1, 1); }, {{3, 3}}},
      {"split", [](V v) { return split(v[0], 2, -1)[3]; }, {{2, 3, 5, 7}}},
      {"pad",
       [](V v) {
         return pad(v[0], {1, 2, 0, 3}, 0.5);
       },
       {{2, 3, 5, 7}}},
      {"crop",
       [](V v) {
         return pad(v[0], {-1, 2, 1, -2});
       },
       {{2, 3, 5, 7}}},
  });
}

TEST_F(CudaOps, Indices) {
  using V = const Variables&;
  check_cases({
      {"index_select",
       [](V v) {
         return index_select(v[0], 1, integers(v[0], {2, 0, 2, 1, 2}, {5}));
       },
       {{2, 3, 5, 7}}},
      {"select rows",
       [](V v) {
         return index_select(v[0], 0, integers(v[0], {8, 0, 8}, {3}));
       },
       {{9, 65}}},
      {"select nothing", [](V v) { return index_select(v[0], 0, integers(v[0], {}, {0})); }, {{9, 5}}},
      {"index_add",
       [](V v) {
         return index_add(v[0], 2, integers(v[0], {5, 0, 5, 3, 0}, {5}), 6);
       },
       {{2, 3, 5, 7}}},
      {"embedding",
       [](V v) {
         return embedding(v[0], integers(v[0], {1, 0, 1, 5, 1, 5}, {2, 3}));
       },
       {{6, 33}}},
      {"gather",
       [](V v) {
         return gather(v[0], 1, integers(v[0], {3, 3, 0, 1, 2, 3}, {2, 3}));
       },
       {{2, 4}}},
      {"gather along 0",
       [](V v) {
         return gather(v[0], 0, integers(v[0], {3, 3, 0, 1, 3, 3}, {3, 2}));
       },
       {{4, 2}}},
      {"scatter_add",
       [](V v) {
         return scatter_add(v[0], 1, integers(v[0], {3, 3, 0, 1, 3, 3}, {2, 3}), {2, 5});
       },
       {{2, 3}}},
  });
}

TEST_F(CudaOps, ManyEqualIndices) {
  std::vector<std::int64_t> rows(5000);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i * i % 7);
  check_case({"embedding",
              [&](const Variables& v) { return embedding(v[0], integers(v[0], rows, {5000})); },
              {{7, 5}},
              -2,
              2,
              4});
}

TEST_F(CudaOps, AnIndexOutOfRangeGivesNan) {
  const auto there = [](const std::vector<std::int64_t>& values, const Shape& shape) {
    return Tensor::from(values, shape).to(kCuda);
  };
  const Tensor x = Tensor::ones({2, 3}, {.device = kCuda});
  const auto selected = index_select(x, 1, there({-1, 1, 3}, {3})).tensor().to_vector<double>();
  const auto gathered = gather(x, 1, there({-1, 1, 3, 0, 99, 2}, {2, 3})).tensor().to_vector<double>();
  for (std::size_t i : {0u, 2u, 3u, 5u}) EXPECT_TRUE(std::isnan(selected[i]));
  for (std::size_t i : {1u, 4u}) EXPECT_EQ(selected[i], 1);
  for (std::size_t i : {0u, 2u, 4u}) EXPECT_TRUE(std::isnan(gathered[i]));
  for (std::size_t i : {1u, 3u, 5u}) EXPECT_EQ(gathered[i], 1);
  EXPECT_EQ(index_add(x, 1, there({-1, 1, 4}, {3}), 4).tensor().to_vector<double>(),
            (std::vector<double>{0, 1, 0, 0, 0, 1, 0, 0}));
  EXPECT_EQ(scatter_add(x, 1, there({-1, 1, 4, 4, 0, 0}, {2, 3}), {2, 2}).tensor().to_vector<double>(),
            (std::vector<double>{0, 1, 2, 0}));
  const Tensor whole = Tensor::ones({3}, {DType::int64, kCuda});
  EXPECT_EQ(index_select(whole, 0, there({2, 3}, {2})).tensor().to_vector<double>(),
            (std::vector<double>{1, 0}));
}

TEST_F(CudaOps, Losses) {
  using V = const Variables&;
  using nn::Reduction;
  for (Reduction r : {Reduction::mean, Reduction::sum, Reduction::none}) {
    check_cases({
        {"mse", [&](V v) { return nn::mse_loss(v[0], v[1], r); }, {{4, 3, 5, 7}, {4, 3, 5, 7}}},
        {"l1", [&](V v) { return nn::l1_loss(v[0], v[1], r); }, {{4, 3, 5, 7}, {4, 3, 5, 7}}},
        {"huber",
         [&](V v) { return nn::huber_loss(v[0], v[1], {.delta = 0.7, .reduction = r}); },
         {{70001}, {70001}}},
        {"bce",
         [&](V v) { return nn::binary_cross_entropy_with_logits(v[0], v[1], r); },
         {{65, 7}, {65, 7}},
         0,
         1},
        {"weighted bce",
         [&](V v) {
           return nn::binary_cross_entropy_with_logits(
               v[0], v[1], {.pos_weight = constant(v[0], 2, {7}), .reduction = r});
         },
         {{65, 7}, {65, 7}},
         0,
         1},
        {"cross_entropy",
         [&](V v) {
           return nn::cross_entropy(v[0], integers(v[0], {1, 4, 0, 4}, {4}), {.reduction = r});
         },
         {{4, 5}}},
        {"ignored targets",
         [&](V v) {
           return nn::cross_entropy(v[0], integers(v[0], {1, -100, 0, -100}, {4}),
                                    {.label_smoothing = 0.1, .reduction = r});
         },
         {{4, 5}}},
        {"kl", [&](V v) { return nn::kl_divergence_gaussian(v[0], v[1], r); }, {{65, 7}, {65, 7}}},
    });
  }
  check_cases({
      {"mse of nothing", [](V v) { return nn::mse_loss(v[0], v[1], Reduction::sum); }, {{0, 3}, {0, 3}}},
      {"ssim", [](V v) { return nn::ssim(v[0], v[1]); }, {{2, 3, 19, 13}, {2, 3, 19, 13}}, 0, 1, 20},
  });
}

TEST_F(CudaOps, Dropout) {
  for (bool training : {false, true}) {
    for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{100003}, Shape{1}, Shape{0, 3}}) {
      check_case({"dropout",
                  [&](const Variables& v) {
                    Generator generator(3);
                    // Twice, as dropout in evaluation is x itself.
                    return 2 * dropout(v[0], 0.3, training, generator);
                  },
                  {shape}});
    }
  }
}

// Positions, and what is exact: every dtype gives the CPU's values.
TEST_F(CudaOps, WholeNumbersAndPositions) {
  const std::vector<std::pair<const char*, std::function<Variable(const Variable&)>>> functions = {
      {"argmax", [](const Variable& x) { return argmax(x); }},
      {"argmax 0", [](const Variable& x) { return argmax(x, 0); }},
      {"argmax 1", [](const Variable& x) { return argmax(x, 1, true); }},
      {"argmax 3", [](const Variable& x) { return argmax(x, -1); }},
      {"sum of small ones", [](const Variable& x) { return sum(where(gt(x, x * 0), x, x * 0), {1}); }},
      {"max",
       [](const Variable& x) {
         return max(x, {0, 2});
       }},
      {"min", [](const Variable& x) { return min(x, {3}); }},
      {"permute",
       [](const Variable& x) {
         return permute(x, {3, 1, 0, 2});
       }},
      {"slice", [](const Variable& x) { return slice(x, 3, 1, 6, 3); }},
      {"cat",
       [](const Variable& x) {
         return cat({x, x}, 2);
       }},
      {"select",
       [](const Variable& x) {
         return index_select(x, 2, integers(x, {4, 0, 4}, {3}));
       }},
      {"index_add",
       [](const Variable& x) {
         return index_add(x, 2, integers(x, {1, 0, 1, 1, 3}, {5}), 4);
       }},
      {"expand",
       [](const Variable& x) {
         return broadcast_to(slice(x, 1, 0, 1), {2, 3, 5, 7});
       }},
      {"compare", [](const Variable& x) { return le(x, slice(x, 1, 0, 1)); }},
      {"add", [](const Variable& x) { return x + x; }},
  };
  for (const auto& [name, f] : functions) {
    for (DType dtype :
         {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int64, DType::uint8}) {
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        SCOPED_TRACE(concat(name, " ", dtype, " ", layout));
        const Tensor x =
            random_tensor({DType::int64 == dtype ? 4 : 2, 3, 5, 7}, {DType::int64, {}, layout}, 0, 9)
                .to(dtype);
        if (std::string_view(name) == "expand" && x.size(0) != 2) continue;
        try {
          const Tensor expected = f(x).tensor(), got = f(x.to(kCuda)).tensor();
          EXPECT_EQ(got.dtype(), expected.dtype());
          EXPECT_EQ(got.shape(), expected.shape());
          EXPECT_EQ(got.to_vector<double>(), expected.to_vector<double>());
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
      }
    }
  }
  for (const Shape& shape : {Shape{300007}, Shape{5, 60001}, Shape{60001, 5}}) {
    const Tensor x = random_tensor(shape, {DType::float32}, -1, 1), there = x.to(kCuda);
    EXPECT_EQ(argmax(there).item(), argmax(x).item());
    EXPECT_EQ(argmax(there, 0).tensor().to_vector<double>(), argmax(x, 0).tensor().to_vector<double>());
    const Variable nan = with_nan(x), nan_there = with_nan(there);
    EXPECT_EQ(argmax(nan_there).item(), argmax(nan).item());
    EXPECT_EQ(argmax(nan_there, -1).tensor().to_vector<double>(),
              argmax(nan, -1).tensor().to_vector<double>());
  }
}

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const Variables&)>;

/// The parameters after five steps of an optimizer with clipped gradients, and their moving averages.
Tensors optimized(const MakeOptimizer& make, DType dtype, Device device, bool exact) {
  const DType compute = exact ? DType::float64 : dtype;
  Variables parameters;
  for (const Shape& shape : {Shape{3, 5}, Shape{100003}, Shape{}, Shape{0, 2}, Shape{2, 3, 5, 7}}) {
    parameters.push_back(Variable::parameter(
        random_tensor(shape, {dtype}, -1, 1, 3 + parameters.size()).to(compute).to(device)));
  }
  const auto optimizer = make(parameters);
  optim::ExponentialMovingAverage average(parameters, {.decay = 0.5});
  for (std::uint64_t step = 0; step < 5; ++step) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (i == step) continue;  // no gradient
      parameters[i].set_grad(
          random_tensor(parameters[i].shape(), {dtype}, -1, 1, 50 * step + i).to(compute).to(device));
    }
    optim::clip_grad_norm(parameters, 100);
    optimizer->step();
    optimizer->zero_grad();
    average.update();
  }
  Tensors results;
  for (const Variable& p : parameters) results.push_back(p.tensor().to(Device{}));
  const auto scope = average.swap_in();
  for (const Variable& p : parameters) results.push_back(p.tensor().to(Device{}));
  return results;
}

TEST_F(CudaOps, Optimizers) {
  const std::vector<std::pair<const char*, MakeOptimizer>> optimizers = {
      {"SGD",
       [](const Variables& p) { return std::make_unique<optim::SGD>(p, optim::SGD::Options{.lr = 0.1}); }},
      {"SGD momentum",
       [](const Variables& p) {
         return std::make_unique<optim::SGD>(
             p, optim::SGD::Options{.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01});
       }},
      {"SGD Nesterov",
       [](const Variables& p) {
         return std::make_unique<optim::SGD>(
             p, optim::SGD::Options{.lr = 0.1, .momentum = 0.9, .nesterov = true});
       }},
      {"Adam",
       [](const Variables& p) {
         return std::make_unique<optim::Adam>(p, optim::Adam::Options{.lr = 0.01, .weight_decay = 0.1});
       }},
      {"Adam amsgrad",
       [](const Variables& p) {
         return std::make_unique<optim::Adam>(p, optim::Adam::Options{.lr = 0.01, .amsgrad = true});
       }},
      {"AdamW",
       [](const Variables& p) {
         return std::make_unique<optim::AdamW>(p, optim::AdamW::Options{.lr = 0.01});
       }},
      {"RMSprop",
       [](const Variables& p) {
         return std::make_unique<optim::RMSprop>(p, optim::RMSprop::Options{.lr = 0.01});
       }},
      {"RMSprop centered",
       [](const Variables& p) {
         return std::make_unique<optim::RMSprop>(
             p, optim::RMSprop::Options{
                    .lr = 0.01, .eps = 1e-3, .weight_decay = 0.1, .momentum = 0.5, .centered = true});
       }},
  };
  for (const auto& [name, make] : optimizers) {
    for (DType dtype : kFloatingTypes) {
      SCOPED_TRACE(concat(name, " ", dtype));
      const Tensors exact = optimized(make, dtype, Device{}, true);
      const Tensors got = optimized(make, dtype, kCuda, false), again = optimized(make, dtype, kCuda, false);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        SCOPED_TRACE(i);
        expect_close(got[i], exact[i], bound(dtype));
        EXPECT_EQ(bytes_of(got[i]), bytes_of(again[i]));
      }
    }
  }
}

class Decoder final : public nn::Module {
 public:
  explicit Decoder(Generator& g)
      : fc(register_module("fc", nn::Linear({.in_features = 6, .out_features = 8 * 3 * 3}, g))),
        norm(register_module("norm", nn::BatchNorm2d({.num_features = 8}))),
        up(register_module(
            "up",
            nn::ConvTranspose2d(
                {.in_channels = 8, .out_channels = 3, .kernel_size = 4, .stride = 2, .padding = 1}, g))) {}
  Variable forward(const Variable& z) override { return up(relu(norm(reshape(fc(z), {-1, 8, 3, 3})))); }

  nn::Linear fc;
  nn::BatchNorm2d norm;
  nn::ConvTranspose2d up;
};

std::vector<double> losses(DType dtype, Device device) {
  Generator generator(5);
  Decoder model(generator);
  model.to(dtype);
  model.to(device);
  optim::Adam optimizer(model.parameters(), {.lr = 1e-2});
  const Tensor z = random_tensor({16, 6}, {DType::float32}, -1, 1, 1).to(dtype).to(device);
  const Tensor image = random_tensor({16, 3, 6, 6}, {DType::float32}, 0, 1, 2).to(dtype).to(device);
  std::vector<double> trace;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    Tape tape;
    const Variable loss = nn::mse_loss(model(z), image);
    tape.backward(loss);
    optimizer.step();
    trace.push_back(loss.item());
  }
  model.eval();
  trace.push_back(nn::mse_loss(model(z), image).item());
  return trace;
}

TEST_F(CudaOps, ADecoderTrainsAsOnTheCpu) {
  const auto exact = losses(DType::float64, Device{});
  EXPECT_LT(exact[19], 0.5 * exact[0]);
  for (DType dtype : {DType::float64, DType::float32}) {
    const auto got = losses(dtype, kCuda);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      EXPECT_NEAR(got[i], exact[i], (dtype == DType::float64 ? 1e-10 : 1e-4) * exact[i]) << i;
    }
    EXPECT_EQ(losses(dtype, kCuda), got);
  }
}

}  // namespace
}  // namespace tapedeck
