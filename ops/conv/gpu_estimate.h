// About how long each algorithm of a GPU takes for a call, to choose among them (gpu_choice.cu).
//
// An estimate is a sum of terms times factors: a term counts something that the algorithm does (bytes that
// memory moves, products of whole tiles, turns of the thread blocks that run at once) in a unit of its own,
// of which its factor makes microseconds. bench/fit_conv_estimates.py fits the factors of
// gpu_estimate_factors.h, those of a term in its place, to measured times of random layers. Host arithmetic,
// of an H100's sizes: choices do not depend on the device. Copies that both gradients share
// (operand_copies.h) are not thought of.
//
// Of layers that had no part in a fit the chosen algorithm takes 1 to 4% longer than the fastest, by
// geometric means of each pass, layout and precision; what was decided by channels and operations a byte
// before, 13 to 40% (nchw).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <tapedeck/ops/conv/columns.h>
#include <tapedeck/ops/conv/direct_grad_plan.h>
#include <tapedeck/ops/conv/direct_plain.h>
#include <tapedeck/ops/conv/gemm_choice.h>
#include <tapedeck/ops/conv/gpu_terms.h>
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv/strip_plan.h>
#include <tapedeck/ops/conv/thin_bands.h>
#include <tapedeck/ops/conv/thin_products.h>
#include <tapedeck/ops/conv/wgmma_choice.h>

namespace tapedeck::conv_estimate {

using conv_gemm::Plan;

/// Cache lines of y in nchw that a warp's load meets for 32 neighbouring pixels of x: more the larger the
/// stride, and where rows are short.
inline double lines_of_warp(const ConvCall& c) {
  const double columns = static_cast<double>(std::min<std::int64_t>(c.g.w.in, 32)),
               of_row = columns * static_cast<double>(c.g.w.stride * c.operands.element_bytes) / 128;
  return std::min(32.0, std::max(1.0, of_row) * 32 / columns);
}

/// Products of gathered tiles: those of all thread blocks, and of the turns that they run in; of the phase of
/// most taps; and what results in nchw take that are written in parts.
inline Terms of_tensor_map(const ConvCall& c, const Plan& p) {
  const conv_gemm::GemmTile tile = conv_gemm::map_tile(p, true);
  double blocks = 0, chunks = 0;
  for (int i = 0; i < p.h.count; ++i)
    for (int j = 0; j < p.w.count; ++j) {
      const auto of_phase = static_cast<double>(count(p.rows(i, j), tile.m));
      blocks += of_phase;
      chunks += of_phase * p.phase_chunks(i, j);
    }
  const auto across = static_cast<double>(count(p.to_channels, tile.n) * p.groups);
  const double turns = std::ceil(blocks * across / 132), of_turns = turns * chunks / std::max(1.0, blocks);
  const bool transposed = p.is_transposed, last = c.layout == Layout::nhwc;
  const double in = images_moved(c, transposed), out = images_moved(c, !transposed);
  // Neighbouring results of an nchw tensor are a stride apart, or what they read; channels last, vectors may
  // be incomplete.
  const double of_lines = transposed ? (c.g.w.stride > 1 ? out : 0) : in * (lines_of_warp(c) - 1),
               apart = last ? (p.from_channels % p.vector != 0 ? of_turns * tile.m / 1e3 : 0) : of_lines;
  return {1,
          of_turns * tile.m * tile.n / 1e5,
          of_turns * (tile.m + tile.n) / 1e3,
          of_turns / 10,
          in,
          out,
          apart,
          weight_moved(c),
          in_short_rows(c, out),
          transposed && !last ? p.most_chunks() / 10.0 : 0,
          transposed && !last ? out * static_cast<double>(c.g.w.stride - 1) : 0};
}

/// conv2d of nchw images by direct kernels: products and reads of a thread in all turns of blocks; loads, the
/// cache lines that these meet, and weights that blocks of threads bring; and sums that splits add.
inline Terms of_direct_plain(const ConvCall& c) {
  const conv_direct::PlainTiles tiles(c.g, c.g.n);
  const double blocks = static_cast<double>(tiles.blocks * c.g.groups), turns = std::ceil(blocks / 264),
               reads = static_cast<double>(tiles.whole(tiles.of_split)) * tiles.padded_taps * tiles.pixels,
               loads = blocks * conv_direct::kPlainThreads * reads / 1e9;
  return {1,
          turns * reads * tiles.channels / 1e4,
          loads,
          loads * lines_of_warp(c),
          images_moved(c, false),
          images_moved(c, true),
          turns * reads / 1e3,
          blocks * static_cast<double>(c.g.group_co()) * tiles.weights_of_channel() / 1e6,
          tiles.splits > 1 ? turns * tiles.channels * tiles.pixels / 1e2 : 0};
}

/// Direct kernels: what threads load and multiply, of whole blocks of threads; the turns of blocks; results
/// in short rows; and what a thread of the phase of most taps does.
inline Terms of_direct_map(const ConvCall& c, const Plan& p) {
  const bool transposed = p.is_transposed;
  if (!transposed && c.layout == Layout::nchw) return of_direct_plain(c);
  const int channels = p.to_channels == 1 ? 1 : p.to_channels <= 4 ? 4 : p.to_channels <= 8 ? 8 : 16;
  const std::int64_t width = transposed ? c.g.w.out : c.g.w.in;
  std::int64_t columns = 32;
  while (columns < 128 && count(width, 2 * columns) * 2 * columns <= width + width / 8) columns *= 2;
  const std::int64_t rows = 256 / columns * 4;
  const int most_h = p.h.most_taps(), most_w = p.w.most_taps();
  double tiles = 0, tile_taps = 0;
  for (int i = 0; i < p.h.count; ++i) {
    const auto of_phase = static_cast<double>(count(p.h.phase[i].count, rows));
    tiles += of_phase;
    tile_taps += of_phase * p.h.phase[i].taps;
  }
  const double across =
      static_cast<double>(count(width, columns) * count(p.to_channels, channels) * p.groups) * p.n;
  const double loads = tile_taps * across * 1024 * most_w * p.from_channels / 1e9;
  const double turns = std::ceil(tiles * across / 264) * p.from_channels * most_h * most_w / 1e3;
  // Cache lines that a warp's load meets, with all channels between neighbouring results if these are last.
  const auto stride = static_cast<double>(c.g.w.stride);
  const double apart = (transposed ? 1 / stride : stride) * c.operands.element_bytes *
                       (c.layout == Layout::nhwc ? p.from_channels * p.groups : 1),
               lines = std::clamp(apart / 4, 1.0, 32.0);
  return {1,
          loads * channels,
          loads,
          loads * lines,
          images_moved(c, transposed),
          images_moved(c, !transposed),
          turns,
          turns * channels,
          std::ceil(tiles * across / 264) / 10,
          in_short_rows(c, images_moved(c, !transposed)),
          static_cast<double>(most_h) * most_w * p.from_channels / 10};
}

/// Planes of y, in thousands, and their elements, in millions, of as many planes as fill whole turns of 264
/// thread blocks, of which each has one.
struct DepthwisePlanes {
  explicit DepthwisePlanes(const ConvTranspose2dGeometry& g)
      : planes(static_cast<double>(g.n * g.co) / 1e3),
        elements(static_cast<double>(count(g.n * g.co, 264) * 264) * static_cast<double>(g.h.out * g.w.out) /
                 1e6) {}
  double planes, elements;
};

/// Depthwise kernels: images, and products with as many taps as the phase that has most.
inline Terms of_depthwise_map(const ConvCall& c, const Plan& p) {
  const Shape to = p.is_transposed ? c.g.y_shape() : c.g.x_shape();
  const double products =
      static_cast<double>(to.count()) * p.h.most_taps() * p.w.most_taps() * p.from_channels / 1e9;
  const DepthwisePlanes planes(c.g);
  return {1,
          images_moved(c, p.is_transposed),
          images_moved(c, !p.is_transposed),
          products,
          planes.elements,
          planes.planes};
}

/// cuBLASLt's products of so many matrices, some at a time, in small tiles; and their turns.
struct SmallTiles {
  SmallTiles(std::int64_t rows, std::int64_t columns, std::int64_t matrices, double sums, double times)
      : depth(sums + 15) {
    const auto tiles = [&](std::int64_t size) {
      return static_cast<double>(count(rows, size) * count(columns, size) * matrices);
    };
    products = tiles(32) * depth * (32 * 32 / 2.5e7);
    turns = times * std::ceil(tiles(64) / times / 132) / 1e3;
  }
  /// Turns whose sums begin at whole vectors, of which cuBLASLt splits long ones, though not all.
  double split_turns() const { return turns * std::min(depth, 1500.0); }
  double depth, products, turns;
};

/// Products by tiles, if they are, in so many launches: their steps of k on a multiprocessor, those with
/// lines that begin at odd words, those of one block, and the sums of splits.
inline bool add_tiles(const conv_columns::Product& product, const Factors& operands, double launches,
                      Terms& terms) {
  const auto p = product.tiled(operands.element_bytes, operands.parts);
  if (!p) return false;
  const matmul_tiles::Plan plan(*p);
  const auto depth = static_cast<double>(plan.split_depth / matmul_tiles::kDepth),
             splits = static_cast<double>(plan.splits);
  const double steps = launches * depth * splits * static_cast<double>(plan.blocks(p->batch)) / 132;
  terms[18] = steps;
  terms[19] = matmul_tiles::are_odd(*p, product.transposed_a, product.transposed_b) ? steps : 0;
  terms[20] = launches * depth;
  if (plan.splits > 1) terms[21] = moved(launches * splits * static_cast<double>(p->m * p->n * p->batch), 4);
  return true;
}

/// Of x's gradient: products with what is gathered for all taps, whose rows begin anywhere or at whole
/// vectors.
inline Terms of_gathered_columns(const ConvCall& c) {
  const int bytes = c.operands.element_bytes;
  const conv_columns::Gathered z(c.g, bytes, conv_columns::multiple_of(bytes, c.operands.parts));
  const std::int64_t sums = z.padded.rows;
  const auto parts = static_cast<double>(count(c.g.n, z.images));
  const SmallTiles t(c.g.group_ci(), z.padded.line, c.g.groups * c.g.n, static_cast<double>(sums), parts);
  const double gathered = z.lies ? 0 : static_cast<double>(z.of_image) * static_cast<double>(c.g.n);
  const bool are_whole = z.padded.line * bytes % 16 == 0 && sums * bytes % 16 == 0;
  Terms terms{1};  // those of other products of the pass come first
  const conv_columns::Product product = conv_columns::input_product(c.g, z);
  double launches = parts;
  if (!add_tiles(product, c.operands, parts, terms)) {
    launches *= static_cast<double>(product.calls);
    terms[are_whole ? 10 : 11] = t.products;
    terms[12] = are_whole ? t.split_turns() : t.turns * t.depth;
  }
  terms[13] = moved(gathered, bytes), terms[14] = gathered / 1e6;
  terms[15] = images_moved(c, false), terms[16] = images_moved(c, true);
  terms[17] = launches;
  if (z.padded.line != z.pixels) terms[22] = images_moved(c, true);
  return terms;
}

/// Products with all taps, in tiles of 64, their sums, and launches of products, of which tensor cores are
/// slow at rows that are no whole vectors (7; 22: copies to lines that are); or, at float32's accuracy alone,
/// of convolutions, which copy what they read (7 to 9). 18 to 21: add_tiles().
inline Terms of_columns(const ConvCall& c, const Plan& p) {
  if (!p.is_transposed && conv_columns::gathers(c.g, c.layout, c.operands.element_bytes, c.operands.parts))
    return of_gathered_columns(c);
  const bool transposed = p.is_transposed, last = c.layout == Layout::nhwc;
  const int bytes = std::max(4, c.operands.element_bytes);
  const conv_columns::Products z(
      c.g, transposed, bytes,
      last ? 1 : conv_columns::multiple_of(c.operands.element_bytes, c.operands.parts));
  const auto whole = [](std::int64_t size) { return static_cast<double>(count(size, 64) * 64); };
  const auto images = static_cast<double>(c.g.n);
  const bool convolved = conv_columns::is_convolved(c.g, transposed, c.layout, c.operands.parts);
  const double pixels = last ? whole(c.g.n * z.pixels) : whole(z.padded.line) * images;
  const double products = whole(z.padded.rows) * pixels * static_cast<double>(z.sets * c.g.groups) *
                          static_cast<double>(p.from_channels + 15) / 2.5e7;
  const auto parts = static_cast<double>(count(c.g.n, z.images));
  const double in = images_moved(c, transposed);
  Terms terms{1,
              0,
              moved(static_cast<double>(z.of_image) * images, bytes),
              c.g.flops() / p.from_channels / 2e6,
              in,
              images_moved(c, !transposed),
              0,
              convolved ? products : 0,
              convolved ? parts : 0,
              convolved ? in : 0,
              in_short_rows(c, images_moved(c, !transposed))};
  if (!convolved) {
    const conv_columns::Product product = conv_columns::product_of_taps(c.g, transposed, z, last);
    const auto calls = static_cast<double>(z.calls(last));
    const double launches = parts * calls / static_cast<double>(product.calls);
    const bool tiled = add_tiles(product, c.operands, launches, terms);
    terms[6] = tiled ? launches : parts * calls;
    const auto are_whole = [&](std::int64_t size) { return size * c.operands.element_bytes % 16 == 0; };
    if (!tiled) terms[1] = products;
    if (!tiled && c.operands.parts == 1 &&
        !(are_whole(z.padded.rows) &&
          (last ? are_whole(p.from_channels) && are_whole(z.images * z.pixels) : are_whole(z.padded.line))))
      terms[7] = products;
  }
  if (z.padded.line != z.pixels) terms[22] = in;
  return terms;
}

/// The weight's gradient in gathered tiles; parts of sums are written and added.
inline Terms of_tensor_weight_grad(const ConvCall& c) {
  const int bytes = c.operands.element_bytes;
  const conv_gemm::GemmTile tile = conv_gemm::weight_grad_tile(c.g, bytes, true);
  const conv_gemm::PixelSplits share = conv_gemm::weight_grad_splits(c.g, tile, bytes);
  const double tiles =
      static_cast<double>(count(c.g.group_ci(), tile.m) *
                          count(c.g.group_co() * c.g.h.kernel * c.g.w.kernel, tile.n) * c.g.groups);
  const double turns = std::ceil(tiles * share.splits / (132.0 * conv_gemm::weight_grad_blocks(tile))),
               chunks = turns * share.split_chunks;
  return {1,
          chunks * tile.m * tile.n / 1e5,
          chunks * (tile.m + tile.n) / 1e3,
          chunks / 10,
          images_moved(c, true) + images_moved(c, false),
          weight_moved(c) * (share.splits + 1)};
}

/// Products with pixels that are gathered for all taps, whose rows begin anywhere (9, 10; 12: their launches)
/// or at whole vectors; parts of sums are written and added.
inline Terms of_columns_weight_grad(const ConvCall& c) {
  const int bytes = c.operands.element_bytes;
  const conv_columns::Gathered z(c.g, bytes, conv_columns::multiple_of(bytes, c.operands.parts));
  const std::int64_t columns = z.padded.rows;
  const auto parts = static_cast<double>(count(c.g.n, z.images)), images = static_cast<double>(c.g.n);
  const SmallTiles t(c.g.group_ci(), columns, c.g.groups * c.g.n, static_cast<double>(z.padded.line), parts);
  const double gathered = z.lies ? 0 : static_cast<double>(z.of_image) * images;
  const bool are_whole = z.padded.line * bytes % 16 == 0 && columns * bytes % 16 == 0;
  Terms terms{1};
  terms[2] = moved(gathered, bytes), terms[3] = gathered / 1e6;
  terms[4] = images_moved(c, true), terms[5] = images_moved(c, false);
  terms[6] = parts, terms[7] = moved(static_cast<double>(c.g.weight_shape().count()) * images, 4);
  if (z.padded.line != z.pixels) terms[22] = images_moved(c, true);
  if (add_tiles(conv_columns::weight_product(c.g, z), c.operands, parts, terms)) return terms;
  terms[1] = t.products, terms[8] = t.split_turns(), terms[11] = t.turns * t.depth;
  if (!are_whole) terms[9] = t.products, terms[10] = t.turns * t.depth, terms[12] = parts;
  return terms;
}

/// Direct kernels of the weight's gradient: products of whole tiles, loads of y and of x, the cache lines
/// that y's meet; and what a thread does in all turns of blocks, and how many these are.
inline Terms of_direct_weight_grad(const ConvCall& c) {
  const conv_direct::GradTiles tiles(c.g);
  const double blocks = static_cast<double>(tiles.blocks * tiles.splits),
               pixels = blocks * static_cast<double>(tiles.split_pixels) / 1e9,
               apart = static_cast<double>(c.g.w.stride * c.operands.element_bytes *
                                           (c.layout == Layout::nhwc ? c.g.co : 1)),
               lines = std::clamp(apart / 4, 1.0, 32.0), turns = std::ceil(blocks / 264);
  return {1,
          pixels * tiles.sums.channels * tiles.sums.taps,
          pixels * tiles.sums.taps,
          pixels * tiles.sums.channels,
          pixels * tiles.sums.taps * lines,
          images_moved(c, true) + images_moved(c, false),
          turns * static_cast<double>(tiles.split_pixels) / conv_direct::kGradThreads * tiles.sums.taps / 1e3,
          turns * tiles.sums.channels * tiles.sums.taps / 1e3,
          weight_moved(c) * static_cast<double>(tiles.splits + 1)};
}

/// In nchw groups of one channel each way, which have faster kernels and are not chosen by their time, and
/// others have terms of their own. Channels last, threads of a block add their sums one after the other,
/// those of few channels more often; and where vectors are incomplete, they have elements.
inline Terms of_depthwise_weight_grad(const ConvCall& c) {
  const DepthwisePlanes planes(c.g);
  const double x = images_moved(c, true), y = images_moved(c, false), products = c.g.flops() / 2e9;
  if (c.layout == Layout::nchw && c.g.group_ci() * c.g.group_co() > 1)
    return {1, 0, 0, 0, 0, 0, x, y, products, planes.elements, planes.planes};
  Terms t{1, x, y, products};
  if (c.layout == Layout::nchw) {
    t[4] = planes.elements, t[5] = planes.planes;
  } else {
    const std::int64_t channels = std::min<std::int64_t>(c.g.co, 128), vector = c.g.co % 4 == 0 ? 4 : 1;
    t[6] = 256.0 / static_cast<double>(count(channels, vector));
    t[7] = vector == 1 ? t[3] : 0;
  }
  return t;
}

/// moved() images in nchw whose rows are no multiples of so many bytes, or nothing.
inline double of_uneven_rows(const ConvCall& c, bool x, int bytes) {
  const std::int64_t row = (x ? c.g.w.in : c.g.w.out) * c.operands.element_bytes;
  return c.layout == Layout::nchw && row % bytes != 0 ? images_moved(c, x) : 0;
}

/// Strips: in clocks at about what a multiprocessor does in one, but for stages and weights; of gradients
/// rows that cannot be copied 16 bytes at a time, or not even four.
inline Terms of_strip(const ConvCall& c, const conv_strip::StripEffort& effort) {
  const bool gradient = c.pass != ConvPass::forward, of_weight = c.pass == ConvPass::weight_gradient;
  return {1,
          effort.bytes / 17.7 / 1700,
          effort.products / 1700,
          effort.stages,
          effort.copies / 1700,
          images_moved(c, true),
          images_moved(c, false),
          weight_moved(c),
          effort.weights / 1e3,
          in_short_rows(c, images_moved(c, false)),
          of_weight ? of_uneven_rows(c, true, 16) : 0,
          of_weight ? of_uneven_rows(c, false, 16) : 0,
          gradient ? of_uneven_rows(c, true, 4) : 0,
          gradient ? of_uneven_rows(c, false, 4) : 0};
}

inline conv_thin::ThinPass thin_pass(ConvPass pass) {
  using enum conv_thin::ThinPass;
  return pass == ConvPass::forward ? transposed : pass == ConvPass::input_gradient ? plain : weight;
}
/// What kernels over bands take of the time that tiles would, to which factors are fitted: geometric means of
/// a dozen layers on an H200, by pass and precision as factors.
inline double share_of_bands(const ConvCall& c) {
  constexpr double kShares[3][3] = {{0.9, 0.56, 0.65}, {0.82, 0.8, 0.8}, {0.87, 0.78, 0.72}};
  if (conv_thin::band_pixels(c.g, thin_pass(c.pass), c.layout, c.operands.element_bytes,
                             c.operands.halves()) == 0)
    return 1;
  return kShares[static_cast<int>(c.pass)][precision_index(c.operands)];
}

/// Thin products: of a multiprocessor's tiles what tensor cores multiply, the elements of x, those that are
/// copied or written by words, what is gathered or added up in shared memory, and tiles and bands; weights
/// that blocks bring, or sums that they leave.
inline Terms of_thin(const ConvCall& c) {
  using namespace conv_thin;
  const ThinPass pass = thin_pass(c.pass);
  const std::optional<ThinPlan> plan =
      thin_plan(c.g, pass, c.layout, c.operands.element_bytes, c.operands.halves());
  if (!plan) return {};
  const ThinPlan& p = *plan;
  const std::int64_t blocks = p.blocks();
  double tiles = p.waves() * blocks_of_registers(pass, p.operand_parts, p.at_once), pixels = 0,
         channels = p.channels, products = p.padded_products, shared = 0, steps = 1;
  if (pass == ThinPass::transposed) {
    const int rows = p.h.size + (p.h.tiles > 1 ? p.h.halo() : 0);
    steps = count(rows, p.h.band);
    pixels = steps * count(p.h.band * p.w.region, kThinWarps * kThinPixels) * kThinWarps * kThinPixels;
    const auto taps = count(p.h.kernel, p.h.stride) * count(p.w.kernel, p.w.stride);
    shared = static_cast<double>(p.h.size * p.h.stride) * count(p.w.size, 32) * 32 * p.co * taps;
  } else {
    const int of_step = kThinWarps * (pass == ThinPass::plain ? kThinPixels : 64 / c.operands.element_bytes);
    pixels = count(p.h.size * p.w.size, of_step) * of_step;
    shared = static_cast<double>(p.lines()) * p.w.region;
    if (pass == ThinPass::weight) {
      const auto of_block = 128 / c.operands.element_bytes;
      channels = of_block, products = p.at_once * 16;
      const auto others = count(p.ci, of_block) * count(p.products, p.at_once * 16);
      tiles = static_cast<double>(count(blocks * others, kMultiprocessors) * count(p.tiles(), blocks));
    }
  }
  const double elements = tiles * pixels * channels / 1e5;
  return {1,
          elements * products / 1e2,
          elements,
          p.by_words ? elements : 0,
          tiles * pixels * products / 1e5,
          tiles * shared / 1e5,
          tiles * steps,
          images_moved(c, true),
          images_moved(c, false),
          pass == ThinPass::weight
              ? static_cast<double>(blocks) * p.ci * p.products / 1e6
              : static_cast<double>(count(blocks, kMultiprocessors)) * p.weight_bytes() / 1e5};
}

/// The terms of an algorithm that can compute the call, else perhaps none; `strip`: what strips would do.
inline Terms terms_of(ConvAlgorithm algorithm, const ConvCall& c, const conv_strip::StripEffort& strip) {
  if (algorithm == ConvAlgorithm::strip) return of_strip(c, strip);
  if (algorithm == ConvAlgorithm::thin) return of_thin(c);
  if (c.pass == ConvPass::weight_gradient) {
    if (algorithm == ConvAlgorithm::windows) return conv_gemm::of_windows_weight_grad(c);
    if (algorithm == conv_gemm::boxes_of_weight_grad(c.operands)) return conv_gemm::of_boxes_weight_grad(c);
    if (algorithm == ConvAlgorithm::rows) return conv_gemm::of_rows_weight_grad(c);
    if (algorithm == ConvAlgorithm::tensor) return of_tensor_weight_grad(c);
    if (algorithm == ConvAlgorithm::direct) return of_direct_weight_grad(c);
    if (algorithm == ConvAlgorithm::columns) return of_columns_weight_grad(c);
    return algorithm == ConvAlgorithm::depthwise ? of_depthwise_weight_grad(c) : Terms{};
  }
  if (is_way_of_wgmma(algorithm)) return conv_gemm::of_map(algorithm, c);
  const Plan p(c.g, c.pass == ConvPass::forward, c.operands.element_bytes);
  if (algorithm == ConvAlgorithm::tensor) return of_tensor_map(c, p);
  if (algorithm == ConvAlgorithm::columns) return of_columns(c, p);
  if (algorithm == ConvAlgorithm::direct) return of_direct_map(c, p);
  return algorithm == ConvAlgorithm::depthwise ? of_depthwise_map(c, p) : Terms{};
}

/// Microseconds; infinity where too few such calls were measured.
inline double estimate(ConvAlgorithm algorithm, const ConvCall& c, const conv_strip::StripEffort& strip) {
  if (algorithm == ConvAlgorithm::wgmma)
    return c.pass == ConvPass::weight_gradient
               ? conv_gemm::weight_grad_way(c.g, c.layout, c.layout, c.operands).microseconds
               : conv_gemm::map_way(c.g, c.pass == ConvPass::forward, c.layout, conv_gemm::map_results(c),
                                    c.operands)
                     .microseconds;
  return microseconds(algorithm, c, terms_of(algorithm, c, strip)) *
         (algorithm == ConvAlgorithm::thin ? share_of_bands(c) : 1);
}

}  // namespace tapedeck::conv_estimate
