// Sizes of the products with all taps (columns.cu, columns_gathered.cu). Host arithmetic.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/ops/matmul_tiles.h>

namespace tapedeck::conv_columns {

/// What is kept of products at once: they should stay in an H200's second-level cache, of 50 MB. An image has
/// at most kMostBytes of them.
inline constexpr std::int64_t kBytes = std::int64_t{24} << 20, kMostBytes = std::int64_t{256} << 20;
inline constexpr std::int64_t kMostImages = 1 << 15;  // of a batch of products
inline constexpr std::int64_t kMostCalls = 16;        // of cuBLASLt, each of which has a launch
inline constexpr std::int64_t kMostChannels = 16;     // of x whose gradient is added up behind products
/// Rows that kernels count in 31 bits, with those that the last block has too much.
inline constexpr std::int64_t kMostLines = (std::int64_t{1} << 31) - 8192;

/// Of so many elements cuBLASLt wants sizes of matrices to be multiples, whole vectors of 16 bytes, for its
/// products on Hopper's tensor cores, even that of a result's rows: in bfloat16 others take 1.7 to 14 times
/// as long (of TF32 whole layers were timed, up to twice as fast). 1 where it has no such products, of
/// float32's accuracy and float64. Factors as of conv_gemm::Factors.
inline std::int64_t multiple_of(int element_bytes, int parts) {
  return parts == 3 || element_bytes > 4 ? 1 : 16 / element_bytes;
}

/// Rows of z of a group, and elements of a row, which are pixels: rounded up to that where products gain more
/// time than it takes to clear what is beside and, if pixels are, to copy `copied` bytes.
struct Padded {
  Padded(std::int64_t of_rows, std::int64_t pixels, std::int64_t multiple, double flops, double copied)
      : rows(of_rows), line(pixels) {
    const auto whole = [&](std::int64_t size) { return (size + multiple - 1) / multiple * multiple; };
    const bool pads_pixels = whole(pixels) != pixels;
    // Microseconds of an H200: 0.6 of 100 TFLOP/s; a launch or two, and 2 TB/s.
    const double gained = flops * 6e-9, taken = pads_pixels ? 5 + copied / 2e6 : 2.5;
    if (gained < taken) return;
    rows = whole(rows), line = whole(pixels);
  }
  std::int64_t rows, line;
};

/// Products with the pixels of an image of `from`: (channels of `to`, taps) times pixels, in sets of which
/// each has weights of its own: conv_transpose2d's are one, conv2d has one for each channel of x.
/// `multiple`: as above, of images in nchw.
struct Products {
  Products(const ConvTranspose2dGeometry& g, bool transposed, int element_bytes, std::int64_t multiple = 1)
      : taps(g.h.kernel * g.w.kernel),
        to_channels(transposed ? g.group_co() : g.group_ci()),
        sets(transposed ? 1 : to_channels),
        groups(g.groups),
        pixels(transposed ? g.h.in * g.w.in : g.h.out * g.w.out),
        padded(rows(), pixels, pads(multiple, transposed) ? multiple : 1,
               2.0 * static_cast<double>(to_channels * taps * pixels * g.n) *
                   static_cast<double>(transposed ? g.ci : g.co),
               static_cast<double>((transposed ? g.ci : g.co) * pixels * g.n * 16 / multiple)),
        of_image(groups * sets * padded.rows * padded.line),
        images(std::clamp<std::int64_t>(kBytes / element_bytes / of_image, 1,
                                        std::clamp<std::int64_t>(g.n, 1, kMostImages))) {}
  /// Of a set.
  std::int64_t rows() const { return to_channels / sets * taps; }
  /// Calls of cuBLASLt for `images` images: all but one of images, groups and sets are a call each. Channels
  /// last have one for all pixels.
  std::int64_t calls(bool last) const {
    return last ? 1 : images * groups * sets / std::max({images, groups, sets});
  }

  std::int64_t taps, to_channels, sets, groups, pixels;
  Padded padded;
  std::int64_t of_image;
  std::int64_t images;  // at once

 private:
  /// Channels of neighbouring groups and sets are neighbours in z, as sums want them. Of conv2d's pixels only
  /// odd numbers are worth a copy (an H200, 8 sets of 24 rows, 58466 pixels: 2.1 to 2.7 ms; 16 of 32, 5221:
  /// 2.9 to 0.9).
  bool pads(std::int64_t multiple, bool transposed) const {
    return (groups * sets == 1 || rows() % multiple == 0) &&
           (transposed || pixels % 2 != 0 || pixels % multiple == 0);
  }
};

/// What is gathered of y for its gradients: what each tap reads for each pixel of x.
struct Gathered {
  Gathered(const ConvTranspose2dGeometry& g, int element_bytes, std::int64_t multiple = 1)
      : taps(g.h.kernel * g.w.kernel),
        pixels(g.h.in * g.w.in),
        lies(taps == 1 && g.h.stride * g.w.stride == 1 && g.h.padding == 0 && g.w.padding == 0 &&
             g.h.in == g.h.out && g.w.in == g.w.out),
        padded(g.group_co() * taps, pixels, lies ? 1 : multiple, g.flops(),
               static_cast<double>(g.n * g.ci * pixels * 16 / multiple)),
        of_image(g.groups * padded.rows * padded.line),
        images(std::clamp<std::int64_t>(kBytes / element_bytes / std::max<std::int64_t>(of_image, 1), 1,
                                        at_most(g))) {
    if (lies) images = at_most(g);
  }
  /// Calls of cuBLASLt for `images` images with a weight, which all images share.
  std::int64_t calls(std::int64_t groups) const { return std::min(images, groups); }
  /// Rows of a group.
  std::int64_t rows(const ConvTranspose2dGeometry& g) const { return g.group_co() * taps; }

  std::int64_t taps, pixels;
  bool lies;  // in y itself
  Padded padded;
  std::int64_t of_image;
  std::int64_t images;  // at once

 private:
  /// Each image's groups are matrices of a batch.
  static std::int64_t at_most(const ConvTranspose2dGeometry& g) {
    return std::clamp<std::int64_t>(g.n, 1, std::max<std::int64_t>(1, kMostImages / g.groups));
  }
};

/// Products that columns.cu and columns_gathered.cu ask matmul() for, with so many images at once.
struct Product {
  matmul_tiles::Sizes sizes;  // of a call of cuBLASLt
  bool transposed_a, transposed_b;
  std::int64_t calls = 1;  // which tiles have in one launch
  /// If they are tiles' (matmul_tiles.h), their sizes; factors as of conv_gemm::Factors.
  std::optional<matmul_tiles::Sizes> tiled(int element_bytes, int parts) const {
    using matmul_tiles::TileMath;
    if (element_bytes > 4) return {};
    return matmul_tiles::tiled(sizes, transposed_a, transposed_b,
                               parts == 3           ? TileMath::float32
                               : element_bytes == 4 ? TileMath::tf32
                                                    : TileMath::bfloat16,
                               calls);
  }
};
inline Product product_of_taps(const ConvTranspose2dGeometry& g, bool transposed, const Products& z,
                               bool last) {
  const std::int64_t from_channels = transposed ? g.group_ci() : g.group_co();
  if (last) return {{z.rows(), z.images * z.pixels, from_channels, z.sets}, true, true};
  return {{z.padded.rows, z.padded.line, from_channels, std::max({z.images, z.groups, z.sets})},
          true,
          false,
          std::min({z.images, z.groups, z.sets}) > 1 ? 1 : z.calls(false)};  // of two dimensions, not three
}
inline Product input_product(const ConvTranspose2dGeometry& g, const Gathered& z) {
  return {{g.group_ci(), z.padded.line, z.padded.rows, std::max(z.images, g.groups)},
          false,
          false,
          z.calls(g.groups)};
}
inline Product weight_product(const ConvTranspose2dGeometry& g, const Gathered& z) {
  return {{g.group_ci(), z.padded.rows, z.padded.line, z.images * g.groups}, false, true};
}

/// Whether what taps read of y is gathered for x's gradient, before products instead of behind them: where
/// there is less of it than of products, or x has more channels than the others take. Not where products of a
/// few images are slow: at float32's accuracy cuBLASLt's, without tensor cores, and of rows of 16 bits that
/// begin between words.
inline bool gathers(const ConvTranspose2dGeometry& g, Layout y, int element_bytes, int parts) {
  const Gathered z(g, 4);
  constexpr std::int64_t kMany = 128;
  if (y != Layout::nchw || std::min(g.group_ci(), g.group_co()) >= kMany ||
      (parts == 3 && g.n * g.groups < 4 && !input_product(g, z).tiled(element_bytes, parts)) ||
      (element_bytes == 2 && Gathered(g, 2, multiple_of(2, parts)).padded.line % 2 != 0))
    return false;
  return g.ci > kMostChannels || z.of_image <= Products(g, false, 4).of_image;
}

/// Whether products are made by a convolution of kernels of 1x1, whose result they are: of images in nchw at
/// float32's accuracy (`parts` of 3), where they would take long by other matrix products, without tensor
/// cores, of which each call adds to that. Not for few channels or pixels, for which its tiles are too large;
/// nor for groups in sets, of which the weights would be in another order. (Of 354 random layers on an H200
/// what is chosen takes 1.011 times as long as the faster one, and either alone 1.09 and 1.15 times: timed
/// before tiles had several calls in one launch.)
inline bool is_convolved(const ConvTranspose2dGeometry& g, bool transposed, Layout from, int parts) {
  if (parts != 3 || from != Layout::nchw || (!transposed && gathers(g, from, sizeof(float), parts)))
    return false;
  const Products z(g, transposed, sizeof(float));
  const std::int64_t from_channels = transposed ? g.group_ci() : g.group_co(), calls = z.calls(false);
  if (from_channels < 32 || z.images * z.pixels < 256 || (z.sets > 1 && g.groups > 1)) return false;
  if (z.sets * z.rows() < 64 && calls <= 2) return false;
  const double gflop = 2e-9 * static_cast<double>(z.images * z.of_image) * static_cast<double>(from_channels);
  return 2.0 * static_cast<double>(calls) + 15 * gflop > 12;
}
/// That convolution, of so many images.
inline ConvTranspose2dGeometry convolution(const ConvTranspose2dGeometry& g, bool transposed,
                                           std::int64_t images) {
  const Products z(g, transposed, 4);
  ConvTranspose2dGeometry one;
  one.n = images, one.groups = g.groups;
  one.ci = transposed ? g.ci : g.co, one.co = g.groups * z.to_channels * z.taps;
  one.h.in = one.h.out = transposed ? g.h.in : g.h.out;
  one.w.in = one.w.out = transposed ? g.w.in : g.w.out;
  return one;
}

inline constexpr int kLineThreads = 256;

/// How thread blocks of up to kLineThreads share lines: a block has whole columns of a tile, and some lines,
/// of which each row of its threads has every threads_y-th.
struct LineTiles {
  LineTiles() = default;
  /// Lines of `width` columns, of which a thread has `columns`. Of `period` neighbouring lines some take
  /// longer than others: a row of threads has all kinds.
  LineTiles(std::int64_t width, std::int64_t columns, std::int64_t period) {
    const std::int64_t threads = conv_gemm::count(width, columns),
                       tiles = conv_gemm::count(threads, kLineThreads),
                       of_tile = conv_gemm::count(threads, tiles), warps = conv_gemm::count(of_tile, 32) * 32;
    // Warps that begin with a line write whole sectors, unless too many threads are idle for that.
    threads_x = static_cast<int>(warps * 8 <= of_tile * 9 ? warps : of_tile);
    threads_y = kLineThreads / threads_x;
    while (std::gcd(std::int64_t{threads_y}, period) > 1) --threads_y;
    by_tiles = conv_gemm::Divider(tiles);
  }
  /// Among as many blocks as it takes, of which a device has `at_once`. What a thread finds once, for all its
  /// lines, takes as long as `setup` / 2 lines. Blocks have a line for each thread, as those that come later
  /// fill what others leave; or, where finding takes long, so many that the device has all in whole turns.
  void share(std::int64_t lines, std::int64_t at_once, double setup) {
    const std::int64_t tiles = by_tiles.divisor;
    const double need = static_cast<double>(lines * tiles) / static_cast<double>(at_once * threads_y),
                 wanted = std::min(std::sqrt(setup * need), 16.0);
    const double each =
        need <= 2 || wanted < 2 ? 1 : std::ceil(need / std::max(1.0, std::round(need / wanted)));
    lines_of_block = static_cast<int>(each) * threads_y;
    blocks = conv_gemm::count(lines, lines_of_block) * tiles;
    last = static_cast<int>(lines);
  }

  struct Block {
    int tile, begin, end;  // lines
  };
  TAPEDECK_HD Block of(int index) const {
    const int group = by_tiles.divide(index), begin = group * lines_of_block, end = begin + lines_of_block;
    return {by_tiles.modulo(index, group), begin, end < last ? end : last};
  }

  std::int64_t blocks = 0;
  int threads_x = 1, threads_y = 1;

 private:
  conv_gemm::Divider by_tiles;
  int lines_of_block = 1, last = 0;
};

/// An axis of results, and what each reads of products.
struct TapAxis {
  TapAxis() = default;
  /// `size`: of what is read.
  TapAxis(const conv_gemm::PhaseAxes& axis, std::int64_t size)
      : by_step(axis.phase[0].to_step),
        by_gap(std::abs(axis.phase[0].tap_from_step)),
        tap_step(axis.phase[0].tap_step),
        gap(axis.phase[0].tap_from_step),
        from_step(axis.phase[0].from_step),
        from_size(static_cast<int>(size)) {
    for (int i = 0; i < axis.count; ++i) {
      const conv_gemm::PhaseAxis& p = axis.phase[i];
      of[p.to] = {p.taps, p.tap, p.from};
    }
  }

  /// Taps of a result that read something: `count` of them from `tap` on, which reads `from`.
  struct Reads {
    int count, tap, from;
  };
  TAPEDECK_HD Reads at(int result) const {
    const int index = by_step.divide(result);
    const Phase& p = of[by_step.modulo(result, index)];
    const int from = p.from + index * from_step, last = from_size - 1;
    int begin = 0, end = 0;
    if (gap > 0) {
      if (from < 0) begin = by_gap.divide(gap - 1 - from);
      if (from <= last) end = by_gap.divide(last - from) + 1;
    } else {
      if (from > last) begin = by_gap.divide(from - last - 1 - gap);
      if (from >= 0) end = by_gap.divide(from) + 1;
    }
    if (end > p.taps) end = p.taps;
    return {end > begin ? end - begin : 0, p.tap + begin * tap_step, from + begin * gap};
  }

  conv_gemm::Divider by_step, by_gap;
  int tap_step = 1, gap = 1, from_step = 1, from_size = 0;  // gap: between what neighbouring taps read

 private:
  /// Of results, by their remainder.
  struct Phase {
    int taps = 0, tap = 0, from = 0;
  };
  Phase of[conv_gemm::kMaxPhases];
};

}  // namespace tapedeck::conv_columns
