// Reductions, products, normalisation and pooling on a GPU.
#include <array>
#include <limits>
#include <random>
#include <vector>

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/matmul.h>
#include <tapedeck/ops/matmul_tiles.cuh>

#include "cuda_op_cases.h"

namespace tapedeck {
namespace {

using namespace test;

class CudaReductions : public CudaTest {
 protected:
  void TearDown() override { set_float32_precision(Precision::highest); }
};

TEST_F(CudaReductions, Reductions) {
  using V = const Variables&;
  Share share(5);
  for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{3, 70, 33, 2}}) {
    for (const std::vector<int>& dims :
         std::vector<std::vector<int>>{{}, {0}, {1}, {-1}, {0, 2, 3}, {1, 3}}) {
      for (bool keepdim : {false, true}) {
        SCOPED_TRACE(concat(shape, " ", dims.size(), " dims, ", dims.empty() ? 99 : dims[0], keepdim));
        if (!share.takes_next()) continue;
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
      {"sum of many rows", [](V v) { return sum(v[0], {1}); }, {{2100, 257}}},
      {"var of many long rows", [](V v) { return var(v[0], {1}); }, {{265, 4099}}},
      {"max of many long rows", [](V v) { return max(v[0], {1}); }, {{530, 4096}}},
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

TEST_F(CudaReductions, Softmax) {
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

TEST_F(CudaReductions, MatrixProducts) {
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
      {"more batches outside", product, {{5, 2, 7, 9}, {2, 9, 4}}},
      {"batches of either", product, {{3, 1, 5, 7, 9}, {2, 1, 9, 4}}},
      {"one matrix for all", product, {{4, 7, 9}, {9, 5}}},
      {"long sum", product, {{3, 4099}, {4099, 2}}},
      {"long sum, aligned", product, {{70, 4104}, {4104, 72}}, -2, 2, 4},
      {"aligned", product, {{136, 100}, {100, 200}}},
      {"aligned by pairs", product, {{134, 50}, {50, 66}}},
      {"sum of nothing", product, {{3, 0}, {0, 2}}},
      {"nothing", product, {{0, 3}, {3, 2}}},
      {"linear", [](V v) { return linear(v[0], v[1], v[2]); }, {{33, 20}, {130, 20}, {130}}},
      {"linear of a long sum", [](V v) { return linear(v[0], v[1], v[2]); }, {{33, 1030}, {40, 1030}, {40}}},
      {"linear of 3 dimensions", [](V v) { return linear(v[0], v[1], v[2]); }, {{2, 3, 19}, {11, 19}, {11}}},
      {"long sums in batches", product, {{5, 33, 700}, {5, 700, 72}}, -2, 2, 4},
      {"long sums in batches of either", product, {{2, 1, 33, 701}, {3, 701, 72}}, -2, 2, 4},
      {"long sums in batches of three", product, {{3, 1, 5, 33, 704}, {2, 1, 704, 72}}, -2, 2, 4},
      {"linear without bias", [](V v) { return linear(v[0], v[1]); }, {{6, 24}, {16, 24}}},
      {"transposed",
       [](V v) { return matmul(transpose(v[0], 0, 1), transpose(v[1], 0, 1)); },
       {{9, 7}, {5, 9}}},
  });
}

/// The largest error of a product, as a part of the sums of its products' magnitudes.
double error_of(const Tensor& a, const Tensor& b) {
  const auto exact = [](const Tensor& x) { return Variable(x.to(DType::float64)); };
  const auto got = matmul(a.to(kCuda), b.to(kCuda)).tensor().to(Device{}).to_vector<double>(),
             c = matmul(exact(a), exact(b)).tensor().to_vector<double>(),
             size = matmul(abs(exact(a)), abs(exact(b))).tensor().to_vector<double>();
  double most = 0;
  for (std::size_t i = 0; i < c.size(); ++i) most = std::max(most, std::abs(got[i] - c[i]) / size[i]);
  return most;
}

TEST_F(CudaReductions, ProductsAreAccurate) {
  for (const auto& [m, k, n] :
       {std::array<std::int64_t, 3>{128, 8192, 100}, {100, 128, 1024}, {64, 33, 65}}) {
    SCOPED_TRACE(concat(m, "x", k, "x", n));
    const Tensor a = random_tensor({m, k}, {}, -1, 1, 1), b = random_tensor({k, n}, {}, -1, 1, 2);
    set_float32_precision(Precision::highest);
    EXPECT_LT(error_of(a, b), 4e-7);  // a factor of TF32 alone is off by up to 5e-4
    set_float32_precision(Precision::high);
    EXPECT_LT(error_of(a, b), 4e-4);
    EXPECT_LT(error_of(a.to(DType::float16), b.to(DType::float16)), 6e-4);  // one rounding, of the result
  }
}

// Sizes around those of tiles and stages, lines that begin at any word, and what follows a product.
TEST_F(CudaReductions, ProductsByTiles) {
  using matmul_tiles::TileMath;
  const auto seed = std::random_device{}();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 engine(seed);
  const auto any = [&](const std::vector<std::int64_t>& of) { return of[engine() % of.size()]; };
  for (int i = 0; i < 90; ++i) {
    const auto math = std::array{TileMath::float32, TileMath::float32, TileMath::tf32, TileMath::bfloat16,
                                 TileMath::float16}[engine() % 5];
    const bool is_half = math == TileMath::bfloat16 || math == TileMath::float16;
    const std::int64_t of_word = is_half ? 2 : 1;
    const DType dtype = math == TileMath::bfloat16  ? DType::bfloat16
                        : math == TileMath::float16 ? DType::float16
                                                    : DType::float32;
    // Matrices of some calls; of a and b a call may have one, or all calls the same.
    const std::int64_t inner = any({1, 1, 2, 5}), calls = any({1, 1, 3});
    const matmul_tiles::Sizes p{
        any({1, 3, 17, 32, 33, 64, 65, 96, 128, 130}), any({1, 2, 7, 31, 32, 64, 100, 129, 192}),
        any({1, 5, 6, 30, 31, 32, 33, 64, 100, 257, 500, 777, 778, 2048}), inner * calls};
    const std::int64_t k = p.k * of_word;
    const bool ta = !is_half && any({0, 1}) == 1, tb = is_half || any({0, 1}) == 1,
               one_a = any({0, 0, 1}) == 1, same_b = any({0, 0, 1}) == 1, has_bias = any({0, 1}) == 1,
               relu = has_bias && any({0, 1}) == 1, adds = any({0, 0, 1}) == 1;
    const std::int64_t begin = any({0, 1, 2, 4});  // of memory: results and factors lie anywhere
    SCOPED_TRACE(concat(dtype, math == TileMath::tf32 ? " as TF32 " : " ", calls, " times ", inner, " of ",
                        p.m, "x", p.n, "x", k, ta ? " a'" : "", tb ? " b'" : "", one_a ? " one a" : "",
                        same_b ? " same b" : "", has_bias ? " bias" : "", relu ? " relu" : "",
                        adds ? " added" : "", " from ", begin));
    // Results of a call are `calls` matrices apart.
    const Tensor a = randn({calls, one_a ? 1 : inner, ta ? k : p.m, ta ? p.m : k}).to(dtype),
                 b = randn({same_b ? 1 : calls, inner, tb ? p.n : k, tb ? k : p.n}).to(dtype),
                 bias = randn({p.n}), held = randn({inner, calls, p.m, p.n});
    const auto on_gpu = [&](const Tensor& x) {
      const std::int64_t first = begin * (x.dtype() == DType::float32 ? 1 : 2);
      const Tensor part =
          Tensor::empty({first + x.count()}, {x.dtype(), kCuda}).slice(first, first + x.count());
      part.copy_(x.flat());
      return part;
    };
    const Tensor ga = on_gpu(a), gb = on_gpu(b), gbias = on_gpu(bias), to = on_gpu(held);
    if (!adds) to.fill_(std::numeric_limits<double>::quiet_NaN());
    const std::int64_t of_a = p.m * p.k, of_b = p.n * p.k, of_to = p.m * p.n;
    cu::multiply_tiles(kCuda, {.math = math,
                               .sizes = p,
                               .transposed_a = ta,
                               .transposed_b = tb,
                               .a = ga.raw(),
                               .b = gb.raw(),
                               .step_a = {one_a ? 0 : of_a, (one_a ? 1 : inner) * of_a},
                               .step_b = {of_b, same_b ? 0 : inner * of_b},
                               .bias = has_bias ? gbias.data<float>() : nullptr,
                               .beta = adds ? 1.0f : 0.0f,
                               .relu = relu,
                               .to = to.data<float>(),
                               .step_to = {calls * of_to, of_to},
                               .inner = inner});
    const auto exact = [](const Tensor& x) { return Variable(x.to(DType::float64)); };
    const auto product = [&](const Variable& x, const Variable& y) {
      return matmul(ta ? transpose(x, 2, 3) : x, tb ? transpose(y, 2, 3) : y);
    };
    Variable c = product(exact(a), exact(b)), size = product(abs(exact(a)), abs(exact(b))) + 1;
    if (adds) c = c + transpose(exact(held), 0, 1);
    if (has_bias) c = c + exact(bias);
    if (relu) c = tapedeck::relu(c);
    const auto by_call = [](const Variable& x) { return transpose(x, 0, 1).tensor().to_vector<double>(); };
    const auto got = to.to(Device{}).to_vector<double>(), want = by_call(c), scale = by_call(size);
    // Of float32 the product of the smaller parts is left out, up to 2^-20 of each product.
    const double most = math == TileMath::float32 ? 1e-6 : math == TileMath::tf32 ? 1e-3 : 1e-5;
    for (std::size_t j = 0; j < want.size(); ++j) ASSERT_NEAR(got[j], want[j], most * scale[j]) << j;
  }
}

// What matmul() gives to tiles of 16-bit factors, and what begins between words, which it does not.
TEST_F(CudaReductions, ProductsOfHalvesByTiles) {
  const matmul_tiles::Sizes sizes{96, 72, 16384, 2};
  ASSERT_TRUE(matmul_tiles::tiled(sizes, false, true, matmul_tiles::TileMath::bfloat16));
  for (DType dtype : {DType::bfloat16, DType::float16})
    for (std::int64_t begin : {0, 1}) {
      SCOPED_TRACE(concat(dtype, " from ", begin));
      const auto part_of = [&](const Shape& shape) {
        return randn({begin + shape.count()})
            .to(dtype)
            .to(kCuda)
            .slice(begin, begin + shape.count())
            .reshape(shape);
      };
      const Tensor a = part_of({2, 96, 16384}), b = part_of({2, 72, 16384}),
                   out = Tensor::empty({2, 96, 72}, {DType::float32, kCuda});
      cu::matmul(a, Transpose::no, b, Transpose::yes, {}, out);
      cu::add_matmul(a, Transpose::no, b, Transpose::yes, out);
      const auto exact = [](const Tensor& x) { return Variable(x.to(Device{}).to(DType::float64)); };
      const auto got = out.to(Device{}).to_vector<double>(),
                 want = matmul(exact(a), transpose(exact(b), 1, 2)).tensor().to_vector<double>(),
                 size = matmul(abs(exact(a)), transpose(abs(exact(b)), 1, 2)).tensor().to_vector<double>();
      for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], 2 * want[i], 1e-5 * size[i]) << i;
    }
}

TEST_F(CudaReductions, RectifiedProducts) {
  using V = const Variables&;
  for (double slope : {0.0, 0.2}) {
    const auto product = [slope](V v) { return linear(v[0], v[1], v.size() > 2 ? v[2] : Variable(), slope); };
    const auto up = [slope](V v) {
      return conv_transpose2d(v[0], v[1], v.size() > 2 ? v[2] : Variable(), {.stride = 2, .padding = 1},
                              slope);
    };
    const auto down = [slope](V v) { return conv2d(v[0], v[1], v[2], {.stride = 2, .padding = 1}, slope); };
    check_cases({
        {"linear", product, {{33, 20}, {130, 20}, {130}}},
        {"linear of a long sum", product, {{33, 1032}, {40, 1032}, {40}}},
        {"linear of odd sizes", product, {{2, 5, 19}, {11, 19}, {11}}},
        {"linear without bias", product, {{6, 24}, {16, 24}}},
        {"conv_transpose2d", up, {{5, 6, 8, 8}, {6, 12, 4, 4}, {12}}, -2, 2, 4},
        {"conv_transpose2d of odd sizes", up, {{5, 6, 7, 5}, {6, 3, 3, 3}, {3}}, -2, 2, 4},
        {"conv_transpose2d of one image", up, {{6, 7, 5}, {6, 3, 3, 3}, {3}}, -2, 2, 4},
        {"conv_transpose2d without bias", up, {{5, 6, 7, 5}, {6, 3, 3, 3}}, -2, 2, 4},
        {"conv2d", down, {{5, 6, 9, 13}, {7, 6, 3, 3}, {7}}, -2, 2, 4},
        {"no images", up, {{0, 6, 7, 5}, {6, 3, 3, 3}, {3}}},
    });
  }
}

TEST_F(CudaReductions, Normalisation) {
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
        {"rectified",
         [&](V v) {
           const Tensor mean = constant(v[0], 0.25, {6}), var = constant(v[0], 1.5, {6});
           const Tensor batches = Tensor::zeros({}, {.dtype = DType::int64, .device = mean.device()});
           const Variable y = batch_norm(v[0], v[1], v[2], mean, var,
                                         {.training = training, .negative_slope = 0.2, .batches = batches});
           return cat({flatten(y), batches.reshape({1}).to(y.dtype())}, 0);
         },
         {{5, 6, 9, 8}, {6}, {6}},
         -2,
         2,
         4},
        {"rectified to zero",
         [&](V v) {
           return batch_norm(v[0], v[1], v[2], constant(v[0], 0.25, {5}), constant(v[0], 1.5, {5}),
                             {.training = training, .negative_slope = 0});
         },
         {{70, 5, 33, 31}, {5}, {5}},
         -2,
         2,
         8},
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

TEST_F(CudaReductions, PoolingAndResampling) {
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

}  // namespace
}  // namespace tapedeck
