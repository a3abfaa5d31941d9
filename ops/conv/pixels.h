// Images as the convolution kernels read them: the channels of a pixel side by side.
#pragma once

#include <algorithm>
#include <vector>

#include <tapedeck/core/parallel.h>
#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/ahead.h>
#include <tapedeck/ops/conv/plan.h>
#include <tapedeck/ops/micro/kernels.h>
#include <tapedeck/ops/micro/scratch.h>

namespace tapedeck::cpu {

/// Rows first, first + step, ... of the images of a tensor; all of them, if nothing is said.
struct Images {
  Images(const Tensor& t) : tensor(t), rows(t.size(2)) {}  // NOLINT(google-explicit-constructor)
  Images(const Tensor& t, const ReadRows& read)
      : tensor(t), rows(read.geometry.h.out), first(read.first), step(read.step) {}

  const Tensor& tensor;
  std::int64_t rows, first = 0, step = 1;

  std::int64_t width() const { return tensor.size(3); }
  /// Where row `row` of image n begins: of its first channel, if the tensor is nchw.
  template <class T>
  const T* at(std::int64_t n, std::int64_t row) const {
    const std::int64_t c = tensor.size(1), w = width();
    const bool planar = tensor.layout() == Layout::nchw;
    return tensor.data<T>() + (n * c * tensor.size(2) + (first + row * step) * (planar ? 1 : c)) * w;
  }
};

/// Images as kernels read them, the channels of a pixel and a group side by side: those of pixel (n,h,w) are
/// at data + group*group_step + n*image_step + h*h_step + w*w_step.
template <class T>
struct Pixels {
  const T* data = nullptr;
  std::int64_t image_step = 0, h_step = 0, w_step = 0, group_step = 0;
};

/// The steps of images that are nhwc already, of so many groups.
template <class T>
Pixels<T> pixels_of(const Images& nhwc, std::int64_t groups = 1) {
  const std::int64_t c = nhwc.tensor.size(1), row = nhwc.width() * c;
  return {nhwc.at<T>(0, 0), nhwc.tensor.size(2) * row, nhwc.step * row, c, c / groups};
}

/// The groups whose pixels are best copied apart: what a kernel reads of a group is then near, where pixels
/// of many groups would share the sets of the caches. Narrow ones stay together, for whole vectors.
inline std::int64_t groups_apart(std::int64_t groups, std::int64_t channels) {
  return channels / groups < 8 ? 1 : groups;
}

/// The steps of copied rows of some images, in pixels of `pixel` elements, `step` apart: all groups, each
/// with `depth` of them, or if these are all, one group after the other.
template <class T>
Pixels<T> copied_pixels(const T* data, std::int64_t images, std::int64_t rows, std::int64_t width,
                        std::int64_t pixel, std::int64_t depth, std::int64_t step) {
  const std::int64_t image = rows * width * step;
  return {data, image, width * step, step, pixel == depth ? images * image : depth};
}

constexpr std::int64_t kWindowBytes = 320 << 10;  // of copied rows that windows read, in the cache of a core

/// Rows of bands of `rows` rows, at least `least`, whose copies have at most `most` bytes; bytes(band).
template <class F>
std::int64_t band_of(std::int64_t rows, std::int64_t least, std::int64_t most, F bytes) {
  while (rows > least && bytes(rows) > most) rows = std::max(least, (rows + 1) / 2);
  return rows;
}

/// Groups [first, first + count) of `all`.
struct GroupRange {
  std::int64_t first = 0, count = 1, all = 1;
};

/// Copies the channels of `count` pixels of an image of either layout, from `in` on, to pixels that lie
/// `step` apart and groups that lie `group_step` apart, of `padded` elements each: behind the channels come
/// zeros.
template <class T>
void copy_channels(const Tensor& images, const T* in, std::int64_t count, const GroupRange& groups,
                   std::int64_t padded, T* to, std::int64_t step, std::int64_t group_step) {
  const std::int64_t c = images.size(1), plane = images.size(2) * images.size(3);
  const std::int64_t channels = c / groups.all;
  const bool planar = images.layout() == Layout::nchw;
  const std::int64_t group = channels * (planar ? plane : 1);
  if (!planar && groups.all == 1 && padded == c && step == c) {
    std::copy_n(in, count * c, to);
    return;
  }
  in += groups.first * group;
  for (std::int64_t g = 0; g < groups.count; ++g, in += group, to += group_step) {
    if (planar) micro::kernels<T>().transpose({in, plane, channels, count, to, step, nullptr});
    for (std::int64_t p = 0; p < count && (!planar || padded > channels); ++p) {
      if (!planar) std::copy_n(in + p * c, channels, to + p * step);
      std::fill(to + p * step + channels, to + p * step + padded, T(0));
    }
  }
}

/// Copies images [begin, end), of either layout, to `to`, whose steps are those of `like`; the
/// channels of each group are padded with zeros to `padded`.
template <class T>
void copy_pixels(const Images& images, std::int64_t begin, std::int64_t end, const Pixels<T>& like,
                 std::int64_t padded, T* to, std::int64_t groups = 1) {
  const std::int64_t c = images.tensor.size(1), h = images.rows, w = images.width();
  // Rows of an image that are copied at once: whole planes have equal steps in both axes.
  const bool whole = like.h_step == w * like.w_step && images.step == 1;
  const std::int64_t band = whole ? std::min<std::int64_t>(h, (1023 + w) / w) : 1,
                     bands = (h + band - 1) / band;
  parallel_for((end - begin) * bands, 1 + (1 << 14) / (c * band * w),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) {
                   const std::int64_t n = i / bands, row = i % bands * band, rows = std::min(band, h - row);
                   T* out = to + n * like.image_step + row * like.h_step;
                   copy_channels(images.tensor, images.at<T>(begin + n, row), rows * w, {0, groups, groups},
                                 padded, out, like.w_step, like.group_step);
                 }
               });
}

/// Copies rows [row, row + rows) of some groups of image n, of either layout, to rows `like.h_step` apart
/// from `to` on, of pixels of `padded` elements.
template <class T>
void copy_rows(const Images& images, std::int64_t n, std::int64_t row, std::int64_t rows, std::int64_t padded,
               T* to, const Pixels<T>& like, const GroupRange& groups = {}) {
  const bool whole = images.step == 1 && like.h_step == images.width() * like.w_step;
  const std::int64_t together = whole ? rows : 1, count = together * images.width();
  for (const std::int64_t end = row + rows; row < end; row += together, to += together * like.h_step) {
    copy_channels(images.tensor, images.at<T>(n, row), count, groups, padded, to, like.w_step,
                  like.group_step);
  }
}

/// Rows [begin, end).
struct RowRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

/// Copies rows of images [first, first + count) to `to`, image by image. Of one image, `copied` are the rows
/// that lie there already: those that both have are only moved.
template <class T>
void copy_bands(const Tensor& images, std::int64_t first, std::int64_t count, const RowRange& rows,
                const RowRange& copied, T* to) {
  const std::int64_t row = images.size(1) * images.size(3);
  const bool follows = copied.begin <= rows.begin && rows.begin < copied.end && count == 1;
  const std::int64_t known = follows ? std::min(copied.end - rows.begin, rows.size()) : 0;
  if (known > 0) std::copy_n(to + (rows.begin - copied.begin) * row, known * row, to);
  for (std::int64_t n = 0; n < count; ++n) {
    copy_rows<T>(images, first + n, rows.begin + known, rows.size() - known, images.size(1),
                 to + (n * rows.size() + known) * row, {nullptr, 0, row, images.size(1)});
  }
}

/// The lines of memory that copy_rows() reads, for kernels to ask for before.
template <class T>
void lines_of_rows(const Images& images, std::int64_t n, std::int64_t row, std::int64_t rows, LineList& to,
                   const GroupRange& groups = {}) {
  const std::int64_t c = images.tensor.size(1), plane = images.tensor.size(2) * images.width();
  const std::int64_t channels = c / groups.all, read = groups.count * channels;
  const bool planar = images.tensor.layout() == Layout::nchw, all = read == c;
  const std::int64_t pixels = images.width() * (planar ? 1 : c), step = images.step * pixels;
  const T* first = images.at<T>(n, row) + groups.first * channels * (planar ? plane : 1);
  for (std::int64_t i = 0; i < (planar ? read : 1); ++i, first += plane) {
    if (!planar && !all) {
      for (std::int64_t k = 0; k < rows * images.width(); ++k) {
        append_lines(first + k / images.width() * step + k % images.width() * c, read, to);
      }
    } else if (images.step == 1) {
      append_lines(first, rows * pixels, to);
    } else {
      for (std::int64_t k = 0; k < rows; ++k) append_lines(first + k * step, pixels, to);
    }
  }
}

/// The same for groups of `read` channels, of which `lanes` channels of another tensor each read all: channel
/// (f, t), f < read, of a copied pixel of `pixel` elements is channel f of the group of lane t. Lanes are
/// padded with zeros to pixel/read.
template <class T>
void copy_for_lanes(const Images& images, std::int64_t begin, std::int64_t end, const Pixels<T>& like,
                    std::int64_t read, std::int64_t lanes, std::int64_t pixel, T* to) {
  const std::int64_t c = images.tensor.size(1), h = images.rows, w = images.width();
  const std::int64_t all = c / read * lanes, width = pixel / read;
  const bool planar = images.tensor.layout() == Layout::nchw;
  const std::int64_t channel_step = planar ? images.tensor.size(2) * w : 1, pixel_step = planar ? 1 : c;
  parallel_for((end - begin) * h, 1 + (1 << 14) / (pixel * w), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t n = i / h, row = i % h;
      const T* in = images.at<T>(begin + n, row);
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

/// A tensor whose groups are read as pixels: where it lies, or as a copy.
struct PixelSource {
  Images images;
  bool in_place;
  std::int64_t groups;

  /// Groups that are apart in a copy, and elements of its pixels.
  std::int64_t apart() const { return groups_apart(groups, images.tensor.size(1)); }
  std::int64_t pixel() const { return images.tensor.size(1) / apart(); }
  /// From a pixel of a copy to the next one. Where pixels that are read together would share some of the sets
  /// of a cache there is a line more, which is not written: not where vectors reach beyond the channels of a
  /// narrow group.
  template <class T>
  std::int64_t step() const {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    return pixel() + (apart() == groups && pixel() % (2 * kLine) == 0 ? kLine : 0);
  }
  /// Pixels of a row of a copy: one more, for the same reason, where rows are copied one by one.
  std::int64_t columns() const {
    return images.width() + (images.step != 1 && images.width() % 2 == 0 ? 1 : 0);
  }
  /// Elements of a row of a copy.
  template <class T>
  std::int64_t row() const {
    return apart() * step<T>() * columns();
  }
  template <class T>
  Pixels<T> copied(const T* data, std::int64_t count, std::int64_t rows) const {
    return copied_pixels(data, count, rows, columns(), pixel(), images.tensor.size(1) / groups, step<T>());
  }
};

/// Whether images can be read as pixels where they lie, by vectors if `lanes` is not 1.
inline bool is_in_place(const Tensor& images, std::int64_t channels, std::int64_t lanes) {
  return images.layout() == Layout::nhwc && channels % lanes == 0;
}

/// Calls f(x, y, images) with the pixels of blocks of images of two tensors, which add to `sum_bytes` of
/// sums. What is not in place is copied by all threads, `slack` elements of memory after it. Small blocks
/// stay in the caches; sums that do not are gone over less often in large ones.
template <class T, class F>
void for_each_block(const PixelSource& x, const PixelSource& y, std::int64_t slack, std::int64_t sum_bytes,
                    F f) {
  const std::int64_t block_bytes = (sum_bytes > 8 << 20 ? 8 : 1) << 20;
  const std::int64_t n = x.images.tensor.size(0), x_image = x.row<T>() * x.images.rows,
                     y_image = y.row<T>() * y.images.rows;
  const std::int64_t copied = (x.in_place ? 0 : x_image) + (y.in_place ? 0 : y_image);
  const std::int64_t block =
      copied == 0
          ? n
          : std::clamp<std::int64_t>(block_bytes / (copied * static_cast<std::int64_t>(sizeof(T))), 1, n);
  const Scratch<T> x_copy(x.in_place ? 0 : block * x_image + slack);
  const Scratch<T> y_copy(y.in_place ? 0 : block * y_image + slack);
  const auto pixels = [](const PixelSource& source, std::int64_t begin, std::int64_t count, T* copy) {
    if (source.in_place) {
      Pixels<T> p = pixels_of<T>(source.images, source.groups);
      p.data += begin * p.image_step;
      return p;
    }
    const Pixels<T> p = source.copied<T>(copy, count, source.images.rows);
    copy_pixels(source.images, begin, begin + count, p, source.pixel(), copy, source.apart());
    return p;
  };
  for (std::int64_t begin = 0; begin < n; begin += block) {
    const std::int64_t images = std::min(block, n - begin);
    f(pixels(x, begin, images, x_copy.data()), pixels(y, begin, images, y_copy.data()), images);
  }
}

}  // namespace tapedeck::cpu
