// How channels meet the lanes of vectors, and the weights packed for it.
#pragma once

#include <vector>

#include <tapedeck/ops/conv/plan.h>
#include <tapedeck/ops/micro/kernels.h>
#include <tapedeck/ops/micro/scratch.h>

namespace tapedeck::cpu {

enum class Lanes : std::uint8_t {
  wide,         ///< result channels of a group: panels [slot][f][t]
  thin,         ///< channels that are read, where result channels are few: [t][slot][f], f in whole vectors
  channelwise,  ///< result channels of all groups, where groups are narrow: [slot][f][t]; each lane reads its
                ///< own
};

/// Result channels [channel, channel + columns) of a group (of all groups if channelwise), and where their
/// weights are packed. The last panel is the widest.
struct Panel {
  std::int64_t group, channel, columns, width, offset;
};

template <class T>
struct Packed {
  Lanes lanes = Lanes::wide;
  std::int64_t depth = 0;  // elements of a column of a panel for each slot
  std::int64_t pixel = 0;  // elements of a pixel that is read
  std::vector<Panel> panels;
  std::int64_t width = 0;  // of the widest panel
  std::int64_t tile = 0;   // rows of its tile
  Scratch<T> weights;
  Scratch<T> start;  // the bias and some zeros
  bool has_start = false;
};

/// Where the slot of tap k lies, in slots.
std::int64_t slot_of(const ConvMap& map, std::int64_t k);
/// What a call has for such lanes, but the weights; bias may be undefined.
template <class T>
Packed<T> without_weights(const ConvMap& map, Lanes lanes, const Tensor& bias);
/// Packs channels [f, f + count) that are read of a panel, `wide`, whose slots are slot_step apart:
/// [slot][channel][lane].
template <class T>
void pack_channels(const ConvMap& map, const Panel& p, const T* from, std::int64_t f, std::int64_t count,
                   T* to, std::int64_t slot_step);
/// How many of them are best packed at a time.
std::int64_t channels_at_once(const ConvMap& map, const std::vector<Panel>& panels);
/// All of it; the weights are kept with w for the next call (ops/micro/made_of.h).
template <class T>
Packed<T> pack(const ConvMap& map, Lanes lanes, const Tensor& w, const Tensor& bias);

}  // namespace tapedeck::cpu
