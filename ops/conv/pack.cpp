#include <tapedeck/ops/conv/pack.h>

#include <algorithm>

#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/micro/made_of.h>

namespace tapedeck::cpu {

namespace {

std::int64_t padded(std::int64_t channels, std::int64_t lanes) {
  return (channels + lanes - 1) / lanes * lanes;
}

/// For each group, panels of up to `most` units of `unit` channels, as equal as can be.
std::vector<Panel> make_panels(std::int64_t groups, std::int64_t channels, std::int64_t unit,
                               std::int64_t most, std::int64_t column) {
  const std::int64_t units = (channels + unit - 1) / unit, count = (units + most - 1) / most;
  std::vector<Panel> panels;
  std::int64_t offset = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t first = units * i / count * unit, width = units * (i + 1) / count * unit - first;
      panels.push_back({g, first, std::min(width, channels - first), width, offset});
      offset += width * column;
    }
  }
  return panels;
}

template <class T>
void pack_wide(const ConvMap& map, const T* from, const Packed<T>& packed, T* weights) {
  const std::int64_t channels = map.from_channels, together = channels_at_once(map, packed.panels);
  const std::int64_t steps = (channels + together - 1) / together;
  parallel_for(static_cast<std::int64_t>(packed.panels.size()) * steps,
               1 + (1 << 14) / (together * map.taps() * packed.width),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const Panel& p = packed.panels[static_cast<std::size_t>(i / steps)];
                   const std::int64_t f = i % steps * together;
                   pack_channels(map, p, from, f, std::min(together, channels - f),
                                 weights + p.offset + f * p.width, channels * p.width);
                 }
               });
}

template <class T>
void pack_thin(const ConvMap& map, const T* from, const Packed<T>& packed, T* weights) {
  const std::int64_t taps = map.taps();
  for (const Panel& p : packed.panels) {
    for (std::int64_t i = 0; i < p.columns * taps; ++i) {
      const std::int64_t t = i / taps, k = i % taps;
      T* to = weights + p.offset + (t * taps + slot_of(map, k)) * packed.depth;
      for (std::int64_t f = 0; f < packed.depth; ++f) {
        to[f] = f < map.from_channels ? from[map.weight_index(p.group, f, p.channel + t, k)] : T(0);
      }
    }
  }
}

template <class T>
void pack_channelwise(const ConvMap& map, const T* from, const Packed<T>& packed, T* weights) {
  for (const Panel& p : packed.panels) {
    for (std::int64_t i = 0; i < map.taps() * map.from_channels; ++i) {
      const std::int64_t k = i / map.from_channels, f = i % map.from_channels;
      T* to = weights + p.offset + (slot_of(map, k) * map.from_channels + f) * p.width;
      for (std::int64_t lane = 0; lane < p.width; ++lane) {
        const std::int64_t t = p.channel + lane;
        to[lane] =
            lane < p.columns ? from[map.weight_index(t / map.to_channels, f, t % map.to_channels, k)] : T(0);
      }
    }
  }
}

template <class T>
Scratch<T> pack_weights(const ConvMap& map, const Packed<T>& packed, const Tensor& w) {
  const Scratch<T> to(packed.panels.back().offset + packed.width * map.taps() * packed.depth);
  switch (packed.lanes) {
    case Lanes::wide:
      pack_wide(map, w.data<T>(), packed, to.data());
      break;
    case Lanes::thin:
      pack_thin(map, w.data<T>(), packed, to.data());
      break;
    case Lanes::channelwise:
      pack_channelwise(map, w.data<T>(), packed, to.data());
      break;
  }
  return to;
}

}  // namespace

std::int64_t slot_of(const ConvMap& map, std::int64_t k) {
  const auto kernel_w = static_cast<std::int64_t>(map.w.slot_of_tap.size());
  return map.h.slot_of_tap[static_cast<std::size_t>(k / kernel_w)] * kernel_w +
         map.w.slot_of_tap[static_cast<std::size_t>(k % kernel_w)];
}

/// One transpose for all of them in the plain direction, whose weights have a row for each result channel;
/// for each in the other.
template <class T>
void pack_channels(const ConvMap& map, const Panel& p, const T* from, std::int64_t f, std::int64_t count,
                   T* to, std::int64_t slot_step) {
  const std::int64_t taps = map.taps(), together = map.direction == Direction::plain ? count : 1;
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(together * taps));
  for (std::int64_t k = 0; k < together * taps; ++k) {
    offsets[static_cast<std::size_t>(k)] = slot_of(map, k % taps) * slot_step + k / taps * p.width;
  }
  for (std::int64_t i = 0; i < count; i += together, to += together * p.width) {
    for (const std::int64_t at : offsets) std::fill(to + at + p.columns, to + at + p.width, T(0));
    const std::int64_t at = map.weight_index(p.group, f + i, p.channel, 0);
    const std::int64_t next = map.weight_index(p.group, f + i, p.channel + 1, 0);
    micro::kernels<T>().transpose({from + at, next - at, p.columns, together * taps, to, 0, offsets.data()});
  }
}

std::int64_t channels_at_once(const ConvMap& map, const std::vector<Panel>& panels) {
  constexpr std::int64_t kItems = 16;  // for many threads
  const std::int64_t share = map.from_channels * static_cast<std::int64_t>(panels.size()) / kItems;
  return std::clamp<std::int64_t>(share, 1, map.direction == Direction::plain ? 32 : 8);
}

template <class T>
Packed<T> without_weights(const ConvMap& map, Lanes lane_use, const Tensor& bias) {
  const auto& kernels = micro::kernels<T>();
  const std::int64_t lanes = kernels.lanes, taps = map.taps(), all = map.groups * map.to_channels;
  Packed<T> packed;
  packed.lanes = lane_use;
  packed.depth = map.from_channels;
  packed.pixel = map.groups * map.from_channels;
  std::int64_t unit = lanes, most = kernels.max_vectors, groups = map.groups, channels = map.to_channels;
  if (packed.lanes == Lanes::thin) {
    packed.depth = padded(map.from_channels, lanes);
    packed.pixel = map.groups * packed.depth;
    unit = 1;
    most = kernels.max_dots;
  } else if (packed.lanes == Lanes::channelwise) {
    packed.pixel = map.from_channels * padded(all, lanes);
    groups = 1;
    channels = all;
  }
  packed.panels = make_panels(groups, channels, unit, most, taps * packed.depth);
  packed.width = packed.panels.back().width;
  packed.tile = packed.lanes == Lanes::wide   ? kernels.tile_rows[packed.width / lanes]
                : packed.lanes == Lanes::thin ? std::min<std::int64_t>(8, lanes / packed.width)
                                              : 4;
  if (bias.defined()) {
    const std::int64_t zeros = lanes * kernels.max_vectors;
    packed.has_start = true;
    packed.start = Scratch<T>(all + zeros);
    std::copy_n(bias.data<T>(), all, packed.start.data());
    std::fill_n(packed.start.data() + all, zeros, T(0));
  }
  return packed;
}

template <class T>
Packed<T> pack(const ConvMap& map, Lanes lanes, const Tensor& w, const Tensor& bias) {
  Packed<T> packed = without_weights<T>(map, lanes, bias);
  MadeKey key{Maker::windows,
              {static_cast<std::int64_t>(map.direction), static_cast<std::int64_t>(lanes), map.groups,
               map.from_channels, map.to_channels, static_cast<std::int64_t>(map.h.slot_of_tap.size())}};
  key.sizes.insert(key.sizes.end(), map.h.slot_of_tap.begin(), map.h.slot_of_tap.end());
  key.sizes.insert(key.sizes.end(), map.w.slot_of_tap.begin(), map.w.slot_of_tap.end());
  packed.weights = made_of<T>(w, std::move(key), [&] { return pack_weights(map, packed, w); });
  return packed;
}

template Packed<float> without_weights<float>(const ConvMap&, Lanes, const Tensor&);
template void pack_channels<float>(const ConvMap&, const Panel&, const float*, std::int64_t, std::int64_t,
                                   float*, std::int64_t);
template Packed<float> pack<float>(const ConvMap&, Lanes, const Tensor&, const Tensor&);
template Packed<double> pack<double>(const ConvMap&, Lanes, const Tensor&, const Tensor&);

}  // namespace tapedeck::cpu
