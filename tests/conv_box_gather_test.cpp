// Boxes that warps make of nchw images (ops/conv/box_gather.h), without a GPU: what all lanes store of all
// pieces, against the pixels that the tensor memory accelerator would bring of a copy.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include <tapedeck/ops/conv/box_choice.h>
#include <tapedeck/ops/conv/wgmma_choice.h>

#include "conv_definition.h"
#include "conv_geometry.h"
#include "sanitizers.h"

namespace tapedeck::test {
namespace {

using namespace conv_gemm;

/// What lies at each place of a box: of each element of the image its number + 1, or 0, or -1 where nothing
/// was stored.
using Box = std::vector<std::int64_t>;

struct Image {
  std::int64_t channels, h, w;  // of all groups
  std::int64_t number(std::int64_t image, std::int64_t channel, std::int64_t row, std::int64_t column) const {
    return ((image * channels + channel) * h + row) * w + column + 1;
  }
};

/// A piece of a row as the tensor memory accelerator brings it: the number of the element that has each byte.
/// `channel`: the first of the group, or where every second one comes, half of it. Of flat images `column` is
/// of all that is between such channels.
template <int kValueBytes>
std::vector<std::int64_t> piece(const GatheredPieces& pieces, const Image& of, int image, int images,
                                int group, std::int64_t group_channels, std::int64_t channel,
                                std::int64_t row, std::int64_t column) {
  std::vector<std::int64_t> slot(kSlotBytes / kValueBytes, -2);  // of what was there before
  EXPECT_EQ(column * kValueBytes % kVectorBytes, 0);
  const std::int64_t plane = of.h * of.w;
  for (int c = 0; c < pieces.vectors * kGatheredElements; ++c)
    for (int x = 0; x < pieces.pixels; ++x) {
      int vector = x * kValueBytes / kVectorBytes;
      if (kValueBytes == 2) vector ^= pieces.row_bytes == 64 ? c / 2 % 4 : c % 8;
      const auto at = static_cast<std::size_t>((c * pieces.row_bytes + vector * kVectorBytes) / kValueBytes +
                                               x % (kVectorBytes / kValueBytes));
      const bool exists = image < images && (channel + c) * pieces.apart < group_channels;
      EXPECT_LT(at, slot.size());
      slot.at(at) = 0;
      if (pieces.flat) {
        const std::int64_t first = (channel + c) * pieces.apart;
        if (exists && column + x >= 0 && column + x < pieces.apart * plane)
          slot.at(at) = of.number(image, group * group_channels + first, 0, 0) + column + x;
      } else if (exists && row >= 0 && row < of.h && column + x >= 0 && column + x < of.w) {
        slot.at(at) = of.number(image, group * group_channels + channel + c, row, column + x);
      }
    }
  return slot;
}

/// As a warp of BoxGatherer does it with each piece of a box.
template <int kValueBytes>
Box gathered(const BoxPlan& p, const GatheredPieces& pieces, const BoxTile& tile, const BoxPlan::Box& at,
             int first_row, int first_column, int image, int group, std::int64_t group_channels,
             const Image& of) {
  using Lane = GatherLane<kValueBytes>;
  constexpr int kMatrix = 8, kOfVector = kVectorBytes / kValueBytes;
  Box box(static_cast<std::size_t>(tile.pixels()) * kVectors * kGatheredElements, -1);
  const BoxTaps &h = p.h.of[at.i], &w = p.w.of[at.j];
  const bool outside = h.origin == kFarOutside || w.origin == kFarOutside;
  const int first_of_box = outside ? 0 : (first_column + w.origin) * (1 << pieces.log_fold),
            columns = tile.pitch << pieces.log_fold;
  const bool two = Lane::are_two(pieces);
  const int at_once = Lane::kPixels * (two ? 2 : 1);
  for (int line = 0; line < pieces.lines; ++line)
    for (int part = 0; part < pieces.apart; ++part)
      for (int piece_of_line = 0; piece_of_line < pieces.each; ++piece_of_line) {
        const int y =
            outside ? p.from_h : (first_row + h.origin + line / tile.images) * p.h.step + h.remainder;
        const int column = pieces.flat ? pieces.flat_column(part, y, p.from_h, first_of_box) : first_of_box,
                  of_box = piece_of_line * pieces.pixels - pieces.before(column),
                  first_vector = part * pieces.vectors;
        const auto row = static_cast<unsigned>(line * tile.pitch * kPixelBytes);
        const auto slot =
            piece<kValueBytes>(pieces, of, image + line % tile.images, p.n, group, group_channels,
                               std::int64_t{at.chunk} * kVectors * kGatheredElements / pieces.apart, y,
                               std::int64_t{column} + of_box);
        for (int q = 0; q * Lane::kPixels < pieces.pixels; q += at_once / Lane::kPixels)
          for (int v = 0; v < pieces.vectors; v += Lane::kVectorsAtOnce)
            for (int lane = 0; lane < 32; ++lane) {
              const Lane to(pieces, lane);
              const int to_column = of_box + q * Lane::kPixels + to.pixel;
              if (!to.has || to_column < 0 || to_column >= columns) continue;
              // The lane's address is of what is row lane % 8 of a stored matrix, and was a column of a
              // loaded one.
              const int matrix = lane / kMatrix, pixel = lane % kMatrix;
              const unsigned first = to.to_of(pieces, row, of_box, first_vector),
                             bytes =
                                 Lane::to_next(pieces, first, q) ^ static_cast<unsigned>(v * kVectorBytes);
              EXPECT_EQ(bytes % kVectorBytes, 0u);
              for (int c = 0; c < kMatrix; ++c) {
                // Which lane had the element (c, pixel), and as which of its values.
                int from, of_lane;
                if (kValueBytes == 2) {  // it addresses row c of the matrix
                  from = Lane(pieces, matrix * kMatrix + c).from_of(q) + Lane::from_step(pieces.row_bytes, v),
                  of_lane = pixel;
                } else {  // it has loaded a pair of pixels of row c of each matrix
                  from = Lane(pieces, c * 4 + pixel / 2).from_of(q) ^ (matrix % 2 * Lane::kPairBytes);
                  from += Lane::from_step(pieces.row_bytes, v + matrix / 2);
                  of_lane = pixel % 2;
                }
                std::int64_t& stored = box.at(bytes / 2 + static_cast<unsigned>(c));
                EXPECT_EQ(stored, -1) << "stored twice";
                EXPECT_LT(of_lane, kOfVector);
                stored = slot.at(static_cast<std::size_t>(from / kValueBytes + of_lane));
              }
            }
        if (!pieces.flat) continue;
        for (int x = std::max(0, of_box); x < std::min(of_box + pieces.pixels, columns); ++x)
          for (int v = 0; v < pieces.vectors; ++v)
            for (unsigned c = 0; c < kMatrix; ++c)
              if (!pieces.is_inside(pieces.inside(first_of_box), x))
                box.at(Lane::vector_at(pieces, row, x, first_vector + v) / 2 + c) = 0;
      }
  return box;
}

/// Calls whose rows are whole vectors; whose channels are; and of which every second channel is.
struct Checked {
  int rows = 0, flat = 0, apart = 0;
};

/// All boxes of a few tiles. Returns how many were checked.
template <int kValueBytes>
int check(const ConvTranspose2dGeometry& g, const Fold& fold, bool transposed, const BoxPlan& p,
          const BoxTile& tile, ConvRandom& random, Checked& all) {
  const int columns = transposed ? fold.x : fold.y;  // of the image that are one
  const Image of{transposed ? g.ci : g.co, transposed ? g.h.in : g.h.out, transposed ? g.w.in : g.w.out};
  const std::int64_t group_channels = of.channels / g.groups;
  const GatheredPieces pieces(p, tile, columns, kValueBytes);
  EXPECT_LE(pieces.bytes(), kSlotBytes);
  (pieces.apart == 2 ? all.apart : pieces.flat ? all.flat : all.rows) += 1;
  int checked = 0;
  for (int phase = 0; phase < p.phases(); ++phase) {
    const int row_phase = p.by_phases_w.divide(phase), i = row_phase * p.joined_h,
              j = p.by_phases_w.modulo(phase, row_phase) * p.joined_w;
    for (int row = 0; row < p.h.count[i]; row += tile.rows)
      for (int column = 0; column < p.w.count[j]; column += tile.columns) {
        const int image = static_cast<int>(random.in(0, (p.n - 1) / tile.images)) * tile.images,
                  group = static_cast<int>(random.in(0, p.groups - 1));
        BoxPlan::Box at = p.box_of(phase, 0);
        for (int b = 0; b < p.boxes(phase); ++b, p.advance(at)) {
          const Box box =
              gathered<kValueBytes>(p, pieces, tile, at, row, column, image, group, group_channels, of);
          const BoxTaps &of_h = p.h.of[at.i], &of_w = p.w.of[at.j];
          for (int a = 0; a < tile.images; ++a)
            for (int y = 0; y < tile.box_rows; ++y)
              for (int x = 0; x < tile.pitch; ++x)
                for (int k = 0; k < 2 * p.steps(at.chunk) * p.elements; ++k) {
                  const std::int64_t q_h = std::int64_t{row} + of_h.origin + y,
                                     q_w = std::int64_t{column} + of_w.origin + x;
                  const int vector = k / p.elements,
                            channel = at.chunk * kVectors * p.elements +
                                      gathered_channel(vector, k % p.elements, pieces.of_parity());
                  std::int64_t expected = 0;
                  const std::int64_t each = columns > 1 ? group_channels : p.from_channels;
                  const std::int64_t h = q_h * p.h.step + of_h.remainder,
                                     w = (q_w * p.w.step + of_w.remainder) * columns + channel / each;
                  if (image + a < p.n && q_h >= 0 && q_w >= 0 && h < of.h && w < of.w &&
                      channel < p.from_channels)
                    expected = of.number(image + a, group * group_channels + channel % each, h, w);
                  const int place = (y * tile.images + a) * tile.pitch + x;
                  const auto where = static_cast<std::size_t>(
                      (place * kVectors + (vector ^ (place & 7))) * p.elements + k % p.elements);
                  EXPECT_EQ(box[where], expected) << "place " << place << " channel " << channel;
                  if (::testing::Test::HasFailure()) return checked;
                }
          ++checked;
        }
      }
  }
  return checked;
}

int check_both(const ConvTranspose2dGeometry& g, const Fold& fold, bool transposed, const BoxPlan& p,
               const BoxTile& tile, ConvRandom& random, Checked& all) {
  const int columns = transposed ? fold.x : fold.y;
  return (can_gather(p, columns, 2) ? check<2>(g, fold, transposed, p, tile, random, all) : 0) +
         (can_gather(p, columns, 4) ? check<4>(g, fold, transposed, p, tile, random, all) : 0);
}

/// Half of the time rows of what is read are whole vectors; a quarter begin at even elements, with as many
/// channels as every second one may be read of.
void align_rows(ConvCase& c, bool transposed, ConvRandom& random) {
  const std::int64_t whole = std::array{1, 2, 8, 8}[static_cast<std::size_t>(random.in(0, 3))];
  if (whole == 2)
    (transposed ? c.ci : c.co) =
        c.groups * std::array{32, 64, 128}[static_cast<std::size_t>(random.in(0, 2))];
  std::int64_t& in = c.in[1];
  if (transposed) {
    in = (in + whole - 1) / whole * whole;
  } else {
    c.stride[1] = 1;
    while (c.out(1) % whole != 0) ++in;
  }
}

TEST(ConvBoxGather, BringsWhatCopiesWould) {
  ConvRandom random(61);
  int checked = 0;
  Checked all;
  for (int i = 0; i < 1200 / kFewer; ++i) {
    ConvCase c =
        i % 3 == 0 ? random.conv_case(6, 5) : random.conv_case(i % 3 == 1 ? 24 : 9, i % 3 == 1 ? 9 : 140);
    for (const bool transposed : {true, false}) {
      align_rows(c, transposed, random);
      const ConvTranspose2dGeometry g = geometry_of(c);
      if (!fits(g)) continue;
      SCOPED_TRACE("case " + std::to_string(i) + (transposed ? " transposed: " : " plain: ") + c.text());
      const auto split = static_cast<BoxSplit>(i % 7 % 3);
      const BoxJoin join = split != BoxSplit::none ? BoxJoin::none : static_cast<BoxJoin>(i % 3);
      const BoxPlan p(g, transposed, 2, join, split);
      if (p.planes() > kMaxPlanes) continue;
      const BoxTile tile = box_tile(p, i % 2 == 0 ? 128 : 24, 2048);
      if (tile.rows == 0) continue;
      checked += check_both(g, {}, transposed, p, tile, random, all);
      if (::testing::Test::HasFailure()) return;
    }
  }
  if (kSanitized) return;  // too few to be of all kinds
  EXPECT_GT(checked, 3000);
  EXPECT_GT(all.rows, 200);
  EXPECT_GT(all.flat, 50);
  EXPECT_GT(all.apart, 50);
}

TEST(ConvBoxGather, OfFoldedColumns) {
  ConvRandom random(62);
  int checked = 0, of_two = 0;
  Checked all;
  for (int i = 0; i < 3000 / kFewer; ++i) {
    ConvCase c = random.conv_case(i % 2 == 0 ? 30 : 12, 4);
    c.groups = 1;
    c.ci = random.in(1, 4) * 16, c.co = random.in(1, 4) * 16;
    for (const bool transposed : {true, false}) {
      align_rows(c, transposed, random);
      const ConvTranspose2dGeometry g = geometry_of(c);
      if (!fits(g) || g.w.out < 1 || g.h.out < 1 || g.n == 0) continue;
      for_folds(g, 2, [&](const Fold& fold) {
        if (::testing::Test::HasFailure()) return;
        SCOPED_TRACE("case " + std::to_string(i) + (transposed ? " transposed: " : " plain: ") + c.text());
        BoxPlan p(fold.of(g), transposed, 2);
        p.narrow(fold, transposed);
        if (p.planes() > kMaxPlanes) return;
        const BoxTile tile = box_tile(p, 64, 2048);
        if (tile.rows == 0) return;
        const int before = checked;
        checked += check_both(g, fold, transposed, p, tile, random, all);
        of_two += checked > before && (transposed ? fold.x : fold.y) == 2;
      });
      if (::testing::Test::HasFailure()) return;
    }
  }
  if (kSanitized) return;  // too few to be of all kinds
  EXPECT_GT(checked, 1000);
  EXPECT_GT(of_two, 30);
  EXPECT_GT(all.flat, 20);
  EXPECT_GT(all.apart, 20);
}

/// Lanes that write at once meet all banks of a box, and 8 that load at once those of a slot, or of float32
/// in long rows half of them.
TEST(ConvBoxGather, MeetsAllBanks) {
  const auto check = []<int kValueBytes>(int vectors, int of_column, int log_fold) {
    GatheredPieces pieces;
    pieces.vectors = vectors, pieces.of_column = of_column, pieces.log_fold = log_fold;
    pieces.row_bytes = vectors > 4 ? 64 : 128;
    for (int first = 0; first < 32; first += 8) {
      std::set<int> to, from;
      for (int lane = first; lane < first + 8; ++lane) {
        const GatherLane<kValueBytes> l(pieces, lane);
        to.insert(static_cast<int>(l.to_of(pieces, 3 * kPixelBytes, 0, of_column - vectors)) / kVectorBytes %
                  8);
        from.insert(l.from_of(1) / kVectorBytes % 8);
      }
      EXPECT_EQ(to.size(), 8u) << vectors << " vectors, fold " << log_fold;
      EXPECT_EQ(from.size(), kValueBytes == 4 && pieces.row_bytes == 128 ? 4u : 8u);
    }
  };
  for (const auto& [vectors, of_column, log_fold] :
       {std::array{8, 8, 0}, {4, 8, 0}, {4, 4, 0}, {2, 4, 0}, {4, 4, 1}, {2, 4, 1}}) {
    check.operator()<2>(vectors, of_column, log_fold);
    if (log_fold == 0) check.operator()<4>(vectors, of_column, log_fold);
  }
}

// What is beyond a row of a flat image is known, however far that is.
TEST(ConvBoxGather, KnowsColumnsInside) {
  GatheredPieces pieces;
  for (pieces.width = 1; pieces.width < 200000; pieces.width = pieces.width * 3 / 2 + 1)
    for (const int first :
         {-kFarOutside / 2, -65540, -65536, -65535, -32767, -70, -2, 0, 1, 61, 32768, 100000})
      for (int column = 0; column < 2 * kMostOfBox; ++column)
        EXPECT_EQ(pieces.is_inside(pieces.inside(first), column),
                  first + column >= 0 && first + column < pieces.width)
            << first << " + " << column << " of " << pieces.width;
}

// A sample of an image is scaled for only where all of it is read.
TEST(ConvBoxGather, KnowsWhetherAllIsRead) {
  ConvRandom random(63);
  int all = 0, some = 0;
  for (int i = 0; i < 4000; ++i) {
    const ConvCase c = random.conv_case(i % 2 == 0 ? 5 : 11, 2);
    const ConvTranspose2dGeometry g = geometry_of(c);
    if (!fits(g)) continue;
    for (const bool transposed : {true, false}) {
      const BoxPlan p(g, transposed, 2, BoxJoin::none, i % 3 == 0 ? BoxSplit::taps : BoxSplit::none);
      if (p.planes() > kMaxPlanes) continue;
      // Which pixels results' taps read, or lie between such.
      const auto reads = [&](const ConvAxis& axis) {
        const std::int64_t from = transposed ? axis.in : axis.out, to = transposed ? axis.out : axis.in;
        std::vector<bool> read(static_cast<std::size_t>(from), false);
        for (std::int64_t k = 0; k < axis.kernel; ++k)
          for (std::int64_t t = 0; t < to; ++t) {
            const std::int64_t at = transposed ? t + axis.padding - k * axis.dilation
                                               : t * axis.stride + k * axis.dilation - axis.padding;
            if (transposed && at % axis.stride != 0) continue;
            const std::int64_t f = transposed ? at / axis.stride : at;
            if (f >= 0 && f < from && at >= 0) read[static_cast<std::size_t>(f)] = true;
          }
        return std::all_of(read.begin(), read.end(), [](bool r) { return r; });
      };
      const bool claimed = reads_all(p.h, p.from_h) && reads_all(p.w, p.from_w);
      const bool really = reads(g.h) && reads(g.w);
      // Boxes may have more than taps read, and then all.
      if (really) {
        EXPECT_TRUE(claimed) << c.text();
      }
      (claimed ? all : some) += 1;
      // What is claimed, boxes have: as the kernel walks over them.
      const BoxTile tile = box_tile(p, 64, 2048);
      if (!claimed || tile.rows == 0) continue;
      const auto brought = [&](const BoxAxis& axis, int size, int step_of_tile, int of_box) {
        std::vector<bool> has(static_cast<std::size_t>(size), false);
        for (int phase = 0; phase < axis.phases; ++phase)
          for (int r = 0; r < axis.of_phase[phase]; ++r)
            for (int first = 0; first < axis.count[phase]; first += step_of_tile)
              for (int k = 0; k < of_box; ++k) {
                const BoxTaps& t = axis.of[phase * axis.reads + r];
                if (t.origin == kFarOutside) continue;
                const std::int64_t at = (std::int64_t{first} + t.origin + k) * axis.step + t.remainder;
                if (first + t.origin + k >= 0 && at < size) has[static_cast<std::size_t>(at)] = true;
              }
        return std::all_of(has.begin(), has.end(), [](bool b) { return b; });
      };
      EXPECT_TRUE(brought(p.h, p.from_h, tile.rows, tile.box_rows)) << c.text();
      EXPECT_TRUE(brought(p.w, p.from_w, tile.columns, tile.pitch)) << c.text();
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(all, 1000);
  EXPECT_GT(some, 30);
}

}  // namespace
}  // namespace tapedeck::test
