#include "norm_definition.h"

#include <gmock/gmock.h>

namespace tapedeck {
namespace {

using namespace test;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(GroupNorm, EqualsItsDefinition) {
  for (const Shape& shape : kShapes) {
    for (std::int64_t groups : {1, 2, 3, 6}) {
      const std::int64_t c = shape[1];
      const Tensor x = (randn(shape, kDouble) * 2.0 + 5.0).tensor(), gy = randn(shape, kDouble);
      const Tensor w = randn({c}, kDouble), b = randn({c}, kDouble);
      Reference reference{{}, channels(shape), {}, {}, {}, {}, {}, {}};
      for (std::int64_t i = 0; i < shape.count(); ++i) {
        const std::int64_t sample = i / (shape.count() / shape[0]);
        const auto channel = static_cast<std::int64_t>(reference.parameter[static_cast<std::size_t>(i)]);
        reference.set.push_back(static_cast<std::size_t>(sample * groups + channel / (c / groups)));
      }
      expect_norm(reference, x, w, b, gy,
                  [&](const Variable& in, const Variable& weight, const Variable& bias) {
                    return group_norm(in, groups, weight, bias, kEps);
                  });
    }
  }
}

TEST(LayerNorm, EqualsItsDefinition) {
  for (const Shape& shape : {Shape{4, 5, 6}, Shape{3, 7}, Shape{2, 3, 4, 5}}) {
    for (int normalized = 1; normalized <= shape.rank(); ++normalized) {
      const Shape inner{std::span(shape.end() - normalized, shape.end())};
      const Tensor x = (randn(shape, kDouble) * 2.0 + 5.0).tensor(), gy = randn(shape, kDouble);
      const Tensor w = randn(inner, kDouble), b = randn(inner, kDouble);
      Reference reference;
      for (std::int64_t i = 0; i < shape.count(); ++i) {
        reference.set.push_back(static_cast<std::size_t>(i / inner.count()));
        reference.parameter.push_back(static_cast<std::size_t>(i % inner.count()));
      }
      expect_norm(reference, x, w, b, gy,
                  [&](const Variable& in, const Variable& weight, const Variable& bias) {
                    return layer_norm(in, inner, weight, bias, kEps);
                  });
    }
  }
}

TEST(GroupNorm, ManySamplesEmptyBatchesAndThreadCounts) {
  const int threads = num_threads();
  for (const Shape& shape : {Shape{300, 12, 5, 3}, Shape{5000, 24}}) {
    for (Layout layout : layouts(shape)) {
      const Tensor x = randn(shape).to(layout), gy = randn(shape).to(layout);
      std::vector<float> results[2];
      for (int i : {0, 1}) {
        set_num_threads(i == 0 ? 1 : 5);
        const Variable leaf = Variable::parameter(x), w = Variable::parameter(Tensor::ones({shape[1]}));
        Tape tape;
        const Variable y = group_norm(leaf, 4, w);
        tape.backward(y, {.gradient = gy});
        for (const Variable& v : {y, leaf.grad(), w.grad()}) {
          const auto list = v.tensor().to_vector<float>();
          results[i].insert(results[i].end(), list.begin(), list.end());
        }
      }
      EXPECT_EQ(results[0], results[1]);
    }
  }
  set_num_threads(threads);
  const Variable w = Variable::parameter(Tensor::ones({4}));
  Tape tape;
  const Variable y = group_norm(Tensor::zeros({0, 4, 2}), 2, w);
  tape.backward(y, {.gradient = Tensor::zeros({0, 4, 2})});
  EXPECT_THAT(values(w.grad()), Each(0));
}

TEST(GroupNorm, FirstAndSecondDerivatives) {
  const Variable w = Variable::parameter(randn({4}, kDouble)), b = Variable::parameter(randn({4}, kDouble));
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    const Variable x = Variable::parameter(randn({2, 4, 2, 3}, kDouble).to(layout));
    const auto f = [](const Variables& in) { return group_norm(in[0], 2, in[1], in[2], kEps); };
    gradcheck(f, {x, w, b});
    gradgradcheck(f, {x, w, b});
    const auto plain = [](const Variables& in) { return layer_norm(in[0], {4, 2, 3}); };
    gradcheck(plain, {x});
    gradgradcheck(plain, {x});
  }
  const Variable x = Variable::parameter(randn({3, 5, 4}, kDouble));
  const auto layer = [](const Variables& in) { return layer_norm(in[0], {4}, in[1], in[2], kEps); };
  gradcheck(layer, {x, w, b});
  gradgradcheck(layer, {x, w, b});
}

TEST(GroupNorm, ErrorsNameValuesAndRanges) {
  const Variable x = Tensor::zeros({2, 6, 4});
  const auto error = [](auto f, const char* text) { EXPECT_THAT(f, ThrowsMessage<Error>(HasSubstr(text))); };
  error([&] { group_norm(x, 4); },
        "group_norm: groups 4 for the 6 channels of x [2,6,4]; legal is a divisor");
  error([&] { group_norm(x, 0); }, "group_norm: groups 0");
  error([&] { group_norm(x, 2, Tensor::ones({2})); },
        "group_norm: weight has shape [2]; legal for x [2,6,4] is [6]");
  error([&] { group_norm(Tensor::zeros({3}), 1); }, "x has shape [3]; legal is rank 2 or more");
  error([&] { layer_norm(x, {6}); }, "layer_norm: normalized_shape [6] is not what x [2,6,4] ends with");
  error([&] { layer_norm(x, {4}, {}, Tensor::ones({6})); },
        "layer_norm: bias has shape [6]; legal for x [2,6,4] is [4]");
  error([&] { layer_norm(x, {4}, {}, {}, -1); }, "layer_norm: eps -1 is not legal; legal is 0 or more");
  error(
      [&] {
        layer_norm(Tensor::zeros({2, 4}, {.dtype = DType::int64}), {4});
      },
      "x is int64; legal are the floating types");
}

}  // namespace
}  // namespace tapedeck
