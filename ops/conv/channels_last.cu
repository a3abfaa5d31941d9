// The copy that ChannelsLast needs of a tensor that is not so: a transpose of pixels and channels.
//
// A block has kPixels pixels of an image and 128 bytes of channels. It reads along pixels and writes along
// channels, full sectors both ways where the images are nchw; in between are rows of pixels in shared memory
// whose pitch is a word more than 128 bytes, so that both sides meet different banks (two threads the same
// one where 16-bit elements are stored one by one).
#include <algorithm>

#include <tapedeck/ops/conv/channels_last.cuh>

namespace tapedeck::cu {

namespace {

using conv_gemm::ImageStrides;
using conv_gemm::kVectorBytes;

constexpr int kPixels = 64, kRowWords = 33;

struct Arguments {
  const void* from;
  uint4* to;
  ImageStrides strides;
  std::int64_t pixels;  // of an image
  conv_gemm::Divider width, group;
  int group_channels, channels, padded;  // the last two of all groups, the source's and the result's
  int stride = 1, padding = 0;           // of the axis of rows,
  unsigned phases = 1;                   // and a bit for each of its phases that has taps
};

/// Word: an unsigned integer of an element's size. kPair: pixels are neighbours, and pairs of them aligned.
template <class Word, bool kPair>
__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ Arguments a) {
  constexpr int kChannels = 128 / sizeof(Word), kPitch = kRowWords * 4 / sizeof(Word);
  constexpr int kStep = kPair ? 2 : 1, kVector = kVectorBytes / sizeof(Word);
  __shared__ std::uint32_t words[kPixels * kRowWords];
  Word* const tile = reinterpret_cast<Word*>(words);
  const std::int64_t first_pixel = std::int64_t{blockIdx.x} * kPixels;
  if (a.phases + 1 != 1u << a.stride) {
    const int last = static_cast<int>(min(a.pixels, first_pixel + kPixels) - 1);
    bool wanted = false;
    for (int h = a.width.divide(static_cast<int>(first_pixel)); h <= a.width.divide(last); ++h) {
      wanted = wanted || (a.phases >> (h + a.padding) % a.stride & 1) != 0;
    }
    if (!wanted) return;
  }
  const int first_channel = blockIdx.y * kChannels;
  const Word* const from = static_cast<const Word*>(a.from) + blockIdx.z * a.strides.n;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kChannels / 8; ++i) {
    const int c = warp + i * 8, group = a.group.divide(first_channel + c),
              in_group = a.group.modulo(first_channel + c, group);
    const int channel = group * a.group_channels + in_group;
    const bool inside = in_group < a.group_channels && channel < a.channels;
#pragma unroll
    for (int p = lane * kStep; p < kPixels; p += 32 * kStep) {
      const std::int64_t pixel = first_pixel + p;
      Pack<Word, kStep> value{};
      if (inside && pixel < a.pixels) {
        std::int64_t at;
        if constexpr (kPair) {
          at = pixel;
        } else {
          const int h = a.width.divide(static_cast<int>(pixel)),
                    w = a.width.modulo(static_cast<int>(pixel), h);
          at = static_cast<std::int64_t>(h) * a.strides.h + static_cast<std::int64_t>(w) * a.strides.w;
        }
        value = *reinterpret_cast<const Pack<Word, kStep>*>(
            from + static_cast<std::int64_t>(channel) * a.strides.c + at);
      }
#pragma unroll
      for (int k = 0; k < kStep; ++k) tile[(p + k) * kPitch + c] = value.values[k];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPixels * 8 / kThreads; ++i) {
    const int p = threadIdx.x / 8 + i * (kThreads / 8), v = threadIdx.x % 8;
    const int channel = first_channel + v * kVector;
    if (first_pixel + p >= a.pixels || channel >= a.padded) continue;
    const std::uint32_t* const row = words + p * kRowWords + v * 4;
    const std::int64_t at =
        ((std::int64_t{blockIdx.z} * a.pixels + first_pixel + p) * a.padded + channel) / kVector;
    a.to[at] = make_uint4(row[0], row[1], row[2], row[3]);
  }
}

}  // namespace

ChannelsLast::ChannelsLast(const Tensor& images, int groups, const ConvAxis* rows) {
  const int bytes = static_cast<int>(size_of(images.dtype())), vector = kVectorBytes / bytes;
  const int channels = static_cast<int>(images.size(1)), mine = channels / groups;
  const std::int64_t plane = images.size(2) * images.size(3);
  group_channels = (mine + vector - 1) / vector * vector;
  const int padded = group_channels * groups;
  data = images.raw();
  strides = {plane * padded, 1, static_cast<int>(images.size(3)) * padded, padded};
  if ((images.layout() == Layout::nhwc || plane == 1) && padded == channels &&
      reinterpret_cast<std::uintptr_t>(data) % kVectorBytes == 0) {
    return;
  }
  copy_.emplace(images.device(), ceil_div(images.size(0) * plane * padded, vector));
  data = copy_->data();
  if (images.count() == 0) return;
  Arguments a{};
  a.from = images.raw();
  a.to = copy_->data();
  a.strides = ImageStrides(images.strides());
  a.pixels = plane;
  a.width = conv_gemm::Divider(images.size(3));
  a.group = conv_gemm::Divider(group_channels);
  a.group_channels = mine, a.channels = channels, a.padded = padded;
  if (rows != nullptr && rows->stride <= conv_gemm::kMaxPhases) {
    a.stride = static_cast<int>(rows->stride);
    a.padding = static_cast<int>(rows->padding);
    a.phases = 0;
    for (int r = 0; r < a.stride; ++r) a.phases |= rows->taps(r) > 0 ? 1u << r : 0;
  }
  const auto launch = [&]<class Word>() {
    const bool pairs = images.layout() == Layout::nchw && plane % 2 == 0 &&
                       reinterpret_cast<std::uintptr_t>(images.raw()) % (2 * sizeof(Word)) == 0;
    const cudaStream_t stream = stream_of(images.device());
    // A grid has at most 65535 blocks along z.
    for (std::int64_t n = 0; n < images.size(0); n += 32768) {
      Arguments part = a;
      part.from = static_cast<const Word*>(a.from) + n * a.strides.n;
      part.to = a.to + n * plane * padded / vector;
      const dim3 grid(grid_size("conv", ceil_div(plane, kPixels)),
                      static_cast<unsigned>(ceil_div(padded, static_cast<int>(128 / sizeof(Word)))),
                      static_cast<unsigned>(std::min<std::int64_t>(32768, images.size(0) - n)));
      if (pairs) {
        copy_kernel<Word, true><<<grid, kThreads, 0, stream>>>(part);
      } else {
        copy_kernel<Word, false><<<grid, kThreads, 0, stream>>>(part);
      }
      check_launch("conv: channels last");
    }
  };
  if (bytes == 2) {
    launch.template operator()<std::uint16_t>();
  } else {
    check(bytes == 4, "conv: ", images.dtype(), " has no copy with channels last");
    launch.template operator()<std::uint32_t>();
  }
}

}  // namespace tapedeck::cu
