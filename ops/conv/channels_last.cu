// The copies that ChannelsLast needs: a transpose of pixels and channels, or where these lie right already,
// their parts.
//
// For the transpose, a block has kPixels pixels of an image and 128 bytes of channels, of each part. It reads
// along pixels and writes along channels, full sectors both ways where the images are nchw; in between are
// rows of pixels in shared memory whose pitch is a word more than 128 bytes, so that both sides meet
// different banks (two threads the same one where pixels are read by pairs, or 16-bit elements one by one).
#include <algorithm>

#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/channels_last.cuh>
#include <tapedeck/ops/conv/scaled_half.cuh>

namespace tapedeck::cu {

namespace {

using conv_gemm::ImageStrides;
using conv_gemm::kVectorBytes;

constexpr int kPixels = 64, kRowWords = 33;

struct Arguments {
  const void* from;
  uint4* to;
  const unsigned* largest;
  ImageStrides strides;
  std::int64_t pixels;  // of an image
  conv_gemm::Divider width, group;
  int group_channels, channels, padded;  // the last two of all groups, the source's and a part's
  int stride = 1, padding = 0;           // of the axis of rows,
  unsigned phases = 1;                   // and a bit for each of its phases that has taps
};

// What an element becomes: kParts of type To. A thread takes kAtOnce channels.

/// Word: an unsigned integer of an element's size.
template <class Word>
struct Whole {
  using From = Word;
  using To = Word;
  static constexpr int kParts = 1, kAtOnce = 1;
  __device__ explicit Whole(const unsigned*) {}
  __device__ void operator()(Word x, Word (&parts)[1]) const { parts[0] = x; }
};

template <int kOf>
struct Halves {
  using From = float;
  using To = float16;
  static constexpr int kParts = kOf, kAtOnce = 2;
  __device__ explicit Halves(const unsigned* largest) : scale(conv_gemm::scale_of(*largest)) {}
  __device__ void operator()(float x, float16 (&parts)[kOf]) const { conv_gemm::split_half(x, scale, parts); }
  float scale;
};

/// kPair: pixels are neighbours, and pairs of them aligned.
template <class Split, bool kPair>
__global__ void __launch_bounds__(kThreads) transpose_kernel(const __grid_constant__ Arguments a) {
  using From = typename Split::From;
  using To = typename Split::To;
  constexpr int kParts = Split::kParts, kAtOnce = Split::kAtOnce, kChannels = 128 / sizeof(To);
  constexpr int kStep = kPair ? 2 : 1, kElements = kVectorBytes / sizeof(To);
  await_previous();
  __shared__ std::uint32_t words[kParts][kPixels * kRowWords];
  const std::int64_t first_pixel = std::int64_t{blockIdx.x} * kPixels;
  if (a.phases + 1 != 1u << a.stride) {
    const int last = static_cast<int>(min(a.pixels, first_pixel + kPixels) - 1);
    bool wanted = false;
    for (int h = a.width.divide(static_cast<int>(first_pixel)); h <= a.width.divide(last); ++h) {
      wanted = wanted || (a.phases >> (h + a.padding) % a.stride & 1) != 0;
    }
    if (!wanted) return;
  }
  const Split split(a.largest);
  const int first_channel = blockIdx.y * kChannels;
  const From* const from = static_cast<const From*>(a.from) + blockIdx.z * a.strides.n;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kChannels / kAtOnce / 8; ++i) {
    const int first = (warp + i * 8) * kAtOnce;
    bool inside[kAtOnce];
    const From* channels[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int c = first_channel + first + j, group = a.group.divide(c), in_group = a.group.modulo(c, group),
                channel = group * a.group_channels + in_group;
      inside[j] = in_group < a.group_channels && channel < a.channels;
      channels[j] = from + static_cast<std::int64_t>(channel) * a.strides.c;
    }
#pragma unroll
    for (int p = lane * kStep; p < kPixels; p += 32 * kStep) {
      const std::int64_t pixel = first_pixel + p;
      Pack<From, kStep> values[kAtOnce] = {};
      if (pixel < a.pixels) {
        std::int64_t at;
        if constexpr (kPair) {
          at = pixel;
        } else {
          const int h = a.width.divide(static_cast<int>(pixel)),
                    w = a.width.modulo(static_cast<int>(pixel), h);
          at = static_cast<std::int64_t>(h) * a.strides.h + static_cast<std::int64_t>(w) * a.strides.w;
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
          if (inside[j]) values[j] = *reinterpret_cast<const Pack<From, kStep>*>(channels[j] + at);
      }
#pragma unroll
      for (int k = 0; k < kStep; ++k) {
        To parts[kAtOnce][kParts];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) split(values[j].values[k], parts[j]);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          Pack<To, kAtOnce> together;
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) together.values[j] = parts[j][part];
          *reinterpret_cast<Pack<To, kAtOnce>*>(reinterpret_cast<To*>(words[part] + (p + k) * kRowWords) +
                                                first) = together;
        }
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int i = 0; i < kPixels * 8 / kThreads; ++i) {
      const int p = threadIdx.x / 8 + i * (kThreads / 8), v = threadIdx.x % 8;
      const int channel = first_channel + v * kElements;
      if (first_pixel + p >= a.pixels || channel >= a.padded) continue;
      const std::uint32_t* const row = words[part] + p * kRowWords + v * 4;
      const std::int64_t at =
          (((std::int64_t{blockIdx.z} * a.pixels + first_pixel + p) * kParts + part) * a.padded + channel) /
          kElements;
      a.to[at] = make_uint4(row[0], row[1], row[2], row[3]);
    }
  }
}

/// A thread has a vector of each part.
template <class Split>
__global__ void __launch_bounds__(kThreads)
    split_kernel(const float4* from, uint4* to, std::int64_t count, int of_pixel, const unsigned* largest) {
  constexpr int kParts = Split::kParts, kElements = kVectorBytes / sizeof(float16);
  await_previous();
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const Split split(largest);
  const float4 x[2] = {from[2 * i], from[2 * i + 1]};
  const float values[kElements] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w};
  Pack<float16, kElements> parts[kParts];
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    float16 of_element[kParts];
    split(values[k], of_element);
#pragma unroll
    for (int part = 0; part < kParts; ++part) parts[part].values[k] = of_element[part];
  }
  const std::int64_t first = kParts == 1 ? i : i + i / of_pixel * of_pixel;
#pragma unroll
  for (int part = 0; part < kParts; ++part)
    *reinterpret_cast<Pack<float16, kElements>*>(to + first + std::int64_t{part} * of_pixel) = parts[part];
}

bool has_channels_last(const Tensor& images) {
  return (images.layout() == Layout::nhwc || images.size(2) * images.size(3) == 1) &&
         reinterpret_cast<std::uintptr_t>(images.read()) % kVectorBytes == 0;
}

}  // namespace

template <class Split>
void ChannelsLast::copy(const Tensor& images, int groups, const ConvAxis* rows, const unsigned* largest) {
  using From = typename Split::From;
  constexpr int kElements = kVectorBytes / sizeof(typename Split::To), kParts = Split::kParts;
  const int channels = static_cast<int>(images.size(1)), padded = group_channels * groups;
  const std::int64_t plane = images.size(2) * images.size(3), of_image = plane * padded * kParts / kElements;
  strides = {plane * padded * kParts, 1, static_cast<int>(images.size(3)) * padded * kParts, padded * kParts};
  Arguments a{};
  if (rows != nullptr && rows->stride <= conv_gemm::kMaxPhases) {
    a.stride = static_cast<int>(rows->stride);
    a.padding = static_cast<int>(rows->padding);
    a.phases = 0;
    for (int r = 0; r < a.stride; ++r) a.phases |= rows->taps(r) > 0 ? 1u << r : 0;
  }
  const bool all_rows = a.phases + 1 == 1u << a.stride;
  const OperandForm form{
      kParts, sizeof(typename Split::To), groups,
      all_rows ? 0 : a.phases << 8 | static_cast<unsigned>(a.stride << 3 | a.padding % a.stride)};
  copy_ = OperandCopies::find(images, form);
  data = copy_.get();
  if (copy_ != nullptr) return;
  const auto copy = std::make_shared<Storage>(
      static_cast<std::size_t>(images.size(0) * of_image) * kVectorBytes, Context::current(images.device()));
  auto* const to = static_cast<uint4*>(copy->data());
  data = to;
  copy_ = std::shared_ptr<void>(copy, to);
  OperandCopies::keep(images, form, copy_);
  if (images.count() == 0) return;
  if constexpr (std::is_same_v<From, float>) {
    if (has_channels_last(images) && padded == channels) {
      const std::int64_t count = images.count() / kElements;
      return launch_kernel("conv: halves", images.device(), split_kernel<Split>,
                           grid_size("conv", ceil_div(count, kThreads)), kThreads,
                           static_cast<const float4*>(images.read()), to, count, padded / kElements, largest);
    }
  }
  a.from = images.read();
  a.to = to;
  a.largest = largest;
  a.strides = ImageStrides(images.strides());
  a.pixels = plane;
  a.width = conv_gemm::Divider(images.size(3));
  a.group = conv_gemm::Divider(group_channels);
  a.group_channels = channels / groups, a.channels = channels, a.padded = padded;
  const bool pairs = images.layout() == Layout::nchw && plane % 2 == 0 &&
                     reinterpret_cast<std::uintptr_t>(images.read()) % (2 * sizeof(From)) == 0;
  // A grid has at most 65535 blocks along z.
  for (std::int64_t n = 0; n < images.size(0); n += 32768) {
    Arguments part = a;
    part.from = static_cast<const From*>(a.from) + n * a.strides.n;
    part.to = a.to + n * of_image;
    const dim3 grid(grid_size("conv", ceil_div(plane, kPixels)),
                    static_cast<unsigned>(ceil_div(padded, kElements * 8)),
                    static_cast<unsigned>(std::min<std::int64_t>(32768, images.size(0) - n)));
    launch_kernel("conv: channels last", images.device(),
                  pairs ? transpose_kernel<Split, true> : transpose_kernel<Split, false>, grid, kThreads,
                  part);
  }
}

ChannelsLast::ChannelsLast(const Tensor& images, int groups, const ConvAxis* rows) {
  const int bytes = static_cast<int>(size_of(images.dtype())), vector = kVectorBytes / bytes;
  const int channels = static_cast<int>(images.size(1)), mine = channels / groups;
  group_channels = (mine + vector - 1) / vector * vector;
  if (has_channels_last(images) && group_channels == mine) {
    data = images.read();
    strides = {images.size(2) * images.size(3) * channels, 1, static_cast<int>(images.size(3)) * channels,
               channels};
  } else if (bytes == 2) {
    copy<Whole<std::uint16_t>>(images, groups, rows, nullptr);
  } else {
    check(bytes == 4, "conv: ", images.dtype(), " has no copy with channels last");
    copy<Whole<std::uint32_t>>(images, groups, rows, nullptr);
  }
}

ChannelsLast::ChannelsLast(const Tensor& images, int groups, const ConvAxis* rows, int parts,
                           const unsigned* largest) {
  constexpr int kElements = kVectorBytes / sizeof(float16);
  const int mine = static_cast<int>(images.size(1)) / groups;
  group_channels = (mine + kElements - 1) / kElements * kElements;
  if (parts == 1) {
    copy<Halves<1>>(images, groups, rows, largest);
  } else {
    copy<Halves<2>>(images, groups, rows, largest);
  }
}

}  // namespace tapedeck::cu
