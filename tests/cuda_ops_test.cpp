// Elementwise ops, shapes and indices on a GPU.
#include "cuda_op_cases.h"

namespace tapedeck {
namespace {

using namespace test;

class CudaOps : public CudaTest {};

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

TEST_F(CudaOps, Shapes) {
  using V = const Variables&;
  check_cases({
      {"reshape",
       [](V v) {
         return reshape(v[0], {6, -1});
       },
       {{2, 3, 5, 7}}},
      {"flatten", [](V v) { return flatten(v[0], 1); }, {{2, 3, 5, 7}}},
      {"unsqueeze", [](V v) { return unsqueeze(v[0], 2) * 2; }, {{2, 3, 7}}},
      {"squeeze", [](V v) { return squeeze(v[0], 1) * 2; }, {{2, 1, 5, 7}}},
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
      {"eq", [](const Variable& x) { return eq(x, slice(x, 1, 0, 1)); }},
      {"ne", [](const Variable& x) { return ne(x, slice(x, 1, 0, 1)); }},
      {"lt", [](const Variable& x) { return lt(x, slice(x, 1, 0, 1)); }},
      {"le", [](const Variable& x) { return le(x, slice(x, 1, 0, 1)); }},
      {"gt", [](const Variable& x) { return gt(x, slice(x, 1, 0, 1)); }},
      {"ge", [](const Variable& x) { return ge(x, slice(x, 1, 0, 1)); }},
      {"lt 4", [](const Variable& x) { return lt(x, 4); }},
      {"add", [](const Variable& x) { return x + x; }},
  };
  Share share(5);
  for (const auto& [name, f] : functions) {
    for (DType dtype :
         {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int64, DType::uint8}) {
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        SCOPED_TRACE(concat(name, " ", dtype, " ", layout));
        if (!share.takes_next()) continue;
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

}  // namespace
}  // namespace tapedeck
