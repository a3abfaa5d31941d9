// Linear layers, tables of vectors, and changes of shape.
#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/nn/module.h>

namespace tapedeck::nn {

/// y = x W^T + b: x [..., in_features], weight [out_features, in_features], bias [out_features].
class Linear final : public Module {
 public:
  struct Options {
    std::int64_t in_features = 0, out_features = 0;
    bool bias = true;
  };
  explicit Linear(const Options& options, Generator& generator = default_generator());
  Variable forward(const Variable& x) override { return forward_rectified(x, 1); }
  const char* kind() const override { return "Linear"; }
  std::string details() const override;

  Variable weight, bias;  ///< bias is undefined without one

 protected:
  bool can_rectify() const override { return true; }
  Variable forward_rectified(const Variable& x, double negative_slope) override;
};

/// Rows of a table [num_embeddings, embedding_dim] by an int64 index of any shape:
/// [index shape..., embedding_dim].
class Embedding final : public Module {
 public:
  struct Options {
    std::int64_t num_embeddings = 0, embedding_dim = 0;
  };
  explicit Embedding(const Options& options, Generator& generator = default_generator());
  Variable forward(const Variable& index) override;
  const char* kind() const override { return "Embedding"; }
  std::string details() const override;

  Variable weight;
};

/// Dimensions start_dim to end_dim, both included, as one; by default all but the batch.
class Flatten final : public Module {
 public:
  struct Options {
    int start_dim = 1, end_dim = -1;
  };
  Flatten() : Flatten(Options{}) {}
  explicit Flatten(const Options& options) : options_(options) {}
  Variable forward(const Variable& x) override;
  const char* kind() const override { return "Flatten"; }

 private:
  Options options_;
};

/// Dimension 1 as several: [n, c * h * w] becomes [n, c, h, w] with nn::Unflatten({c, h, w}).
class Unflatten final : public Module {
 public:
  explicit Unflatten(const Shape& sizes) : sizes_(sizes) {}
  Variable forward(const Variable& x) override;
  const char* kind() const override { return "Unflatten"; }
  std::string details() const override { return to_string(sizes_); }

 private:
  Shape sizes_;
};

/// y = x.
class Identity final : public Module {
 public:
  Variable forward(const Variable& x) override { return x; }
  const char* kind() const override { return "Identity"; }
};

}  // namespace tapedeck::nn
