// The copies that ChannelsLast needs: a transpose of pixels and channels, or where these lie right already,
// their parts, or their groups apart.
//
// For the transpose, a block has a tile of pixels and 128 bytes of channels, of each part; where an image has
// fewer channels, a row of the tile holds that many more pixels. Pixels are those of all images, one after
// the other. Threads read up to four neighbouring pixels at once of the channels that make a word, and write
// them as words of as many rows; then they read rows and write vectors of channels: full sectors both ways.
// Word w of row p lies at w ^ turn(p), so that both sides meet different banks (but for writes of pairs to
// small tiles: two at a time).
//
// Channels that are last, but of which groups fill no whole vectors, are read as they lie into shared memory
// and put apart from there (channel_padding.h). As a transpose, which reads them an element at a time from
// one pixel to the next, gradients of such layers took up to 4.7 times as long (100 channels a group,
// bfloat16, an H200).
//
// A copy may apply a prologue on the way (ops/prologue.h), which costs a transpose a few instructions an
// element, and saves a kernel that reads and writes all of it.
//
// Copies of scaled halves by a guess (largest.cuh) raise the tensor's second word where a magnitude is beyond
// it; after all preparations a kernel of few blocks then does it all again, or, nearly always, nothing. (It
// takes some 2.4 us on an H200. Right behind its copy it kept others from beginning beside that: weight's
// gradients of layers with two such copies took up to 1.03 times as long.)
#include <algorithm>

#include <tapedeck/ops/conv/channel_padding.h>
#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/ops/conv/reached_rows.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/channels_last.cuh>
#include <tapedeck/ops/conv/scaled_half.cuh>
#include <tapedeck/ops/prologue.cuh>

namespace tapedeck::cu {

namespace {

using conv_gemm::ImageStrides;
using conv_gemm::kVectorBytes;

constexpr int kRowWords = 32, kWarps = kThreads / 32;
constexpr int kSplitAtOnce = 2;  // vectors
/// That a thread loads of a tile whose groups are put apart; of few tiles, which are small, only some.
constexpr int kPadAtOnce = 4;
/// Of which so many vectors become.
template <class Split>
constexpr int kPadVectors = kPadAtOnce* kThreads* static_cast<int>(sizeof(typename Split::To)) /
                            static_cast<int>(sizeof(typename Split::From));
/// Of a tile; few where there would be too few blocks. (64 in place of 128: a DCGAN's, a VAE's and U-Net's
/// layers on an H200 took 0.93 to 1.14 times as long, those that are copied most 1.02 to 1.07.)
constexpr int rows_of_tile(int parts, bool few) {
  return few ? 32 : 128 / parts;
}

/// What copies of scaled halves know of their operand's magnitudes.
enum class Scale { known, guessed, repeated };

struct Arguments {
  const void* from;
  uint4* to;
  const unsigned* largest;  // of two words the second is raised by the guess
  Scale scale = Scale::known;
  ImageStrides strides;
  int tiles;          // all, of which neighbours have the same pixels
  unsigned pixels;    // of all images
  int log_split = 0;  // of how many pixels a row has words
  conv_gemm::Divider channel_tiles, plane, width, group;
  int group_channels, channels, padded;  // the last two of all groups, the source's and a part's
  int log_fold = 0;                      // of columns whose parts lie together
  conv_gemm::ReachedRows rows;           // that are copied
  // Where these are not all, `plane` is a row in a transpose, by whose number in an image is divided.
  conv_gemm::Divider image_rows;
  int height = 0;  // of an image
  conv_gemm::ChannelPadding apart;
  int tile_vectors = 0;  // of `apart`
  bool beside = false;   // preparations.cuh
  ChannelPrologue prologue;
};

// What an element of a channel becomes: kParts of type To.

/// Word: an unsigned integer of an element's size.
template <class Word>
struct Whole {
  using From = Word;
  using To = Word;
  static constexpr int kParts = 1;
  struct Channel {};
  __device__ Whole(const unsigned*, Scale, const ChannelPrologue&) {}
  __device__ static bool has_work() { return true; }
  __device__ void operator()(Word x, Channel, Word (&parts)[1]) const { parts[0] = x; }
  __device__ void finish() const {}
};

template <int kOf>
struct Halves {
  using From = float;
  using To = float16;
  static constexpr int kParts = kOf;
  struct Channel {};
  __device__ Halves(const unsigned* words, Scale s, const ChannelPrologue&)
      : largest(words),
        scale_is(s),
        bound(s == Scale::guessed ? load_fresh(words) : max(load_fresh(words), load_fresh(words + 1))),
        scale(conv_gemm::scale_of(bound)) {}
  /// Not if the guess was right.
  __device__ bool has_work() const {
    return scale_is != Scale::repeated || conv_gemm::is_beyond(load_fresh(largest + 1), load_fresh(largest));
  }
  __device__ void operator()(float x, Channel, float16 (&parts)[kOf]) {
    most = max(most, magnitude(x));
    conv_gemm::split_half(x, scale, parts);
  }
  /// For all threads of a warp, when they have copied their elements.
  __device__ void finish() const {
    if (scale_is != Scale::guessed) return;
    const unsigned of_warp = __reduce_max_sync(~0u, most);
    if (threadIdx.x % 32 == 0 && conv_gemm::is_beyond(of_warp, bound))
      atomicMax(const_cast<unsigned*>(largest) + 1, of_warp);
  }

  const unsigned* largest;
  Scale scale_is;
  unsigned bound, most = 0;
  float scale;
};

/// The same of elements of type T that have a prologue, whose numbers come through the multiprocessor's
/// cache: begin_copy() leaves nothing old in it.
template <class T, class Split>
struct Normalized : Split {
  using From = typename Split::From;
  using To = typename Split::To;
  using Channel = NormalizedChannel<float>;
  __device__ Normalized(const unsigned* words, Scale s, const ChannelPrologue& p)
      : Split(words, s, p), prologue(p) {}
  /// Of none, -1, all is 0.
  __device__ Channel of(int channel) const { return channel >= 0 ? prologue.of(channel) : Channel{}; }
  __device__ void operator()(From x, const Channel& channel, To (&parts)[Split::kParts]) {
    const float u = prologue(channel, convert<float>(__builtin_bit_cast(T, x)));
    Split::operator()(__builtin_bit_cast(From, convert<T>(u)), {}, parts);
  }

  const ChannelPrologue& prologue;
};
template <class Split>
constexpr bool kNormalizes = false;
template <class T, class Split>
constexpr bool kNormalizes<Normalized<T, Split>> = true;

/// begin_preparation(), or what a repetition begins with. A copy beside another one keeps its fence, which
/// takes half a microsecond: without, a timeline on an H100 had both take 7 instead of 4.2 us (dcgan2, TF32,
/// channels last). In the benchmark that layer gained nothing by it; one copy after the other was slower.
__device__ __forceinline__ void begin_copy(bool beside, Scale scale) {
  if (scale == Scale::repeated) return await_previous();
  begin_preparation(beside);
  if (beside) __threadfence();
}

/// Whether one of the rows that have these pixels is copied.
__device__ __forceinline__ bool is_wanted(const Arguments& a, int first, int last) {
  if (a.rows.are_all()) return true;
  const int image = a.plane.divide(first);
  if (image != a.plane.divide(last)) return true;
  const int last_row = a.width.divide(a.plane.modulo(last, image));
  for (int h = a.width.divide(a.plane.modulo(first, image)); h <= last_row; ++h)
    if (a.rows.has(h)) return true;
  return false;
}
/// Where in the copy, in vectors, a part of a pixel begins.
template <int kParts>
__device__ __forceinline__ std::int64_t place_of(const Arguments& a, unsigned pixel, int part, int vectors) {
  const unsigned folded = pixel >> a.log_fold, of_fold = pixel - (folded << a.log_fold);
  return (((std::int64_t{folded} * kParts + part) << a.log_fold) + of_fold) * vectors;
}

/// Where an image of a transpose begins in the source; or, not of all rows, one of those that are copied.
template <bool kAll>
__device__ __forceinline__ std::int64_t begin_of(const Arguments& a, int image) {
  if constexpr (kAll) return image * a.strides.n;
  const int n = a.image_rows.divide(image);
  return n * a.strides.n + std::int64_t{a.rows.row(a.image_rows.modulo(image, n))} * a.strides.h;
}
/// The pixel of all rows.
template <bool kAll>
__device__ __forceinline__ unsigned copied_pixel(const Arguments& a, unsigned pixel) {
  if constexpr (kAll) return pixel;
  const int row = a.plane.divide(static_cast<int>(pixel)), n = a.image_rows.divide(row);
  return static_cast<unsigned>((n * a.height + a.rows.row(a.image_rows.modulo(row, n))) *
                                   static_cast<int>(a.plane.divisor) +
                               a.plane.modulo(static_cast<int>(pixel), row));
}

/// Different for 32 rows that follow each other, one by one or by two or four from any of the first ones; and
/// apart in its lowest bits for four rows four apart.
__device__ __forceinline__ int turn(int row) {
  return ((row >> 2) + ((row & 3) << 3)) & 31;
}

/// Blocks that a multiprocessor has registers for: some read while others write. On an H200, of 1 GB of
/// bfloat16 by four pixels: 4 blocks 631, 6 575, 8 530 us (4.06 TB/s); 4 of tiles of 256 pixels 571. Of
/// float32, or with a prologue, more than 4 have too few registers, and more than 3 of 16 bits with a
/// prologue by one pixel. Of few tiles, which are small, all come at once.
template <class Split, int kStep, bool kFew>
constexpr int transpose_blocks() {
  constexpr bool kWide = sizeof(typename Split::From) > 2;
  if (kFew && kStep == 4) return 8;
  if (kNormalizes<Split> && !kWide && kStep == 1) return 3;
  return kWide || kNormalizes<Split> || kStep == 1 ? 4 : kStep == 2 ? 6 : 8;
}

/// A thread reads kStep pixels at once: neighbours, aligned. kAll: of all rows.
template <class Split, int kStep, bool kFew, bool kAll>
__global__ void __launch_bounds__(kThreads, transpose_blocks<Split, kStep, kFew>())
    transpose_kernel(const __grid_constant__ Arguments a) {
  using From = typename Split::From;
  using To = typename Split::To;
  constexpr int kParts = Split::kParts, kPixels = rows_of_tile(kParts, kFew), kAtOnce = 4 / sizeof(To),
                kElements = kVectorBytes / sizeof(To);
  // Threads of a warp have the pixels of kAcross words.
  constexpr int kAcross = kStep * 32 > kPixels ? kStep * 32 / kPixels : 1,
                kTurns = kPixels * kAcross / (kStep * 32), kWords = kRowWords / (kWarps * kAcross),
                kLanes = 32 / kAcross;
  begin_copy(a.beside, a.scale);
  __shared__ std::uint32_t words[kParts][kPixels * kRowWords];
  Split split(a.largest, a.scale, a.prologue);
  if (!split.has_work()) return end_preparation(a.beside);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int log_of_pixel = 5 - a.log_split, of_pixel = 1 << log_of_pixel;  // words
  for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
    if (tile != blockIdx.x) __syncthreads();
    const int tile_pixels = a.channel_tiles.divide(tile),
              first_pixel = (tile_pixels * kPixels) << a.log_split,
              first_channel = a.channel_tiles.modulo(tile, tile_pixels) * kRowWords * kAtOnce;
    Pack<From, kStep> values[kWords][kTurns][kAtOnce] = {};
    const auto word_of = [&](int i) { return warp + i * kWarps + lane / kLanes * kLanes; };
    const auto row_of = [&](int k) { return (lane % kLanes + k * 32) * kStep; };
    /// Of element j of a word the channel, or -1.
    const auto channel_of = [&](int word, int j) {
      const int c = first_channel + (word & (of_pixel - 1)) * kAtOnce + j, group = a.group.divide(c),
                in_group = a.group.modulo(c, group), channel = group * a.group_channels + in_group;
      return in_group < a.group_channels && channel < a.channels ? channel : -1;
    };
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int word = word_of(i);
      bool inside[kAtOnce];
      const From* channels[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int channel = channel_of(word, j);
        inside[j] = channel >= 0;
        channels[j] = static_cast<const From*>(a.from) + static_cast<std::int64_t>(channel) * a.strides.c;
      }
#pragma unroll
      for (int k = 0; k < kTurns; ++k) {
        const unsigned pixel = static_cast<unsigned>(first_pixel) +
                               static_cast<unsigned>((word >> log_of_pixel) * kPixels + row_of(k));
        const int image = a.plane.divide(static_cast<int>(pixel)),
                  of_image = a.plane.modulo(static_cast<int>(pixel), image);
        const std::int64_t at = begin_of<kAll>(a, image) + of_image;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
          if (inside[j] && pixel < a.pixels)
            values[i][k][j] = load_fresh(reinterpret_cast<const Pack<From, kStep>*>(channels[j] + at));
      }
    }
    __syncwarp();  // all loads first: the assembler put stores, which wait for one, between them
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      typename Split::Channel of_channel[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        if constexpr (kNormalizes<Split>) of_channel[j] = split.of(channel_of(word_of(i), j));
#pragma unroll
      for (int k = 0; k < kTurns; ++k) {
#pragma unroll
        for (int p = 0; p < kStep; ++p) {
          const int row = row_of(k) + p;
          To parts[kAtOnce][kParts];
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) split(values[i][k][j].values[p], of_channel[j], parts[j]);
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            Pack<To, kAtOnce> together;
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) together.values[j] = parts[j][part];
            *reinterpret_cast<Pack<To, kAtOnce>*>(words[part] + row * kRowWords + (word_of(i) ^ turn(row))) =
                together;
          }
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kPixels * 8 / kThreads; ++i) {
        // A warp has four rows that are four apart.
        const int line = threadIdx.x / 8 + i * (kThreads / 8), v = threadIdx.x % 8,
                  row = (line & ~15) | (line & 3) << 2 | (line >> 2 & 3);
        const unsigned pixel = first_pixel + (v * 4 >> log_of_pixel) * kPixels + row;
        const int channel = first_channel + (v * 4 & (of_pixel - 1)) * kAtOnce;
        if (pixel >= a.pixels || channel >= a.padded) continue;
        const std::uint32_t* const words_of_row = words[part] + row * kRowWords;
        const int t = turn(row);
        const std::int64_t at =
            place_of<kParts>(a, copied_pixel<kAll>(a, pixel), part, a.padded / kElements) +
            channel / kElements;
        a.to[at] = make_uint4(words_of_row[(v * 4) ^ t], words_of_row[(v * 4 + 1) ^ t],
                              words_of_row[(v * 4 + 2) ^ t], words_of_row[(v * 4 + 3) ^ t]);
      }
    }
  }
  split.finish();
  end_preparation(a.beside);
}

/// Where a word of a tile lies: of threads with words 8 apart four meet in a bank, not eight.
__device__ __forceinline__ int staged(int word) {
  return word ^ ((word >> 5 & 7) << 2);
}

/// Groups of channels apart: a tile's elements by whole vectors to shared memory, then some to each vector.
template <class Split>
__global__ void __launch_bounds__(kThreads, 6) pad_kernel(const __grid_constant__ Arguments a) {
  using From = typename Split::From;
  using To = typename Split::To;
  constexpr int kParts = Split::kParts, kElements = kVectorBytes / sizeof(To),
                kLoad = kVectorBytes / sizeof(From);
  begin_copy(a.beside, a.scale);
  __shared__ uint4 loads[kPadAtOnce * kThreads + 8];
  const auto* const words = reinterpret_cast<const std::uint32_t*>(loads);
  Split split(a.largest, a.scale, a.prologue);
  if (!split.has_work()) return end_preparation(a.beside);
  const auto* const source = static_cast<const From*>(a.from);
  const int lead = static_cast<int>(reinterpret_cast<std::uintptr_t>(source) % kVectorBytes / sizeof(From));
  const std::int64_t count = std::int64_t{a.pixels} * a.channels;
  for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
    const conv_gemm::PaddedTile t(a.apart, tile, a.tile_vectors, a.pixels);
    const int last_pixel = static_cast<int>(t.pixel) + a.apart.of_pixel.divide(t.end - 1);
    if (!is_wanted(a, static_cast<int>(t.pixel), last_pixel)) continue;
    const conv_gemm::PaddedSource in(a.apart, t, kLoad, lead);
    if (tile != blockIdx.x) __syncthreads();
    uint4 values[kPadAtOnce] = {};
    const auto load = [&](int i) {
      const std::int64_t at = in.begin + std::int64_t{i} * kLoad;
      if (at >= 0 && at + kLoad <= count) return load_fresh(reinterpret_cast<const uint4*>(source + at));
      Pack<From, kLoad> some{};  // at either end
      for (int k = 0; k < kLoad; ++k)
        if (at + k >= 0 && at + k < count) some.values[k] = load_fresh(source + at + k);
      return __builtin_bit_cast(uint4, some);
    };
#pragma unroll
    for (int i = 0; i < kPadAtOnce; ++i)
      if (static_cast<int>(threadIdx.x) + i * kThreads < in.loads)
        values[i] = load(threadIdx.x + i * kThreads);
#pragma unroll
    for (int i = 0; i < kPadAtOnce; ++i) loads[staged((threadIdx.x + i * kThreads) * 4) / 4] = values[i];
    if (static_cast<int>(threadIdx.x) <
        in.loads - kPadAtOnce * kThreads)  // one more, where the source begins inside of one
      loads[staged((threadIdx.x + kPadAtOnce * kThreads) * 4) / 4] =
          load(threadIdx.x + kPadAtOnce * kThreads);
    __syncthreads();
    for (int at = t.first + static_cast<int>(threadIdx.x); at < t.end; at += kThreads) {
      const conv_gemm::PaddedVector v = a.apart.vector(at);
      const int from = in.from + v.source;
      Pack<From, kElements> x;
      if constexpr (sizeof(From) == 2) {
        Pack<std::uint32_t, kElements / 2> pairs;
        std::uint32_t low = words[staged(from / 2)];
#pragma unroll
        for (int k = 0; k < kElements / 2; ++k) {
          const std::uint32_t high = words[staged(from / 2 + k + 1)];
          pairs.values[k] = __funnelshift_r(low, high, from % 2 * 16);
          low = high;
        }
        x = __builtin_bit_cast(decltype(x), pairs);
      } else {
#pragma unroll
        for (int k = 0; k < kElements; ++k) x.values[k] = __builtin_bit_cast(From, words[staged(from + k)]);
      }
      Pack<To, kElements> parts[kParts];
#pragma unroll
      for (int k = 0; k < kElements; ++k) {
        To of_element[kParts];
        split(k < v.elements ? x.values[k] : From{}, {}, of_element);
#pragma unroll
        for (int part = 0; part < kParts; ++part) parts[part].values[k] = of_element[part];
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        a.to[place_of<kParts>(a, static_cast<unsigned>(t.pixel) + v.pixel, part, a.apart.vectors()) +
             v.vector] = __builtin_bit_cast(uint4, parts[part]);
    }
  }
  split.finish();
  end_preparation(a.beside);
}

/// A thread has some vectors of four elements, and writes four of each part. `count`, `of_pixel`,
/// of all columns that are one, and `channels`, of a single column, are in fours.
template <class Split>
__global__ void __launch_bounds__(kThreads)
    split_kernel(const float4* from, uint2* to, std::int64_t count, int of_pixel,
                 const conv_gemm::Divider channels, const unsigned* largest, Scale scale,
                 const __grid_constant__ ChannelPrologue prologue, bool beside) {
  constexpr int kParts = Split::kParts;
  begin_copy(beside, scale);
  Split split(largest, scale, prologue);
  if (!split.has_work()) return end_preparation(beside);
  for (std::int64_t first = std::int64_t{blockIdx.x} * (kSplitAtOnce * kThreads) + threadIdx.x; first < count;
       first += std::int64_t{gridDim.x} * (kSplitAtOnce * kThreads)) {
    float4 x[kSplitAtOnce] = {};
#pragma unroll
    for (int v = 0; v < kSplitAtOnce; ++v)
      if (first + v * kThreads < count) x[v] = load_fresh(from + first + v * kThreads);
#pragma unroll
    for (int v = 0; v < kSplitAtOnce; ++v) {
      const std::int64_t i = first + v * kThreads;
      if (i >= count) break;
      const float values[4] = {x[v].x, x[v].y, x[v].z, x[v].w};
      Pack<float16, 4> parts[kParts];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        typename Split::Channel of_channel;
        if constexpr (kNormalizes<Split>) {
          const int four = static_cast<int>(i);  // below 2^31: can_apply()
          of_channel = split.of(channels.modulo(four, channels.divide(four)) * 4 + k);
        }
        float16 of_element[kParts];
        split(values[k], of_channel, of_element);
#pragma unroll
        for (int part = 0; part < kParts; ++part) parts[part].values[k] = of_element[part];
      }
      const std::int64_t at = kParts == 1 ? i : i + i / of_pixel * of_pixel;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        *reinterpret_cast<Pack<float16, 4>*>(to + at + std::int64_t{part} * of_pixel) = parts[part];
    }
  }
  split.finish();
  end_preparation(beside);
}

/// A thread block for each of `parts`, or few if they hardly ever have work.
unsigned blocks_of(Device device, std::int64_t parts, Scale scale) {
  const std::int64_t most = scale == Scale::repeated ? 4 * multiprocessors(device) : parts;
  return grid_size("conv", std::min(parts, most));
}

bool has_channels_last(const Tensor& images) {
  return (images.layout() == Layout::nhwc || images.size(2) * images.size(3) == 1) &&
         reinterpret_cast<std::uintptr_t>(images.read()) % kVectorBytes == 0;
}

/// The rows that are copied.
conv_gemm::ReachedRows rows_copied(const ConvAxis* rows) {
  if (rows == nullptr || rows->stride > conv_gemm::kMaxPhases) return {};
  return conv_gemm::ReachedRows(*rows);
}

/// Queues what fills a copy. `a`: of the copy, and its channels.
template <class Split>
void fill(const Tensor& images, Arguments a, bool leaves_room) {
  using From = typename Split::From;
  constexpr int kElements = kVectorBytes / sizeof(typename Split::To), kParts = Split::kParts;
  const Device device = images.device();
  if constexpr (std::is_same_v<From, float>) {
    if (has_channels_last(images) && a.padded == a.channels) {
      const std::int64_t count = images.count() / 4;
      return launch_kernel("conv: halves", device, split_kernel<Split>,
                           blocks_of(device, ceil_div(count, kSplitAtOnce * kThreads), a.scale), kThreads,
                           static_cast<const float4*>(images.read()), reinterpret_cast<uint2*>(a.to), count,
                           (a.padded << a.log_fold) / 4, conv_gemm::Divider(a.padded / 4), a.largest, a.scale,
                           a.prologue, a.beside);
    }
  }
  const std::int64_t plane = images.size(2) * images.size(3);
  uint4* const to = a.to;
  a.plane = conv_gemm::Divider(plane), a.width = conv_gemm::Divider(images.size(3));
  if (images.layout() == Layout::nhwc) {
    if constexpr (!kNormalizes<Split>) {  // can_apply()
      a.from = images.read();
      a.pixels = static_cast<unsigned>(images.size(0) * plane);  // below 2^31: positions_fit()
      a.apart = conv_gemm::ChannelPadding(a.channels, a.channels / a.group_channels, kElements);
      a.tile_vectors = kPadVectors<Split>;
      const std::int64_t vectors = images.size(0) * plane * a.apart.vectors();
      while (a.tile_vectors > kThreads / 2 &&
             vectors < std::int64_t{a.tile_vectors} * 4 * multiprocessors(device))
        a.tile_vectors /= 2;
      const std::int64_t tiles = ceil_div(vectors, a.tile_vectors);
      a.tiles = static_cast<int>(grid_size("conv", tiles));
      launch_kernel("conv: channels apart", device, pad_kernel<Split>, blocks_of(device, tiles, a.scale),
                    kThreads, a);
    }
    return;
  }
  a.strides = ImageStrides(images.strides());
  std::int64_t copied = plane;  // of an image
  if (!a.rows.are_all()) {
    a.plane = a.width, a.image_rows = conv_gemm::Divider(a.rows.count);
    a.height = static_cast<int>(images.size(2)), copied = a.rows.count * images.size(3);
  }
  const int words = a.padded * kVectorBytes / kElements / 4;
  while (words <= kRowWords >> (a.log_split + 1)) ++a.log_split;
  const auto neighbours = [&](int count) {
    return a.plane.divisor % count == 0 &&
           reinterpret_cast<std::uintptr_t>(images.read()) % (count * sizeof(From)) == 0;
  };
  a.channel_tiles = conv_gemm::Divider(ceil_div(words, kRowWords));
  const auto tiles_of = [&](std::int64_t pixels, bool few) {
    return ceil_div(words, kRowWords) * ceil_div(pixels, rows_of_tile(kParts, few) << a.log_split);
  };
  // Small tiles are sooner ready, but many of them leave other kernels' blocks no room. (On an H200, with
  // half as many at most, a DCGAN's and a VAE's layers whose weights are packed beside the copy took 0.95
  // to 1.01 of the time; but a weight's gradient of two copies 1.09 times as long, and one whose pixels are
  // packed before the copy 1.2 times.)
  const bool few = tiles_of(images.size(0) * copied, false) < (leaves_room ? 2 : 4) * multiprocessors(device);
  const auto kernel_of = [&]<bool kFew, bool kSome>() {
    constexpr bool kAll = !kSome || kNormalizes<Split>;
    return neighbours(4)   ? transpose_kernel<Split, 4, kFew, kAll>
           : neighbours(2) ? transpose_kernel<Split, 2, kFew, kAll>
                           : transpose_kernel<Split, 1, kFew, kAll>;
  };
  const auto kernel_of_rows = [&]<bool kFew>() {
    return a.rows.are_all() ? kernel_of.template operator()<kFew, false>()
                            : kernel_of.template operator()<kFew, true>();
  };
  const auto kernel =
      few ? kernel_of_rows.template operator()<true>() : kernel_of_rows.template operator()<false>();
  // Kernels count pixels in 31 bits.
  const std::int64_t images_at_once = std::max<std::int64_t>(1, (std::int64_t{1} << 30) / plane);
  for (std::int64_t n = 0; n < images.size(0); n += images_at_once, a.beside = true) {
    a.from = static_cast<const From*>(images.read()) + n * a.strides.n;
    a.to = to + n * plane * a.padded * kParts / kElements;
    a.pixels = static_cast<unsigned>(std::min(images_at_once, images.size(0) - n) * copied);
    const std::int64_t tiles = tiles_of(a.pixels, few);
    a.tiles = static_cast<int>(grid_size("conv", tiles));
    launch_kernel("conv: channels last", device, kernel, blocks_of(device, tiles, a.scale), kThreads, a);
  }
}

}  // namespace

void ChannelsLast::fold_columns(int fold) {
  strides.w *= fold, group_channels *= fold;
}

template <class Split>
void ChannelsLast::copy(const Tensor& images, int groups, const ConvAxis* rows, int fold,
                        const Magnitude& largest, const Prologue& prologue) {
  constexpr int kElements = kVectorBytes / sizeof(typename Split::To), kParts = Split::kParts;
  if constexpr (kNormalizes<Split>) {
    constexpr bool kScaled = sizeof(typename Split::To) < sizeof(typename Split::From);
    check(rows == nullptr && can_apply(images, groups, kScaled),
          "conv: there is no copy that this prologue could be applied by");
  }
  const int padded = group_channels * groups;
  const std::int64_t plane = images.size(2) * images.size(3), of_image = plane * padded * kParts / kElements;
  strides = {plane * padded * kParts, 1, static_cast<int>(images.size(3)) * padded * kParts, padded * kParts};
  const conv_gemm::ReachedRows copied = rows_copied(rows);
  const OperandForm form{
      kParts, sizeof(typename Split::To), groups,
      copied.are_all() ? 0 : copied.mask << 8 | static_cast<unsigned>(copied.stride << 3 | copied.shift),
      kParts == 1 ? 1 : fold};
  if (!kNormalizes<Split>) copy_ = OperandCopies::find(images, form);
  data = copy_.get();
  if (copy_ != nullptr) return;
  const auto copy = std::make_shared<Storage>(
      static_cast<std::size_t>(images.size(0) * of_image) * kVectorBytes, Context::current(images.device()));
  auto* const to = static_cast<uint4*>(copy->data());
  data = to;
  copy_ = std::shared_ptr<void>(copy, to);
  if (!kNormalizes<Split>) OperandCopies::keep(images, form, copy_);
  if (images.count() == 0) return;
  Arguments a{};
  a.to = to;
  a.rows = copied;
  a.channels = static_cast<int>(images.size(1)), a.group_channels = a.channels / groups;
  a.group = conv_gemm::Divider(group_channels), a.padded = padded;
  while (1 << a.log_fold < form.fold) ++a.log_fold;
  if constexpr (kNormalizes<Split>) a.prologue = ChannelPrologue(prologue);
  if (images.layout() == Layout::nchw && !copied.are_all() && copied.count == 0) return;  // nothing is read
  a.largest = largest.words, a.scale = largest.is_guess ? Scale::guessed : Scale::known;
  make_ = [images, prologue, a](Preparations& preparations, bool leaves_room) {
    Arguments first = a;
    first.beside = preparations.next_is_beside();
    fill<Split>(images, first, leaves_room);
    if (a.scale != Scale::guessed) return;
    Arguments again = a;
    again.scale = Scale::repeated;
    preparations.repeat_at_end([images, again] { fill<Split>(images, again, false); });
  };
}

bool ChannelsLast::can_apply(const Tensor& images, int groups, bool scaled) {
  const int bytes = scaled ? static_cast<int>(sizeof(float16)) : static_cast<int>(size_of(images.dtype()));
  const bool whole = images.size(1) / groups % (kVectorBytes / bytes) == 0;
  if (has_channels_last(images) && whole) return scaled && images.count() / 4 < std::int64_t{1} << 31;
  return images.layout() == Layout::nchw;
}

ChannelsLast::ChannelsLast(const Tensor& images, int groups, const ConvAxis* rows, int fold,
                           const Prologue& prologue) {
  const int bytes = static_cast<int>(size_of(images.dtype())), vector = kVectorBytes / bytes;
  const int channels = static_cast<int>(images.size(1)), mine = channels / groups;
  group_channels = (mine + vector - 1) / vector * vector;
  check(bytes == 2 || bytes == 4, "conv: ", images.dtype(), " has no copy with channels last");
  if (prologue.exists()) {
    const auto copy_normalized = [&]<class T, class Word>() {
      copy<Normalized<T, Whole<Word>>>(images, groups, rows, fold, {}, prologue);
    };
    if (bytes == 4)
      copy_normalized.template operator()<float, std::uint32_t>();
    else if (images.dtype() == DType::bfloat16)
      copy_normalized.template operator()<bfloat16, std::uint16_t>();
    else
      copy_normalized.template operator()<float16, std::uint16_t>();
  } else if (has_channels_last(images) && group_channels == mine) {
    data = images.read();
    strides = {images.size(2) * images.size(3) * channels, 1, static_cast<int>(images.size(3)) * channels,
               channels};
  } else if (bytes == 2) {
    copy<Whole<std::uint16_t>>(images, groups, rows, fold, {}, {});
  } else {
    copy<Whole<std::uint32_t>>(images, groups, rows, fold, {}, {});
  }
  fold_columns(fold);
}

ChannelsLast::ChannelsLast(const Tensor& images, int groups, const ConvAxis* rows, int fold, int parts,
                           const Magnitude& largest, const Prologue& prologue) {
  constexpr int kElements = kVectorBytes / sizeof(float16);
  const int mine = static_cast<int>(images.size(1)) / groups;
  group_channels = (mine + kElements - 1) / kElements * kElements;
  const auto copy_halves = [&]<class Split>() {
    prologue.exists() ? copy<Normalized<float, Split>>(images, groups, rows, fold, largest, prologue)
                      : copy<Split>(images, groups, rows, fold, largest, {});
  };
  if (parts == 1) {
    copy_halves.template operator()<Halves<1>>();
  } else {
    copy_halves.template operator()<Halves<2>>();
  }
  fold_columns(fold);
}

}  // namespace tapedeck::cu
