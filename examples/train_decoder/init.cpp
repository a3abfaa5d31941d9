#include "init.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace train_decoder {

using namespace tapedeck;

namespace {

/// The rows of `matrix` made orthonormal (modified Gram-Schmidt); rows that depend on those before
/// become zero.
void orthonormalise_rows(const Tensor& matrix) {
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
  float* data = matrix.data<float>();
  const auto dot = [&](const float* a, const float* b) {
    double sum = 0;
    for (std::int64_t k = 0; k < columns; ++k) sum += static_cast<double>(a[k]) * static_cast<double>(b[k]);
    return sum;
  };
  for (std::int64_t i = 0; i < rows; ++i) {
    float* row = data + i * columns;
    const double before = dot(row, row);
    for (std::int64_t j = 0; j < i; ++j) {
      const float* other = data + j * columns;
      const float along = static_cast<float>(dot(row, other));
      for (std::int64_t k = 0; k < columns; ++k) row[k] -= along * other[k];
    }
    const double rest = dot(row, row);
    const float scale = rest > 1e-10 * before ? static_cast<float>(1 / std::sqrt(rest)) : 0;
    for (std::int64_t k = 0; k < columns; ++k) row[k] *= scale;
  }
}

}  // namespace

Tensor principal_codes(const data::Dataset& dataset, std::int64_t latent, double stddev) {
  NoTape no_tape;
  const std::int64_t n = dataset.size(), pixels = dataset.image_shape().count();
  const std::int64_t components = std::min({latent, n, pixels});
  Variable x = data::in_memory(dataset).images().reshape({n, pixels});
  x = x - mean(x, {0}, true);
  // Randomised subspace iteration (Halko, Martinsson, Tropp 2011): the rows of (X^T X O)^T, for a random
  // O, span nearly the leading principal components.
  const Variable sketch = matmul(x, randn({pixels, components}));
  const Tensor basis = matmul(transpose(sketch, 0, 1), x).tensor();
  orthonormalise_rows(basis);
  Variable codes = matmul(x, transpose(basis, 0, 1));
  const double spread = std::sqrt(mean(square(codes)).item());
  codes = codes * (spread > 0 ? stddev / spread : 0);
  if (components < latent) {
    codes = cat({codes, Tensor::zeros({n, latent - components})}, 1);
  }
  return (codes + Variable(randn({n, latent})) * (0.01 * stddev)).tensor();  // equal images differ
}

void start_at_mean_colour(const nn::Sequential& decoder, const data::Dataset& dataset) {
  const std::int64_t channels = dataset.image_shape()[0], seen = std::min<std::int64_t>(dataset.size(), 64);
  Variable bias;
  for (const auto& [name, parameter] : decoder.named_parameters()) {
    if (name.ends_with(".bias")) bias = parameter;
  }
  if (!bias.defined() || bias.shape() != Shape{channels}) return;
  NoTape no_tape;
  Variables images;
  for (std::int64_t i = 0; i < seen; ++i) images.emplace_back(dataset.get(i * dataset.size() / seen));
  Variable colour = mean(stack(images, 0), {0, 2, 3});
  if (std::string_view(decoder[decoder.size() - 1].kind()) == "Sigmoid") {
    colour = clamp(colour, 0.02, 0.98);
    colour = log(colour / (1.0 - colour));
  }
  bias.tensor().copy_(colour.tensor());
}

}  // namespace train_decoder
