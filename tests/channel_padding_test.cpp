// Channels of groups put apart (ops/conv/channel_padding.h), as pad_kernel of channels_last.cu does it.
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <tapedeck/ops/conv/channel_padding.h>

namespace tapedeck::test {
namespace {

using conv_gemm::ChannelPadding;
using conv_gemm::PaddedSource;
using conv_gemm::PaddedTile;
using conv_gemm::PaddedVector;

struct Copied {
  int channels, groups, elements;  // of a vector
  int load, lead;                  // elements of a load, and before the source in the first one
  int tile_vectors;
  std::int64_t pixels;
};

/// Element i of the source is i + 1; zeros are padding.
void expect_copied(const Copied& c) {
  SCOPED_TRACE(testing::Message() << c.channels << " channels in " << c.groups << " groups, vectors of "
                                  << c.elements << ", loads of " << c.load << " from " << c.lead
                                  << ", tiles of " << c.tile_vectors << ", " << c.pixels << " pixels");
  const ChannelPadding p(c.channels, c.groups, c.elements);
  const int of_group = c.channels / c.groups, group_vectors = (of_group + c.elements - 1) / c.elements;
  ASSERT_EQ(p.vectors(), c.groups * group_vectors);
  const std::int64_t vectors = c.pixels * p.vectors(),
                     tiles = (vectors + c.tile_vectors - 1) / c.tile_vectors;
  std::vector<std::int64_t> copy(static_cast<std::size_t>(vectors * c.elements), -1);
  for (int i = 0; i < tiles; ++i) {
    const PaddedTile t(p, i, c.tile_vectors, c.pixels);
    ASSERT_LT(t.first, t.end);
    const PaddedSource in(p, t, c.load, c.lead);
    ASSERT_EQ((in.begin + c.lead) % c.load, 0) << "a load that is not aligned";
    ASSERT_GE(in.begin, -c.lead);
    ASSERT_LE((in.loads - 1) * c.load, c.tile_vectors * c.elements) << "more than a tile's shared memory";
    ASSERT_LT(in.begin + (in.loads - 1) * c.load, c.pixels * c.channels) << "a load of nothing";
    for (int at = t.first; at < t.end; ++at) {
      const PaddedVector v = p.vector(at);
      for (int k = 0; k < c.elements; ++k) {
        const int staged = in.from + v.source + k;
        std::int64_t value = 0;
        if (k < v.elements) {
          ASSERT_GE(staged, 0);
          ASSERT_LT(staged, in.loads * c.load);
          value = in.begin + staged + 1;
        }
        std::int64_t& to =
            copy[static_cast<std::size_t>(((t.pixel + v.pixel) * p.vectors() + v.vector) * c.elements + k)];
        ASSERT_EQ(to, -1) << "written twice";
        to = value;
      }
    }
  }
  for (std::int64_t pixel = 0, at = 0; pixel < c.pixels; ++pixel)
    for (int group = 0; group < c.groups; ++group)
      for (int channel = 0; channel < group_vectors * c.elements; ++channel, ++at)
        ASSERT_EQ(copy[static_cast<std::size_t>(at)],
                  channel < of_group ? pixel * c.channels + group * of_group + channel + 1 : 0)
            << "pixel " << pixel << " group " << group << " channel " << channel;
}

TEST(ChannelPadding, CopiesEachElementOnce) {
  for (const int of_group : {1, 3, 4, 5, 8, 17, 33, 100})
    for (const int groups : {1, 2, 7})
      for (const int lead : {0, 1, 7}) expect_copied({of_group * groups, groups, 8, 8, lead, 16, 37});
  expect_copied({3000, 1, 8, 4, 1, 64, 3});  // a pixel of several tiles
  expect_copied({1, 1, 4, 4, 3, 128, 1});
}

TEST(ChannelPadding, CopiesEachElementOnceOfRandomImages) {
  std::mt19937 random(20261127);
  const auto pick = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
  };
  for (int i = 0; i < 200; ++i) {
    const int groups = pick(1, 9), load = pick(0, 1) == 0 ? 4 : 8;
    expect_copied({groups * pick(1, 70), groups, pick(0, 1) == 0 ? 4 : 8, load, pick(0, load - 1),
                   1 << pick(3, 9), pick(1, 90)});
  }
}

}  // namespace
}  // namespace tapedeck::test
