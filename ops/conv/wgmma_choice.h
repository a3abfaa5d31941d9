// How maps of the family are computed with Hopper's instructions (weight_grad_choice.h: the weight's
// gradient): over boxes of pixels (wgmma_box.cuh), of the tensors' own type, or for float32 of scaled halves
// (scaled_half.cuh); or with operands gathered for each tap (wgmma_map.cuh), where images are so small that
// boxes are mostly padding, or there is little work. Host arithmetic: wgmma_choice.cuh does what is chosen
// here, explain() says it.
#pragma once

#include <algorithm>
#include <limits>

#include <tapedeck/ops/conv/box_choice.h>
#include <tapedeck/ops/conv/box_gather.h>
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/ops/conv/weight_grad_choice.h>
#include <tapedeck/ops/conv/windows_choice.h>

namespace tapedeck::conv_gemm {

/// That a copy reads and writes in a clock of an H200, at 4.06 TB/s (an H100: 1700).
inline constexpr double kCopiedBytes = 2300;

/// About how many clocks it takes to make halves of `images` elements, beyond what is copied with any kernel:
/// where these copy nothing, they are read and written, and if they are few, read once more for their largest
/// magnitude. Halves that the weight's gradient needs anyway save that copy.
inline double halves_clocks(std::int64_t images, Layout layout, int parts, bool for_weight_grad) {
  const double copied = layout == Layout::nchw ? 8 : 0, count = static_cast<double>(images);
  if (for_weight_grad) return -count * copied / kCopiedBytes;
  const double read = images < kLeastSampled ? 8 : 4;
  return count * (read + 2 * parts - copied) / kCopiedBytes + 8000;
}

/// The most that is written at once of results of so many bytes, in images `width` wide of a tensor that
/// begins at an address. The tensor memory accelerator knows multiples of 16 bytes.
inline BoxResults box_results(Layout layout, std::int64_t width, int bytes, std::uintptr_t address) {
  if (layout != Layout::nchw) return address % 16 == 0 ? BoxResults::pixels : BoxResults::channels;
  if (width * bytes % 16 == 0 && address % 16 == 0) return BoxResults::boxes;
  return width % 2 == 0 && address % (2 * static_cast<unsigned>(bytes)) == 0 ? BoxResults::pairs
                                                                             : BoxResults::rows;
}

enum class MapKind { windows, boxes, halves };

/// How a map of the family is computed.
struct MapWay {
  MapKind kind = MapKind::windows;
  BoxWay boxes;  // of the tensors' own type, or halves
  Plan plan;     // of windows
  WindowsTile windows;
  double clocks = 0;  // an estimate of the kernel's

  bool gathers() const { return kind != MapKind::windows && boxes.choice.gathers(); }
};

/// What it takes to find the largest magnitude of so many elements.
inline double largest_clocks(std::int64_t images, bool may_be_sampled) {
  const bool sampled = may_be_sampled && images >= kLeastSampled;
  return kKernelClocks + (sampled ? 0 : 4 * static_cast<double>(images) / kCopiedBytes);
}

/// Boxes that a map may be over: of what, and what their ways take.
struct BoxKind {
  MapKind kind;
  ConvAlgorithm name;  // which forces them
  int element_bytes, parts;
  double least = 0, more = 0;  // clocks: of memory, and of preparing, more or less than a copy of nchw images

  bool gathers() const { return name == ConvAlgorithm::gathered; }
};
/// Calls f with those that compute a map to images of `results` from those of a layout. `shared`: whether the
/// weight's gradient needs a copy anyway.
template <class F>
void for_box_kinds(const ConvTranspose2dGeometry& g, bool transposed, Layout from, BoxResults results,
                   const Factors& f, bool shared, const F& offer) {
  const std::int64_t x = g.x_shape().count(), y = g.y_shape().count(), images = transposed ? x : y;
  const bool may_gather = from == Layout::nchw && !have_channels_last(results) && !shared;
  constexpr double kBytes = 2100;  // of memory in a clock
  const double moved = static_cast<double>(x + y) * f.element_bytes / kBytes,
               copied = static_cast<double>(images) * 2 * f.element_bytes / kCopiedBytes + kKernelClocks;
  if (f.parts == 1) offer(BoxKind{MapKind::boxes, ConvAlgorithm::boxes, f.element_bytes, 1});
  if (!f.are_float()) {
    if (may_gather) offer(BoxKind{MapKind::boxes, ConvAlgorithm::gathered, 2, 1, moved, -copied});
  } else if (halves_fit(g, f.halves())) {
    offer(BoxKind{MapKind::halves, ConvAlgorithm::halves, 2, f.halves(), 0,
                  halves_clocks(images, from, f.halves(), shared)});
    if (may_gather) offer(BoxKind{MapKind::halves, ConvAlgorithm::gathered, 2, f.halves(), moved, -copied});
  }
}
/// What a way of theirs takes, to be compared.
inline double clocks_of(const BoxKind& k, const ConvTranspose2dGeometry& g, bool transposed, const Factors& f,
                        const BoxWay& way) {
  const std::int64_t images = (transposed ? g.x_shape() : g.y_shape()).count();
  const double largest = k.gathers() && f.are_float() ? largest_clocks(images, may_be_sampled(way.plan)) : 0;
  return std::max(way.choice.clocks, k.least) + largest + k.more;
}

/// The way of least clocks to images of `results` from those of a layout, or the one that is forced.
/// `shared`: whether a copy for boxes serves the weight's gradient, too.
inline MapWay map_way(const ConvTranspose2dGeometry& g, bool transposed, Layout from, BoxResults results,
                      const Factors& f, bool shared = false) {
  const ConvAlgorithm forced = conv_algorithm();
  const ConvTiling tiling = ConvAlgorithmScope::tiling();
  MapWay way;
  way.plan = Plan(g, transposed, f.element_bytes);
  way.windows = windows_tile(way.plan, f.parts);
  way.clocks = way.windows.clocks;
  const bool gaps = !have_channels_last(results) && transposed && g.w.stride > 1;
  if (forced == ConvAlgorithm::windows) return way;
  // Of the ways so far. Where windows and boxes seem to take as long, boxes are faster: of 36 calls whose
  // choice between the two changed when estimates changed a little, windows took 1.1 times as long (an H200).
  double least = 1.05 * way.clocks + (gaps ? static_cast<double>(g.y_shape().count()) * kGapClocks / 132 : 0);
  for_box_kinds(g, transposed, from, results, f, shared, [&](const BoxKind& k) {
    const bool is_forced = forced == k.name;
    const auto find = [&](const ConvTiling& of) {
      return known_box_way(g, transposed, k.element_bytes, k.parts, results, f.element_bytes, k.gathers(),
                           of);
    };
    BoxWay boxes = find(is_forced ? tiling : ConvTiling());
    if (is_forced && tiling.exists() && boxes.choice.places == 0) boxes = find({});
    if (boxes.choice.places == 0) return;
    const double clocks = clocks_of(k, g, transposed, f, boxes);
    if (clocks >= least && !is_forced) return;
    way.kind = k.kind, way.boxes = boxes, way.clocks = clocks - k.more;
    least = is_forced ? -std::numeric_limits<double>::infinity() : clocks;
  });
  return way;
}

}  // namespace tapedeck::conv_gemm
