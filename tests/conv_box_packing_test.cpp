// Packing of weights for boxes without a GPU: what threads read and write, by box_packing.h, against what the
// kernels over boxes want: [group][weight][tile of blocks][part][block][row][vector].
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <tapedeck/ops/conv/box_packing.h>

#include "conv_geometry.h"

namespace tapedeck::test {
namespace {

using namespace conv_gemm;

constexpr std::uintptr_t kAligned = 4096;

/// What a packing is made with, beside a case.
struct Way {
  bool transposed = false, last = false;
  int value_bytes = 2, element_bytes = 2, parts = 1, blocks = 1;
  bool in_order = false;
  std::uintptr_t address = kAligned;
};

BoxPacking packing_of(const ConvCase& c, const Way& way, int of_parity = 0) {
  const ConvTranspose2dGeometry g = geometry_of(c);
  const BoxPlan p(g, way.transposed, way.element_bytes);
  const WeightStrides strides(g, way.transposed, p, way.last ? Layout::nhwc : Layout::nchw);
  const int tiles = static_cast<int>(count(count(p.to_channels, kBlockChannels), way.blocks));
  return {p, strides, way.value_bytes, way.address, way.parts, way.blocks, tiles, way.in_order, of_parity};
}

/// The element of the weight [far][near][kh][kw], or with channels last [far][kh][kw][near], of channel
/// `from` and `to` of a group, by the definition.
std::int64_t element_of(const ConvCase& c, const Way& way, int group, int from, int to, int kh, int kw) {
  const std::int64_t ci = c.ci / c.groups, co = c.co / c.groups, x = way.transposed ? from : to,
                     y = way.transposed ? to : from, far = group * ci + x;
  return way.last ? ((far * c.kernel[0] + kh) * c.kernel[1] + kw) * co + y
                  : ((far * co + y) * c.kernel[0] + kh) * c.kernel[1] + kw;
}

/// Packs by the plan, elements as their places in the weight, or -1: zeros; and checks all places.
void check_packing(const ConvCase& c, const Way& way, int of_parity = 0) {
  const BoxPacking p = packing_of(c, way, of_parity);
  const int elements = p.plan.elements;
  const std::int64_t weight_vectors = std::int64_t{p.tiles} * p.parts * p.blocks * kBlockChannels * kVectors,
                     vectors = std::int64_t{p.plan.groups} * p.plan.weights * weight_vectors;
  constexpr std::int64_t kUnwritten = -2;
  std::vector<std::int64_t> packed(static_cast<std::size_t>(vectors * elements), kUnwritten);
  const std::int64_t all = std::int64_t{c.ci} * (c.co / c.groups) * c.kernel[0] * c.kernel[1];
  for (std::int64_t thread = 0; thread < p.threads; ++thread) {
    const BoxPacking::Share s = p.share(static_cast<int>(thread));
    for (int r = 0; r < p.results(); ++r) {
      const int weight = p.weight(s, r);
      if (weight < 0) continue;
      for (int part = 0; part < p.parts; ++part) {
        const std::int64_t place = p.place(s, r, weight, part);
        ASSERT_GE(place, 0);
        ASSERT_LT(place, vectors);
        for (int e = 0; e < elements; ++e) {
          const bool exists =
              s.channel < p.plan.to_channels && s.from + e * p.next_from() < p.plan.from_channels;
          // Neighbours in memory, from one that a whole vector begins at.
          const std::int64_t first = p.source(s) + std::int64_t{e} * p.next_from() * p.strides.from;
          if (exists && p.near > 1) {
            ASSERT_EQ((p.order == WeightOrder::from ? p.source(s) : first) * way.value_bytes % 16, 0);
          }
          std::int64_t& at = packed[static_cast<std::size_t>(place * elements + e)];
          ASSERT_EQ(at, kUnwritten) << "written twice";
          at = exists ? first + r : -1;
          ASSERT_LT(at, all);
        }
      }
    }
  }
  for (int group = 0; group < p.plan.groups; ++group)
    for (int kh = 0; kh < c.kernel[0]; ++kh)
      for (int kw = 0; kw < c.kernel[1]; ++kw)
        for (int chunk = 0; chunk < p.plan.chunks; ++chunk) {
          const int weight = p.plan.weight_of(kh, kw, chunk * kVectors);
          if (weight < 0) continue;
          for (int block = 0; block < p.tiles * p.blocks; ++block)
            for (int part = 0; part < p.parts; ++part)
              for (int m = 0; m < kBlockChannels; ++m)
                for (int k = 0; k < kVectors * elements; ++k) {
                  const int row = way.in_order ? m : block_row(m), v = k / elements, e = k % elements;
                  const std::int64_t place =
                      (std::int64_t{group} * p.plan.weights + weight) * weight_vectors +
                      ((block / p.blocks * p.parts + part) * p.blocks + block % p.blocks) * kBlockChannels *
                          kVectors +
                      row * kVectors + (v ^ (row & 7));
                  const int of_chunk = of_parity == 0 ? k : gathered_channel(v, e, of_parity),
                            from = chunk * kVectors * elements + of_chunk,
                            copies = channel_copies(p.plan.to_channels),
                            to = block * kBlockChannels + m % (kBlockChannels / copies);
                  const bool exists = from < p.plan.from_channels && to < p.plan.to_channels;
                  ASSERT_EQ(packed[static_cast<std::size_t>(place * elements + e)],
                            exists ? element_of(c, way, group, from, to, kh, kw) : -1)
                      << "group " << group << " tap " << kh << ' ' << kw << " from " << from << " to " << to;
                }
        }
}

ConvCase layer(std::int64_t ci, std::int64_t co, std::int64_t kernel, std::int64_t stride,
               std::int64_t groups = 1, std::int64_t dilation = 1) {
  ConvCase c;
  c.n = 1, c.ci = ci, c.co = co, c.groups = groups;
  for (int a = 0; a < 2; ++a)
    c.in[a] = 5 + a, c.kernel[a] = kernel, c.stride[a] = stride, c.padding[a] = kernel / 2,
    c.dilation[a] = dilation;
  return c;
}

TEST(ConvBoxPacking, HasEachWeightAtItsPlace) {
  const ConvCase layers[] = {layer(70, 136, 4, 2),   layer(136, 200, 3, 1),      layer(24, 16, 2, 2),
                             layer(96, 64, 3, 2, 2), layer(130, 40, 5, 3, 1, 2), layer(64, 72, 1, 1),
                             layer(3, 7, 12, 5)};
  for (const ConvCase& c : layers)
    for (const bool transposed : {false, true})
      for (const bool last : {false, true})
        for (const bool in_order : {false, true}) {
          SCOPED_TRACE(std::to_string(c.ci) + " to " + std::to_string(c.co) +
                       (transposed ? " transposed" : "") + (last ? " last" : "") +
                       (in_order ? " in order" : ""));
          check_packing(c, {transposed, last, 2, 2, 1, 1, in_order});
          check_packing(c, {transposed, last, 2, 2, 1, 2, in_order, kAligned + 2});
          check_packing(c, {transposed, last, 4, 4, 1, 1, in_order});
          check_packing(c, {transposed, last, 4, 2, 1, 2, in_order});
          check_packing(c, {transposed, last, 4, 2, 2, 1, in_order});
        }
}

// Of many weights a thread reads whole vectors of neighbours, if there are such.
TEST(ConvBoxPacking, ReadsVectorsOfManyWeights) {
  const auto near = [](const ConvCase& c, const Way& way, int of_parity = 0) {
    return packing_of(c, way, of_parity).near;
  };
  const ConvCase even = layer(1024, 256, 4, 2), odd = layer(1024, 512, 3, 1);
  EXPECT_EQ(near(even, {.transposed = true}), 8);
  EXPECT_EQ(near(even, {.transposed = true, .value_bytes = 4, .parts = 2}), 4);
  EXPECT_EQ(near(even, {.transposed = true, .address = kAligned + 8}), 1);
  EXPECT_EQ(near(odd, {.transposed = true}), 1) << "nine taps";
  EXPECT_EQ(near(odd, {.transposed = true, .last = true}), 8) << "channels";
  EXPECT_EQ(near(layer(64, 32, 4, 2), {.transposed = true}), 1) << "few";
  EXPECT_EQ(near(layer(64, 32, 4, 2), {.last = true}), 8) << "what a vector has are neighbours";
  EXPECT_EQ(near(odd, {.last = true}, 4), 1) << "of every second channel";
  check_packing(even, {.transposed = true});
  check_packing(layer(512, 256, 4, 2), {.transposed = true, .last = true, .value_bytes = 4});
  check_packing(layer(512, 256, 4, 2), {.value_bytes = 4, .parts = 2});
}

// Pieces of every second channel (box_gather.h) have the even ones first.
TEST(ConvBoxPacking, HasGatheredChannelsInTheirOrder) {
  for (const bool transposed : {false, true})
    for (const bool last : {false, true}) {
      check_packing(layer(64, 64, 3, 1), {transposed, last}, 4);
      check_packing(layer(128, 128, 4, 2), {transposed, last, 4, 2, 2}, 2);
    }
}

}  // namespace
}  // namespace tapedeck::test
