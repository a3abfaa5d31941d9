// Everything that shares work among threads, once each with four of them on sizes that no split divides
// evenly: results are those of one thread to the bit, and ThreadSanitizer, under which this program runs
// too, sees every parallel loop.
#include <tapedeck/tapedeck.h>

#include <functional>
#include <memory>

#include <gtest/gtest.h>
#include <tapedeck/core/finite.h>
#include <tapedeck/ops/conv/kernels.h>

#include "conv_cases.h"

namespace tapedeck {
namespace {

using Function = std::function<Variable(const Variables&)>;

class Threads : public ::testing::Test {
 protected:
  ~Threads() override { set_num_threads(before_); }

  /// What `f` makes is the same on one thread and on four.
  void expect_same(const std::string& name, const std::function<Tensors()>& f) const {
    set_num_threads(1);
    const Tensors one = f();
    set_num_threads(4);
    const Tensors four = f();
    ASSERT_EQ(one.size(), four.size()) << name;
    for (std::size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(test::same_bits(one[i], four[i])) << name << " " << i;
  }

  /// The same for f of random inputs and its gradients for all of them.
  void expect_same(const std::string& name, const Function& f, const std::vector<Shape>& shapes,
                   const TensorOptions& options = {}) const {
    expect_same(name, [&] {
      Generator random(5);
      Variables inputs;
      for (const Shape& shape : shapes) {
        inputs.push_back(Variable::parameter(randn(shape, {.dtype = options.dtype}, random)));
        if (options.layout == Layout::nhwc && shape.rank() == 4)
          inputs.back().set_tensor(inputs.back().tensor().to(Layout::nhwc));
      }
      Tape tape;
      const Variable y = f(inputs);
      Tensors results{y.tensor()};
      const Variable cotangent = randn(y.shape(), {.dtype = y.dtype()}, random).to(y.tensor().layout());
      for (const Variable& g : tape.gradient(y, inputs, {.gradient = cotangent}))
        results.push_back(g.tensor());
      return results;
    });
  }

 private:
  int before_ = num_threads();
};

constexpr std::int64_t kRows = 331, kColumns = 607;  // more than the grain of every loop over elements
const Shape kMatrix{kRows, kColumns}, kImages{5, 7, 67, 71};

TEST_F(Threads, CopiesAndNumbers) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    expect_same("copy", [&] {
      Generator random(2);
      const Tensor x = randn(kImages, {}, random);
      const Tensor moved = x.to(Layout::nhwc).to(dtype);
      EXPECT_TRUE(all_finite(moved));
      return Tensors{moved, moved.to(Layout::nchw), x.clone(), Tensor::full(kMatrix, 3, {.dtype = dtype})};
    });
    expect_same("random", [&] {
      Generator random(3);
      const Tensor order = randperm(40009, random), whole = Tensor::empty(kMatrix, {.dtype = DType::int64});
      randint_(whole, -5, 1000, random);
      return Tensors{randn(kMatrix, {.dtype = dtype}, random), rand(kMatrix, {.dtype = dtype}, random), order,
                     whole};
    });
  }
}

TEST_F(Threads, Elementwise) {
  for (const DType dtype : {DType::float32, DType::float64, DType::float16}) {
    const TensorOptions options{.dtype = dtype};
    expect_same(
        "dense", [](const Variables& v) { return v[0] * v[1] + exp(v[0]); }, {kMatrix, kMatrix}, options);
    expect_same(
        "broadcast", [](const Variables& v) { return v[0] / (v[1] * v[1] + 1.0) - v[2]; },
        {kMatrix, {kColumns}, {kRows, 1}}, options);
    expect_same(
        "activations", [](const Variables& v) { return relu(gelu(v[0]) + sigmoid(v[0])) * 0.5 + 1.0; },
        {kMatrix}, options);
    expect_same(
        "choices", [](const Variables& v) { return where(lt(v[0], v[1]), v[0] * 2.0, maximum(v[0], v[1])); },
        {kMatrix, {kColumns}}, options);
    expect_same(
        "loss", [](const Variables& v) { return nn::huber_loss(v[0], v[1]); }, {kMatrix, kMatrix}, options);
    expect_same(
        "dropout",
        [](const Variables& v) {
          Generator random(4);
          return dropout(v[0], 0.3, true, random);
        },
        {kMatrix}, options);
  }
}

TEST_F(Threads, ReductionsAndSoftmax) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const std::vector<int>& dims : {std::vector<int>{}, {0}, {1}}) {
      const TensorOptions options{.dtype = dtype};
      expect_same(
          "sum and mean", [&](const Variables& v) { return sum(v[0], dims) + mean(v[0], dims); }, {kMatrix},
          options);
      expect_same(
          "max and var", [&](const Variables& v) { return max(v[0], dims) + var(v[0], dims); }, {kMatrix},
          options);
      expect_same(
          "logsumexp", [&](const Variables& v) { return logsumexp(v[0], dims); }, {kMatrix}, options);
    }
    for (const int dim : {0, 1}) {
      expect_same("softmax", [&](const Variables& v) { return softmax(v[0], dim) + log_softmax(v[0], dim); },
                  {kMatrix}, {.dtype = dtype});
    }
  }
  for (const int dim : {0, 1}) {
    expect_same("short lines", [=](const Variables& v) { return sum(v[0], {dim}) + logsumexp(v[0], {dim}); },
                {{70001, 3}});
  }
  expect_same("integers", [] {
    const Tensor x = Tensor::empty(kMatrix, {.dtype = DType::int64});
    Generator random(6);
    randint_(x, -9, 9, random);
    return Tensors{sum(x).tensor(), sum(x, {0}).tensor(), sum(x, {1}).tensor(), lt(x, 3).tensor()};
  });
  expect_same("argmax", [] {
    Generator random(6);
    const Variable x = randn(kMatrix, {}, random);
    return Tensors{argmax(x).tensor(), argmax(x, 0).tensor(), argmax(x, 1).tensor()};
  });
  expect_same("cross entropy",
              [](const Variables& v) {
                const Tensor labels = Tensor::empty({kRows}, {.dtype = DType::int64});
                Generator random(8);
                randint_(labels, 0, kColumns, random);
                return nn::cross_entropy(v[0], labels);
              },
              {kMatrix});
}

TEST_F(Threads, ShapesAndIndices) {
  const Tensor rows = Tensor::empty({211}, {.dtype = DType::int64});
  Generator random(9);
  randint_(rows, 0, kRows, random);
  expect_same("views",
              [](const Variables& v) {
                return cat({permute(v[0], {1, 0}), slice(v[1], 1, 1, 332)}, 0);
              },
              {kMatrix, {13, 400}});
  expect_same("pad", [](const Variables& v) { return pad(v[0], {1, 2, 3, 4}); }, {kMatrix});
  expect_same("index_select", [&](const Variables& v) { return index_select(v[0], 0, rows); }, {kMatrix});
  expect_same("index_select of columns", [&](const Variables& v) { return index_select(v[0], 1, rows); },
              {kMatrix});
  expect_same("index_add", [&](const Variables& v) { return index_add(v[0], 0, rows, kRows); },
              {{211, kColumns}});
  expect_same("gather",
              [&](const Variables& v) {
                return gather(v[0], 0, broadcast_to(reshape(rows, {211, 1}), {211, kColumns}));
              },
              {kMatrix});
  expect_same("pixel_shuffle", [](const Variables& v) { return pixel_shuffle(v[0], 2); }, {{3, 12, 51, 53}});
}

TEST_F(Threads, Products) {
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    expect_same("linear", [](const Variables& v) { return linear(v[0], v[1], v[2]); },
                {{515, 259}, {387, 259}, {387}}, {.dtype = dtype});
    expect_same("matmul", [](const Variables& v) { return matmul(v[0], v[1]); }, {{29, 31, 37}, {29, 37, 41}},
                {.dtype = dtype});
  }
}

TEST_F(Threads, ImagesInBothLayouts) {
  for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
    const TensorOptions options{.layout = layout};
    expect_same(
        "batch_norm",
        [](const Variables& v) { return batch_norm(v[0], v[1], v[2], {}, {}, {.training = true}); },
        {kImages, {7}, {7}}, options);
    expect_same(
        "group_norm", [](const Variables& v) { return group_norm(v[0], 3, v[1], v[2]); },
        {{5, 6, 67, 71}, {6}, {6}}, options);
    expect_same(
        "max_pool2d",
        [](const Variables& v) { return max_pool2d(v[0], {.kernel_size = 3, .stride = 2, .padding = 1}); },
        {kImages}, options);
    expect_same(
        "avg_pool2d",
        [](const Variables& v) {
          return avg_pool2d(v[0], {.kernel_size = {3, 2}});
        },
        {kImages}, options);
    expect_same(
        "upsample",
        [](const Variables& v) {
          return upsample_bilinear2d(v[0], {73, 91});
        },
        {{3, 5, 31, 37}}, options);
  }
  expect_same("layer_norm", [](const Variables& v) { return layer_norm(v[0], {kColumns}, v[1], v[2]); },
              {kMatrix, {kColumns}, {kColumns}});
}

TEST_F(Threads, Convolutions) {
  for (const test::LayerCase& c : test::kLayerCases) {
    for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
      for (const DType dtype : {DType::float32, DType::bfloat16}) {
        expect_same(c.name, [&] {
          const test::Results r = test::run(c, layout, dtype);
          return Tensors{r.y, r.gx, r.gw, r.gb};
        });
      }
    }
  }
}

TEST_F(Threads, EveryConvolutionKernel) {
  const test::LayerCase small{
      "small", {3, 10, 9, 11}, {10, 6, 3, 4}, {.stride = {2, 1}, .padding = 1, .groups = 2}};
  for (const auto algorithm : {ConvAlgorithm::reference, ConvAlgorithm::planes, ConvAlgorithm::windows}) {
    set_conv_algorithm(algorithm);
    for (const DType dtype : {DType::float32, DType::float64}) {
      expect_same(to_string(algorithm), [&] {
        const test::Results r = test::run(small, Layout::nchw, dtype);
        return Tensors{r.y, r.gx, r.gw, r.gb};
      });
    }
  }
  set_conv_algorithm(ConvAlgorithm::windows);
  const test::LayerCase large[] = {{"many images", {17, 33, 40, 41}, {33, 5, 3, 3}, {}},
                                   {"large depthwise", {5, 65, 33, 31}, {65, 1, 3, 3}, {.groups = 65}}};
  for (const test::LayerCase& c : large) {
    expect_same(c.name, [&] {
      const test::Results r = test::run(c, Layout::nchw, DType::float32);
      return Tensors{r.y, r.gx, r.gw, r.gb};
    });
  }
  set_conv_algorithm(ConvAlgorithm::automatic);
}

template <class O>
Tensors optimized(const typename O::Options& options) {
  Generator random(7);
  const Variable p = Variable::parameter(randn({40009}, {}, random)),
                 q = Variable::parameter(randn({9}, {}, random));
  O optimizer(Variables{p, q}, options);
  optim::ExponentialMovingAverage average({p, q}, {.decay = 0.5});
  Tensors results;
  for (int t = 0; t < 2; ++t) {
    for (const Variable& v : {p, q}) v.set_grad(randn(v.shape(), {}, random));
    results.push_back(optim::clip_grad_norm({p, q}, 1));
    optim::clip_grad_value({p, q}, 0.01);
    optimizer.step();
    average.update();
  }
  for (const auto& [name, tensor] : average.state_dict()) results.push_back(tensor);
  return results;
}

TEST_F(Threads, Optimizers) {
  expect_same("SGD", [] { return optimized<optim::SGD>({.lr = 0.1, .momentum = 0.9}); });
  expect_same("AdamW", [] { return optimized<optim::AdamW>({.lr = 0.1, .amsgrad = true}); });
  expect_same("RMSprop", [] { return optimized<optim::RMSprop>({.lr = 0.1, .centered = true}); });
}

/// What train_decoder does: batches come from a loader's threads while kernels use the pool's.
TEST_F(Threads, ADecoderTrainsWhileALoaderReadsAhead) {
  expect_same("decoder", [] {
    manual_seed(3);
    nn::Sequential decoder(
        nn::Linear({.in_features = 9, .out_features = 8 * 4 * 4}), nn::Unflatten({8, 4, 4}),
        nn::ConvTranspose2d(
            {.in_channels = 8, .out_channels = 7, .kernel_size = 4, .stride = 2, .padding = 1}),
        nn::BatchNorm2d({.num_features = 7}), nn::ReLU(),
        nn::ConvTranspose2d(
            {.in_channels = 7, .out_channels = 3, .kernel_size = 4, .stride = 2, .padding = 1}),
        nn::Sigmoid());
    const Variable codes = Variable::parameter(randn({40, 9}));
    Variables parameters = decoder.parameters();
    parameters.push_back(codes);
    optim::Adam optimizer(parameters, {.lr = 1e-2});
    data::DataLoader loader(data::in_memory(data::Sprites({.count = 40, .size = 16})),
                            {.batch_size = 7, .shuffle = true, .workers = 2});
    Tensors losses;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const data::Batch& batch : loader) {
        optimizer.zero_grad();
        Tape tape;
        const Variable loss = nn::mse_loss(decoder(embedding(codes, batch.indices)), batch.images);
        tape.backward(loss);
        optimizer.step();
        losses.push_back(loss.tensor());
      }
    }
    return losses;
  });
}

}  // namespace
}  // namespace tapedeck
