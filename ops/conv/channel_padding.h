// Where a copy of images with channels last finds what it pads: groups of channels, of which each begins a
// vector (ChannelsLast, channels_last.cu).
//
// Channels lie as c c c c c c ..., pixel after pixel and group after group without gaps; the copy has a whole
// number of vectors for each group, the last filled with zeros. So the vectors of a tile, in their order,
// read one stretch of the source, in its order: it is brought to shared memory as it lies.
#pragma once

#include <cstdint>

#include <tapedeck/ops/conv/gemm_plan.h>

namespace tapedeck::conv_gemm {

/// A vector, and the elements of the source that it begins with.
struct PaddedVector {
  int pixel, vector;     // of which pixel after a tile's first, and which of its vectors
  int source, elements;  // after that first pixel, and how many
};

struct ChannelPadding {
  ChannelPadding() = default;
  /// Of vectors of so many elements.
  ChannelPadding(int all_channels, int groups, int of_vector)
      : channels(all_channels),
        group_channels(all_channels / groups),
        elements(of_vector),
        of_group(count(group_channels, elements)),
        of_pixel(groups * count(group_channels, elements)) {}

  /// `at`: of the vectors from a pixel on.
  TAPEDECK_HD PaddedVector vector(int at) const {
    const int pixel = of_pixel.divide(at), of = of_pixel.modulo(at, pixel), group = of_group.divide(of),
              first = of_group.modulo(of, group) * elements;
    const int left = group_channels - first;
    return {pixel, of, pixel * channels + group * group_channels + first, left < elements ? left : elements};
  }
  TAPEDECK_HD int vectors() const { return static_cast<int>(of_pixel.divisor); }

  int channels = 1, group_channels = 1, elements = 1;
  Divider of_group, of_pixel;  // vectors
};

/// The vectors first to end - 1 of a tile, counted from the first one of a pixel: `tile_vectors`, of the last
/// tile perhaps fewer.
struct PaddedTile {
  TAPEDECK_HD PaddedTile(const ChannelPadding& p, int tile, int tile_vectors, std::int64_t pixels)
      : pixel(std::int64_t{tile} * tile_vectors / p.vectors()),
        first(static_cast<int>(std::int64_t{tile} * tile_vectors - pixel * p.vectors())) {
    const std::int64_t left = (pixels - pixel) * p.vectors() - first;
    end = first + static_cast<int>(left < tile_vectors ? left : tile_vectors);
  }

  std::int64_t pixel;
  int first, end;
};

/// What a tile reads, in whole loads of so many elements.
struct PaddedSource {
  /// `lead`: elements between the beginning of a load and the source's.
  TAPEDECK_HD PaddedSource(const ChannelPadding& p, const PaddedTile& t, int load, int lead) {
    const PaddedVector a = p.vector(t.first), z = p.vector(t.end - 1);
    const std::int64_t of_tile = t.pixel * p.channels;
    begin = (of_tile + a.source + lead) / load * load - lead;
    from = static_cast<int>(of_tile - begin);
    loads = (from + z.source + z.elements + load - 1) / load;
  }
  std::int64_t begin;  // of the source's elements; below zero inside of the first load
  int from;            // where t.pixel begins, from `begin` on; negative where the tile begins later in it
  int loads;
};

}  // namespace tapedeck::conv_gemm
