#include <tapedeck/nn/data/resize.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace tapedeck::data {

namespace {

/// The weights of one axis: out[i] = sum over k < taps of weights[i*taps + k] * in[first[i] + k].
struct Weights {
  std::int64_t taps;
  std::vector<std::int64_t> first;
  std::vector<float> weights;
};

/// Weight j of output i is proportional to max(0, 1 - |j + 1/2 - centre| / reach), with
/// centre = (i + 1/2) * in / out and reach = max(1, in / out).
Weights weights_of(std::int64_t in, std::int64_t out) {
  const double scale = static_cast<double>(in) / static_cast<double>(out), reach = std::max(1.0, scale);
  Weights all;
  all.taps = std::min(in, static_cast<std::int64_t>(std::ceil(2 * reach)) + 1);
  std::vector<double> row(static_cast<std::size_t>(all.taps));
  for (std::int64_t i = 0; i < out; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto leftmost = static_cast<std::int64_t>(std::floor(centre - reach));
    const std::int64_t first = std::clamp<std::int64_t>(leftmost, 0, in - all.taps);
    double sum = 0;
    for (std::size_t k = 0; k < row.size(); ++k) {
      const double position = static_cast<double>(first) + static_cast<double>(k) + 0.5;
      row[k] = std::max(0.0, 1.0 - std::abs(position - centre) / reach);
      sum += row[k];
    }
    all.first.push_back(first);
    for (const double weight : row) all.weights.push_back(static_cast<float>(weight / sum));
  }
  return all;
}

/// [c,h,w] to [c,out,w].
Tensor resize_rows(const Tensor& x, std::int64_t out) {
  const std::int64_t c = x.size(0), h = x.size(1), w = x.size(2);
  const Weights all = weights_of(h, out);
  Tensor y = Tensor::zeros({c, out, w});
  for (std::int64_t row = 0; row < c * out; ++row) {
    const std::int64_t i = row % out;
    const float* weights = all.weights.data() + i * all.taps;
    const float* from = x.data<float>() + (row / out * h + all.first[static_cast<std::size_t>(i)]) * w;
    float* to = y.data<float>() + row * w;
    for (std::int64_t k = 0; k < all.taps; ++k) {
      for (std::int64_t e = 0; e < w; ++e) to[e] += weights[k] * from[k * w + e];
    }
  }
  return y;
}

/// [c,h,w] to [c,h,out].
Tensor resize_columns(const Tensor& x, std::int64_t out) {
  const std::int64_t rows = x.size(0) * x.size(1), w = x.size(2);
  const Weights all = weights_of(w, out);
  Tensor y = Tensor::empty({x.size(0), x.size(1), out});
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* from = x.data<float>() + row * w;
    for (std::int64_t i = 0; i < out; ++i) {
      const float* weights = all.weights.data() + i * all.taps;
      const float* window = from + all.first[static_cast<std::size_t>(i)];
      float sum = 0;
      for (std::int64_t k = 0; k < all.taps; ++k) sum += weights[k] * window[k];
      y.data<float>()[row * out + i] = sum;
    }
  }
  return y;
}

void check_image(std::string_view op, const Tensor& image) {
  check(image.defined() && image.rank() == 3 && image.dtype() == DType::float32 && image.device().is_cpu() &&
            image.count() > 0,
        op, ": image is ", image, "; legal is float32 [c,h,w] on cpu, not empty");
}

}  // namespace

Tensor resize(const Tensor& image, Size2 size) {
  check_image("resize", image);
  check(size.h >= 1 && size.w >= 1, "resize: size ", size.h, " x ", size.w,
        " is not legal; legal is 1 or more");
  Tensor out = image;
  if (size.h != image.size(1)) out = resize_rows(out, size.h);
  if (size.w != image.size(2)) out = resize_columns(out, size.w);
  return out;
}

Tensor center_crop(const Tensor& image, Size2 size) {
  check_image("center_crop", image);
  const std::int64_t c = image.size(0), h = image.size(1), w = image.size(2);
  check(size.h >= 1 && size.w >= 1 && size.h <= h && size.w <= w, "center_crop: size ", size.h, " x ", size.w,
        " is not legal; legal is 1 x 1 to ", h, " x ", w);
  if (size == Size2(h, w)) return image;
  const std::int64_t top = (h - size.h) / 2, left = (w - size.w) / 2;
  Tensor out = Tensor::empty({c, size.h, size.w});
  for (std::int64_t k = 0; k < c * size.h; ++k) {
    const float* row = image.data<float>() + (k / size.h * h + top + k % size.h) * w + left;
    std::copy_n(row, size.w, out.data<float>() + k * size.w);
  }
  return out;
}

Tensor resize_and_crop(const Tensor& image, Size2 size) {
  check_image("resize_and_crop", image);
  check(size.h >= 1 && size.w >= 1, "resize_and_crop: size ", size.h, " x ", size.w,
        " is not legal; legal is 1 or more");
  const auto h = static_cast<double>(image.size(1)), w = static_cast<double>(image.size(2));
  const double scale = std::max(static_cast<double>(size.h) / h, static_cast<double>(size.w) / w);
  const Size2 covering(std::max<std::int64_t>(size.h, std::llround(h * scale)),
                       std::max<std::int64_t>(size.w, std::llround(w * scale)));
  return center_crop(resize(image, covering), size);
}

}  // namespace tapedeck::data
