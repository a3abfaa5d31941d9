#include <tapedeck/nn/linear.h>

#include <algorithm>

#include <tapedeck/nn/init.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/matmul.h>
#include <tapedeck/ops/shape.h>

namespace tapedeck::nn {

Linear::Linear(const Options& options, Generator& generator) {
  check(options.in_features >= 1 && options.out_features >= 1, "Linear: in_features ", options.in_features,
        " and out_features ", options.out_features, " are not legal; legal is 1 or more");
  weight = register_parameter("weight", Tensor::empty({options.out_features, options.in_features}));
  const double bound = init::default_bound(weight.shape());
  init::uniform_(weight, -bound, bound, generator);
  if (!options.bias) return;
  bias = register_parameter("bias", Tensor::empty({options.out_features}));
  init::uniform_(bias, -bound, bound, generator);
}

Variable Linear::forward_rectified(const Variable& x, double negative_slope) {
  return negative_slope < 0 ? Variable() : linear(x, weight, bias, negative_slope);
}

std::string Linear::details() const {
  return concat(weight.size(1), " -> ", weight.size(0));
}

Embedding::Embedding(const Options& options, Generator& generator) {
  check(options.num_embeddings >= 1 && options.embedding_dim >= 1, "Embedding: num_embeddings ",
        options.num_embeddings, " and embedding_dim ", options.embedding_dim,
        " are not legal; legal is 1 or more");
  weight = register_parameter("weight", Tensor::empty({options.num_embeddings, options.embedding_dim}));
  init::normal_(weight, 0, 1, generator);
}

Variable Embedding::forward(const Variable& index) {
  return embedding(weight, index);
}

std::string Embedding::details() const {
  return concat(weight.size(0), " rows of ", weight.size(1));
}

Variable Flatten::forward(const Variable& x) {
  return flatten(x, options_.start_dim, options_.end_dim);
}

Variable Unflatten::forward(const Variable& x) {
  check(x.defined() && x.rank() >= 2 && x.size(1) == sizes_.count(), "Unflatten: x has shape ",
        x.defined() ? to_string(x.shape()) : "undefined", "; dimension 1 must be ", sizes_.count(),
        " to become ", sizes_);
  std::vector<std::int64_t> sizes = {x.size(0)};
  sizes.insert(sizes.end(), sizes_.begin(), sizes_.end());
  sizes.insert(sizes.end(), x.shape().begin() + 2, x.shape().end());
  return reshape(x, sizes);
}

}  // namespace tapedeck::nn
