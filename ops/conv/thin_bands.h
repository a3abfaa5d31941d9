// Bands of layers whose y has few channels, where y's sides are x's times the stride, in nchw: sizes and
// places, for kernels (thin_bands.cuh), their host side and tests. Other thin layers are left to
// thin_products.h.
//
//   z[m, kh, kw, i, j] = sum over channels c: w[c, m, kh, kw] x[c, i, j]
//   y[m, o, u] = bias[m] + sum over kh, kw: z[m, kh, kw, (o + P - kh) / S, (u + P - kw) / S], where that is
//   whole
// A band is some whole rows of an image, up to 128 or 256 pixels. Forward, z's rows of a band, and as many
// before as outputs read (kHalo), are in a ring of rows in shared memory, between zeros: what a tap reads
// beside a row's end is zero, and an output adds places that are constant, from its pixel's own on. Gradients
// have what a band meets of y in shared memory, such that words of operands are words there.
//
// So taps cost no arithmetic, which is what bounds kernels of any taps (thin_products.cu): dcgan5 in bfloat16
// (64 to 3 channels, kernel 4, stride 2, x of 128 x 64 x 32 x 32) takes 8.1, 4.8 and 5.4 million instructions
// of warps there, and less than 4.7, 3.2 and 3.8 here. On an H200, forward, input and weight gradient in us,
// and there:
//   float32     26.3 18.7 27.6  (29.1 24.9 33.3)
//   TF32        15.8 13.1 17.3  (28.1 17.1 28.0)
//   bfloat16    10.9  9.4 10.6  (17.5 11.1 15.8)
// where reading or writing x takes 8 in float32, 4 in 16 bits. What mattered: that all threads copy x to
// stages (a bulk copy for each channel, by a warp for which others waited: forward 20.3 in TF32 and 17.7 in
// bfloat16, where this took 16.0 and 12.9); that weights are asked for before x, whose copies they would wait
// for, and results stored as words (with both 10.9 in bfloat16); four columns of products that do not wait
// for each other (the input gradient in TF32: 20.1 with two); y by vectors, few of a thread (words took so
// many registers that the weight's gradient spilled: 14.3 in bfloat16).
#pragma once

#include <algorithm>
#include <cstdint>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/ops/conv/question.h>
#include <tapedeck/ops/conv/thin_products.h>

namespace tapedeck::conv_thin {

/// A kernel of K x K at stride S, and padding P, whose taps read neighbouring pixels.
template <int K, int S, int P>
struct BandTaps {
  static constexpr int kKernel = K, kStride = S, kPadding = P, kTaps = K * K;
  static constexpr int kHalo = (K - 1) / S;         // rows before a band that its outputs read
  static constexpr int kOfPhase = (K + S - 1) / S;  // taps of an output on an axis, at most

  static bool fits(const ConvAxis& a) {
    return a.kernel == K && a.stride == S && a.padding == P && a.dilation == 1 && a.out == a.in * S;
  }
  /// Of output S * j + e tap number n on an axis is tap_of(e, n), if that is below K, at position
  /// j + to_tap(e, n).
  static constexpr int tap_of(int e, int n) { return (P + e) % S + S * n; }
  static constexpr int to_tap(int e, int n) { return (P + e) / S - n; }
  /// Outputs before this one are known when x's positions before `end` are.
  TAPEDECK_HD static int outputs_before(int end, int size) {
    return end >= size ? size * S : end * S <= P ? 0 : end * S - P;
  }
};

/// Calls f with the taps of a layer and returns what that does, or false, if it has none of these.
template <class F>
bool visit_taps(const ConvTranspose2dGeometry& g, const F& f) {
  const auto visit = [&]<class... Taps>() {
    return ((Taps::fits(g.h) && Taps::fits(g.w) && f.template operator()<Taps>()) || ...);
  };
  return visit.template operator()<BandTaps<4, 2, 1>, BandTaps<3, 1, 1>>();
}

inline constexpr int kMostBandPixels = 256, kMostBandChannels = 256;  // of a band, and of x
inline constexpr int kBandBorder = 4;                                 // zeros beside a row of z
/// Places of a product's z, of bands of so many pixels: a remainder of 8 has stores of eight products in all
/// banks.
constexpr int band_pitch(int pixels) {
  return pixels == 256 ? 424 : 232;
}

/// Threads of a block, and vectors of y's rows that one has of what a band meets, at most.
constexpr int band_threads(ThinPass pass, int pixels) {
  return pass == ThinPass::plain ? pixels : 2 * pixels;
}
constexpr int band_vectors(ThinPass pass, int element_bytes) {
  return pass == ThinPass::plain ? (element_bytes == 2 ? 3 : 5) : (element_bytes == 2 ? 2 : 3);
}

/// What all passes have.
struct BandPlan {
  static constexpr int kMostStages = 4;

  BandPlan() = default;
  /// Of bands of so many pixels; of a stage's channels.
  BandPlan(const ConvTranspose2dGeometry& g, int of_pixels, int of_channels, int of_channel_bytes)
      : pixels(of_pixels),
        ci(static_cast<int>(g.ci)),
        co(static_cast<int>(g.co)),
        h(static_cast<int>(g.h.in)),
        w(static_cast<int>(g.w.in)),
        channels(of_channels),
        channel_bytes(of_channel_bytes),
        rows(std::min(h, pixels / w)) {}
  /// Cuts images into parts such that no multiprocessor waits long: what a part begins with, beside `halo`
  /// rows before it, takes about a band's time.
  void cut_parts(const ConvTranspose2dGeometry& g, int halo) {
    if (rows == 0) return;
    const auto n = static_cast<int>(g.n);
    std::int64_t least = 0;
    for (int some = 1; some <= std::min((h + rows - 1) / rows, 256); ++some) {
      const int of_part = (h + some - 1) / some, bands = (of_part + (some > 1 ? halo : 0) + rows - 1) / rows;
      const std::int64_t all = std::int64_t{n} * some,
                         time = (all + kMultiprocessors - 1) / kMultiprocessors * (bands + 1);
      if (least == 0 || time < least) least = time, part_rows = of_part;
    }
    parts = (h + part_rows - 1) / part_rows;
    units = n * parts;
  }
  int stage_bytes() const { return channels * channel_bytes; }
  /// Fills what shared memory has beside so many bytes; no stages, if these are less than two.
  void cut_stages(int beside) {
    other_bytes = beside;
    stages = std::min(kMostStages, (kMostSharedBytes - beside) / stage_bytes());
    if (rows == 0 || stages < 2) stages = 0;
  }
  int shared_bytes() const { return stages * stage_bytes() + other_bytes; }
  /// Whether threads have enough for a region of so many rows of y.
  bool has_vectors(ThinPass pass, int region_rows, int stride, int element_bytes) const {
    return co * region_rows * (stride * w * element_bytes / 16) <=
           band_vectors(pass, element_bytes) * band_threads(pass, pixels);
  }

  int pixels = 0;
  int ci = 0, co = 0, h = 0, w = 0;         // of x, and y's channels
  int channels = 0, channel_bytes = 0;      // of a stage; a channel's rows in it
  int rows = 0;                             // of a band
  int part_rows = 1, parts = 1, units = 0;  // of an image, and of all
  int stages = 0, other_bytes = 0;
};

/// Of the forward pass.
struct BandMapPlan : BandPlan {
  BandMapPlan() = default;
  /// (Of a channel's rows in a stage: such that matrices, or float32's words, are in all banks.)
  BandMapPlan(const ConvTranspose2dGeometry& g, int halo, int taps, int of_pixels, int element_bytes,
              int operand_parts)
      : BandPlan(g, of_pixels, static_cast<int>(g.ci),
                 of_pixels * element_bytes + (element_bytes == 2 ? 16 : 32)),
        slots(rows + halo),
        products(co * taps),
        weight_bytes(operand_parts * ci * ((products + 15) / 16 * 16) * element_bytes) {
    cut_parts(g, halo);
    cut_stages(weight_bytes + products * band_pitch(pixels) * 4);
    if (slots * (w + kBandBorder) + kBandBorder > band_pitch(pixels)) stages = 0;
  }
  /// Where a column of a slot is among a product's.
  TAPEDECK_HD int z_at(int slot, int column) const { return slot * (w + kBandBorder) + kBandBorder + column; }
  int slots = 0;  // of rows, in z
  int products = 0, weight_bytes = 0;
};

/// Of the weight's gradient. What a band meets of y is in shared memory as
///   [copy][channel][row][phase of columns][column],
/// twice in 16 bits, the second time from the next column on, so that two pixels of any tap are a word.
struct BandGradPlan : BandPlan {
  static constexpr int kChannels = 64;  // of x, of a thread block
  /// Tiles of eight products, of which a warp has a half; and from one channel's sums of a warp to the
  /// next's, such that stores of eight channels meet all banks.
  static constexpr int tiles_of_warp(int products) { return ((products + 7) / 8 + 1) / 2; }
  static constexpr int sum_pitch(int products) { return tiles_of_warp(products) * 16 + 8; }

  BandGradPlan() = default;
  BandGradPlan(const ConvTranspose2dGeometry& g, int kernel, int stride, int of_pixels, int element_bytes)
      : BandPlan(g, of_pixels, kChannels, of_pixels * element_bytes + 16),
        region_rows(stride * (rows - 1) + kernel) {
    // Eight products of a tile of kernel 4 at stride 2 are in all banks: an odd number of four words, and
    // copies 16 words apart.
    const int of_word = 4 / element_bytes, words = (w + (kernel + stride - 1) / stride + of_word) / of_word;
    pitch = ((words + 3) / 8 * 8 + 4) * of_word;
    const int elements = co * region_rows * stride * pitch;
    copy_elements = of_word == 2 ? ((elements / 2 + 15) / 32 * 32 + 16) * 2 : elements;
    region_bytes = copy_elements * of_word * element_bytes;
    cut_parts(g, 0);
    cut_stages(2 * region_bytes);
    if (stages * stage_bytes() + other_bytes <
        pixels / 32 * kChannels * sum_pitch(co * kernel * kernel) * static_cast<int>(sizeof(float)))
      stages = 0;
  }
  // Places in elements. Of y: `columns` before it in its row, a multiple of S, and e more; in the second copy
  // it is to_copy() further, if it is there at all.
  template <class Taps>
  TAPEDECK_HD int of_y(int m, int row, int columns, int e) const {
    constexpr int S = Taps::kStride, P = Taps::kPadding;
    return ((m * region_rows + row) * S + (P + e) % S) * pitch + columns / S + (P + e) / S;
  }
  template <class Taps>
  TAPEDECK_HD static bool is_in_copy(int columns, int e) {
    return columns > 0 || (Taps::kPadding + e) / Taps::kStride > 0;
  }
  TAPEDECK_HD int to_copy() const { return copy_elements - 1; }
  /// What product r multiplies a pixel by, from the pixel's own place on.
  template <class Taps>
  TAPEDECK_HD int of_product(int r, bool has_copy) const {
    constexpr int S = Taps::kStride;
    const int m = r / Taps::kTaps, tap = r - m * Taps::kTaps, kh = tap / Taps::kKernel,
              kw = tap - kh * Taps::kKernel, shift = kw / S;
    const int at = ((m * region_rows + kh) * S + kw % S) * pitch + shift;
    return has_copy && shift % 2 == 1 ? at + to_copy() : at;
  }
  template <class Taps>
  TAPEDECK_HD int of_row() const {
    return Taps::kStride * Taps::kStride * pitch;
  }
  int pitch = 0, region_rows = 0, copy_elements = 0, region_bytes = 0;  // elements; a buffer's bytes
};

/// Of the input's gradient: a unit is a band. What it meets of y is in shared memory as
/// [copy][channel][row][column + P], at odd strides in 16 bits twice, the second time from the next column
/// on, so that two taps of a row are a word.
struct BandPlainPlan : BandPlan {
  BandPlainPlan() = default;
  BandPlainPlan(const ConvTranspose2dGeometry& g, int kernel, int stride, int of_pixels, int element_bytes,
                int operand_parts)
      : BandPlan(g, of_pixels, 0, 0),
        region_rows(stride * (rows - 1) + kernel),
        weight_bytes(operand_parts * ci * steps(co, kernel, element_bytes) * 32) {
    if (rows == 0) return;
    part_rows = rows, parts = (h + rows - 1) / rows, units = static_cast<int>(g.n) * parts;
    // An odd number of four words: then words of two rows of the kernel are in all banks.
    const int of_word = 4 / element_bytes, words = (stride * w + kernel + of_word) / of_word;
    pitch = ((words + 3) / 8 * 8 + 4) * of_word;
    const bool copies = of_word == 2 && stride % 2 == 1;
    copy_elements = co * region_rows * pitch;
    region_bytes = (copies ? 2 : 1) * copy_elements * element_bytes;
    other_bytes = weight_bytes + 2 * region_bytes;
  }
  /// Of products: of each channel of y and row of the kernel whole words.
  static constexpr int products_of_row(int kernel, int element_bytes) {
    return element_bytes == 2 ? (kernel + 1) / 2 * 2 : kernel;
  }
  static constexpr int steps(int co, int kernel, int element_bytes) {
    const int of_step = 32 / element_bytes;
    return (co * kernel * products_of_row(kernel, element_bytes) + of_step - 1) / of_step;
  }
  // Places in elements: of y; of product r (products_of_row()) from the pixel's own place on; and of a pixel.
  template <class Taps>
  TAPEDECK_HD int of_y(int m, int row, int column) const {
    return (m * region_rows + row) * pitch + column + Taps::kPadding;
  }
  template <class Taps>
  TAPEDECK_HD int of_product(int r, int of_row) const {
    const int line = r / of_row, m = line / Taps::kKernel;
    return (m * region_rows + line - m * Taps::kKernel) * pitch + r - line * of_row;
  }
  template <class Taps>
  TAPEDECK_HD int of_pixel(int row, int column) const {
    return Taps::kStride * (row * pitch + column);
  }
  /// Where a word that begins there can be read.
  TAPEDECK_HD int of_word(int at, bool has_copy) const {
    return has_copy && at % 2 == 1 ? at + to_copy() : at;
  }
  TAPEDECK_HD int to_copy() const { return copy_elements - 1; }
  int region_rows = 0, weight_bytes = 0;
  int pitch = 0, copy_elements = 0, region_bytes = 0;  // elements; a buffer's bytes
};

/// Rows of x that are multiplied together, of a part of an image; goes from band to band, and from a unit to
/// every `step`-th next one.
struct BandAt {
  TAPEDECK_HD BandAt(const BandPlan& p, const Divider& by_parts, int halo, int first_unit, int of_units)
      : step(of_units) {
    begin(p, by_parts, halo, first_unit);
  }
  TAPEDECK_HD void begin(const BandPlan& p, const Divider& by_parts, int halo, int index) {
    unit = index;
    image = by_parts.divide(unit);
    first = by_parts.modulo(unit, image) * p.part_rows;
    end = first + p.part_rows < p.h ? first + p.part_rows : p.h;
    row = first > halo ? first - halo : 0;
  }
  TAPEDECK_HD int rows(const BandPlan& p) const { return end - row < p.rows ? end - row : p.rows; }
  TAPEDECK_HD void next(const BandPlan& p, const Divider& by_parts, int halo) {
    row += p.rows;
    if (row >= end) begin(p, by_parts, halo, unit + step);
  }
  int unit, image, first, end, row, step;
};

/// Whether there are kernels of bands of so many pixels: for what threads have registers.
/// (Plain ones of half as many took up to 1.4 times as long, though more multiprocessors had some.)
constexpr bool are_bands_compiled(ThinPass pass, int pixels, int products, int operand_parts) {
  if (pass == ThinPass::plain) return pixels == 256;
  if (pixels < 256) return true;
  return operand_parts == 1 && (pass != ThinPass::weight || BandGradPlan::tiles_of_warp(products) <= 3);
}

/// Of the weight's gradient, thread blocks, which leave sums each.
inline int band_blocks(const BandGradPlan& p) {
  return p.units < kMultiprocessors ? p.units : kMultiprocessors;
}

/// As band_pixels().
inline int find_band_pixels(const ConvTranspose2dGeometry& g, ThinPass pass, Layout layout, int element_bytes,
                            int operand_parts) {
  if (layout != Layout::nchw || g.groups != 1 || g.co > kMostChannels || g.co < 1 || g.ci < 16 ||
      g.ci % 16 != 0 || g.ci > kMostBandChannels || g.n == 0 || g.h.in == 0 || g.w.in == 0 ||
      g.w.in > kMostBandPixels || g.w.in * element_bytes % 16 != 0 || g.n * g.h.in >= 1 << 30)
    return 0;
  int found = 0;
  visit_taps(g, [&]<class Taps>() {
    constexpr int K = Taps::kKernel, S = Taps::kStride;
    const int products = static_cast<int>(g.co) * Taps::kTaps;
    for (const int pixels : {256, 128}) {
      if (found > 0 || !are_bands_compiled(pass, pixels, products, operand_parts)) continue;
      if (pass == ThinPass::transposed) {
        const BandMapPlan p(g, Taps::kHalo, Taps::kTaps, pixels, element_bytes, operand_parts);
        if (p.stages > 0) found = pixels;
      } else if (pass == ThinPass::plain) {
        const BandPlainPlan p(g, K, S, pixels, element_bytes, operand_parts);
        const bool fits = p.rows > 0 && p.shared_bytes() <= kMostSharedBytes &&
                          p.has_vectors(pass, p.region_rows, S, element_bytes);
        if (fits) found = pixels;
      } else {
        const BandGradPlan p(g, K, S, pixels, element_bytes);
        const bool is_float = element_bytes == 4, is_full = p.rows * p.w * 8 >= pixels * 7;
        if (p.stages > 0 && p.has_vectors(pass, p.region_rows, S, element_bytes) && is_full &&
            !(is_float && (g.ci < 48 || products < 16)) && !(operand_parts == 2 && (S == 1 || p.w > 48)))
          found = pixels;
      }
    }
    return true;
  });
  return found;
}

/// Pixels of the bands that a pass of a layer takes, or 0 where it takes none: what does not fit, and for
/// what other thin kernels were found faster (H200). Kernels ask for more: aligned tensors, and a weight in
/// nchw.
inline int band_pixels(const ConvTranspose2dGeometry& g, ThinPass pass, Layout layout, int element_bytes,
                       int operand_parts) {
  return remembered(ConvQuestion(g, pass, layout, element_bytes, operand_parts),
                    [&] { return find_band_pixels(g, pass, layout, element_bytes, operand_parts); });
}

/// How many sums of the weight's size its gradient over bands makes, or 0 where it takes none.
inline int band_splits(const ConvTranspose2dGeometry& g, Layout layout, int element_bytes,
                       int operand_parts) {
  const int pixels = band_pixels(g, ThinPass::weight, layout, element_bytes, operand_parts);
  int splits = 0;
  visit_taps(g, [&]<class Taps>() {
    if (pixels > 0)
      splits = band_blocks(BandGradPlan(g, Taps::kKernel, Taps::kStride, pixels, element_bytes));
    return true;
  });
  return splits;
}

}  // namespace tapedeck::conv_thin
