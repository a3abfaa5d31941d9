// Images as vectors of channels: what kernels read that gather by 16 bytes.
#pragma once

#include <functional>
#include <memory>

#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/ops/prologue.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/ops/conv/preparations.cuh>
#include <tapedeck/ops/largest.cuh>

namespace tapedeck::cu {

/// Elements of `images` [n,c,h,w] in the order n, h, w, group, channel, a group's channels padded with zeros
/// to whole vectors of conv_gemm::kVectorBytes: the tensor itself where it is like this, else a copy, which
/// make() fills. channels_last.cu.
class ChannelsLast {
 public:
  /// `rows`: the axis whose outputs the rows of `images` are; the copy leaves out those that no tap reaches,
  /// in nhwc what is whole tiles of them.
  /// nullptr: all are copied. `fold`: how many columns are one (fold.h), of one group of whole vectors.
  /// `prologue`: where it exists, what the copy is made by, of all rows; can_apply() it.
  ChannelsLast(const Tensor& images, int groups, const ConvAxis* rows = nullptr, int fold = 1,
               const Prologue& prologue = {});
  /// A copy of float32 images as `parts` float16 numbers each (scaled_half.cuh), scaled for their `largest`
  /// magnitude: a pixel has the first parts of all groups, then the second ones, like so many more groups.
  ChannelsLast(const Tensor& images, int groups, const ConvAxis* rows, int fold, int parts,
               const Magnitude& largest, const Prologue& prologue = {});

  /// Whether a prologue may be applied to images: there is a copy. `scaled`: of halves.
  static bool can_apply(const Tensor& images, int groups, bool scaled);

  /// Queues what fills the copy on the current stream, if there is one and it is new; preparations.end()
  /// completes it. `leaves_room`: a transpose, for a kernel that packs weights beside it.
  void make(Preparations& preparations, bool leaves_room = false) const {
    if (make_) make_(preparations, leaves_room);
  }

  const void* data;
  conv_gemm::ImageStrides strides;
  int group_channels;  // padded, of all columns that are one

 private:
  template <class Split>
  void copy(const Tensor& images, int groups, const ConvAxis* rows, int fold, const Magnitude& largest,
            const Prologue& prologue);
  void fold_columns(int fold);

  std::shared_ptr<void> copy_;
  std::function<void(Preparations&, bool leaves_room)> make_;
};

}  // namespace tapedeck::cu
