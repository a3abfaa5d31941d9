// How maps of the family are computed with Hopper's instructions (weight_grad_choice.h: the weight's
// gradient): over boxes of pixels (wgmma_box.cuh), of the tensors' own type, or for float32 of scaled halves
// (scaled_half.cuh); or with operands gathered for each tap (wgmma_map.cuh), where images are so small that
// boxes are mostly padding, or there is little work. Host arithmetic: wgmma_choice.cuh does what is chosen
// here, explain() says it.
#pragma once

#include <cstdint>
#include <limits>

#include <tapedeck/ops/conv/box_choice.h>
#include <tapedeck/ops/conv/gpu_terms.h>
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv/weight_grad_choice.h>
#include <tapedeck/ops/conv/windows_choice.h>

namespace tapedeck::conv_gemm {

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
  double microseconds = std::numeric_limits<double>::infinity();  // an estimate

  bool gathers() const { return kind != MapKind::windows && boxes.choice.gathers(); }
};

/// Boxes that a map may be over: of what.
struct BoxKind {
  MapKind kind;
  ConvAlgorithm name;  // which forces them
  int element_bytes, parts;

  bool gathers() const { return name == ConvAlgorithm::gathered; }
};
/// Calls f with those that compute a map to images of `results` from those of a layout. `shared`: whether the
/// weight's gradient needs a copy anyway.
template <class F>
void for_box_kinds(const ConvTranspose2dGeometry& g, Layout from, BoxResults results, const Factors& f,
                   bool shared, const F& offer) {
  const bool may_gather = from == Layout::nchw && !have_channels_last(results) && !shared;
  if (f.parts == 1) offer(BoxKind{MapKind::boxes, ConvAlgorithm::boxes, f.element_bytes, 1});
  if (!f.are_float()) {
    if (may_gather) offer(BoxKind{MapKind::boxes, ConvAlgorithm::gathered, 2, 1});
  } else if (halves_fit(g, f.halves())) {
    offer(BoxKind{MapKind::halves, ConvAlgorithm::halves, 2, f.halves()});
    if (may_gather) offer(BoxKind{MapKind::halves, ConvAlgorithm::gathered, 2, f.halves()});
  }
}

inline constexpr double kClocksOfMicrosecond = 1700;

/// The way that is estimated to take the least time to images of `results` from those of a layout, or the one
/// that is forced. `shared`: whether a copy for boxes serves the weight's gradient, too.
MapWay map_way(const ConvTranspose2dGeometry& g, bool transposed, Layout from, BoxResults results,
               const Factors& f, bool shared = false);
/// box_results() of images of the call's layout that begin at whole vectors.
BoxResults map_results(const conv_estimate::ConvCall& c);

constexpr conv_estimate::ConvPass map_pass(bool transposed) {
  return transposed ? conv_estimate::ConvPass::forward : conv_estimate::ConvPass::input_gradient;
}
/// The microseconds of a way over boxes; infinity where too few calls of the kind were measured. `plan`: the
/// call's, of windows.
double map_microseconds(const conv_estimate::ConvCall& c, const BoxKind& kind, const BoxWay& way,
                        const Plan& plan);
/// What estimates are made of (gpu_estimate.h): windows, boxes, halves or gathered; zeros where there are
/// none.
conv_estimate::Terms of_map(ConvAlgorithm algorithm, const conv_estimate::ConvCall& c);

}  // namespace tapedeck::conv_gemm
