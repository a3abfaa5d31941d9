// Images as the convolution kernels read them: the channels of a pixel side by side.
#pragma once

#include <algorithm>
#include <vector>

#include <tapedeck/core/parallel.h>
#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/micro/kernels.h>

namespace tapedeck::cpu {

/// Images as kernels read them, the channels of a pixel side by side: pixel (n,h,w) is at
/// data + n*image_step + h*h_step + w*w_step.
template <class T>
struct Pixels {
  const T* data = nullptr;
  std::int64_t image_step = 0, h_step = 0, w_step = 0;
};

/// The steps of a tensor [n,c,h,w] that is nhwc already.
template <class T>
Pixels<T> pixels_of(const Tensor& nhwc) {
  const std::int64_t c = nhwc.size(1), h = nhwc.size(2), w = nhwc.size(3);
  return {nhwc.data<T>(), h * w * c, w * c, c};
}

/// Copies images [begin, end) of a tensor of either layout to `to`, whose steps are those of `like`; channels
/// c to `padded` become zeros.
template <class T>
void copy_pixels(const Tensor& images, std::int64_t begin, std::int64_t end, const Pixels<T>& like,
                 std::int64_t padded, T* to) {
  const std::int64_t c = images.size(1), h = images.size(2), w = images.size(3), count = c * h * w;
  const T* from = images.data<T>();
  const bool planar = images.layout() == Layout::nchw;
  const auto& kernels = micro::kernels<T>();
  // Rows of an image that are copied at once: whole planes have equal steps in both axes.
  const bool whole = like.h_step == w * like.w_step;
  const std::int64_t band = whole ? std::min<std::int64_t>(h, (1023 + w) / w) : 1,
                     bands = (h + band - 1) / band;
  parallel_for((end - begin) * bands, 1 + (1 << 14) / (c * band * w),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) {
                   const std::int64_t n = i / bands, row = i % bands * band, rows = std::min(band, h - row);
                   T* out = to + n * like.image_step + row * like.h_step;
                   const T* in = from + (begin + n) * count + row * w * (planar ? 1 : c);
                   if (planar) {
                     kernels.transpose({in, h * w, c, rows * w, out, like.w_step, nullptr});
                   }
                   for (std::int64_t p = 0; p < rows * w; ++p) {
                     T* pixel = out + p * like.w_step;
                     if (!planar) std::copy(in + p * c, in + (p + 1) * c, pixel);
                     std::fill(pixel + c, pixel + padded, T(0));
                   }
                 }
               });
}

/// Copies rows [row, row + rows) of image n of a tensor of either layout to `to`, pixel by pixel.
template <class T>
void copy_rows(const Tensor& images, std::int64_t n, std::int64_t row, std::int64_t rows, T* to) {
  const std::int64_t c = images.size(1), h = images.size(2), w = images.size(3);
  const T* image = images.data<T>() + n * c * h * w;
  if (images.layout() == Layout::nhwc) {
    std::copy_n(image + row * w * c, rows * w * c, to);
  } else {
    micro::kernels<T>().transpose({image + row * w, h * w, c, rows * w, to, c, nullptr});
  }
}

/// The lines of memory that the same copy reads, for kernels to ask for before.
template <class T>
void lines_of_rows(const Tensor& images, std::int64_t n, std::int64_t row, std::int64_t rows,
                   std::vector<const void*>& to) {
  const std::int64_t c = images.size(1), h = images.size(2), w = images.size(3);
  const T* image = images.data<T>() + n * c * h * w;
  const bool planar = images.layout() == Layout::nchw;
  const std::int64_t runs = planar ? c : 1, run = rows * w * (planar ? 1 : c);
  for (std::int64_t i = 0; i < runs; ++i) {
    const T* begin = image + i * h * w + row * w * (planar ? 1 : c);
    for (std::int64_t k = 0; k < run; k += 64 / static_cast<std::int64_t>(sizeof(T))) to.push_back(begin + k);
  }
}

/// The same for groups of `read` channels, of which `lanes` channels of another tensor each read all: channel
/// (f, t), f < read, of a copied pixel of `pixel` elements is channel f of the group of lane t. Lanes are
/// padded with zeros to pixel/read.
template <class T>
void copy_for_lanes(const Tensor& images, std::int64_t begin, std::int64_t end, const Pixels<T>& like,
                    std::int64_t read, std::int64_t lanes, std::int64_t pixel, T* to) {
  const std::int64_t c = images.size(1), h = images.size(2), w = images.size(3), count = c * h * w;
  const std::int64_t all = c / read * lanes, width = pixel / read;
  const T* from = images.data<T>();
  const bool planar = images.layout() == Layout::nchw;
  const std::int64_t channel_step = planar ? h * w : 1, pixel_step = planar ? 1 : c;
  parallel_for((end - begin) * h, 1 + (1 << 14) / (pixel * w), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t n = i / h, row = i % h;
      const T* in = from + (begin + n) * count + row * w * pixel_step;
      T* out = to + n * like.image_step + row * like.h_step;
      for (std::int64_t channel = 0; channel < pixel; ++channel) {
        const std::int64_t f = channel / width, t = channel % width;
        const T* source = in + (t / lanes * read + f) * channel_step;
        for (std::int64_t p = 0; p < w; ++p) {
          out[p * like.w_step + channel] = t < all ? source[p * pixel_step] : T(0);
        }
      }
    }
  });
}

}  // namespace tapedeck::cpu
