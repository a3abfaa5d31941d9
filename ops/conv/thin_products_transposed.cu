// The forward pass of layers whose y has 1 to 4 channels: a thread block multiplies bands of some rows of x
// by the weights, band after band of an image, and keeps the products z of as many rows as outputs read, in
// shared memory; the outputs whose last rows these are then add what their taps read. Outputs' taps depend
// on their phase, o + padding modulo the stride, of which there are tables.
//
// Shared memory: rings of x; weights in the order of operands; z [product][row, the oldest ones overwritten]
// [column], and tables.
#include <utility>

#include <tapedeck/ops/conv/thin_products_tile.cuh>

namespace tapedeck::cu::conv_thin {

namespace {

constexpr int kTiles = kThinPixels / 8;  // of products' columns, of a warp

/// Rows of x of a band, of a part of an image's rows and columns.
struct Band {
  /// A part's first one.
  __device__ Band(const ThinArguments& a, int index) {
    const ThinPlan& p = a.plan;
    const int line = p.by_tiles_h.divide(index), number = p.by_tiles_h.modulo(index, line);
    image = p.by_tiles_w.divide(line), tile_w = p.by_tiles_w.modulo(line, image);
    begin = number * p.h.size, last = min(begin + p.h.size, p.h.x);
    row = max(begin - p.h.halo(), 0), end = min(row + p.h.band, last);
    column = p.w.x_begin(tile_w * p.w.size);
  }
  /// Goes on to the next one, if there is one.
  __device__ bool next(const ThinPlan& p) {
    if (end == last) return false;
    row = end, end = min(row + p.h.band, last);
    return true;
  }
  /// Warps' turns of kThinPixels.
  __device__ int turns(const ThinPlan& p) const {
    return ((end - row) * p.w.region + kThinPixels - 1) / kThinPixels;
  }
  int image, tile_w;
  int row, end, column;  // to be multiplied; the first column
  int begin, last;       // the part
};

/// A lane's place in the band: of a pixel, or with nchw of four neighbouring ones.
struct Place {
  __device__ Place(const ThinArguments& a, const Band& band, int index) {
    row = a.by_row.divide(index);
    column = a.by_row.modulo(index, row);
    row += band.row;
    inside = row < band.end;
  }
  int row, column;
  bool inside;
};

/// Brings what a warp multiplies to its threads' rings: of the block's parts the bands, its turns, the
/// products at once, the channels.
template <class T, bool kLast, bool kWords>
class Feed {
 public:
  static constexpr int kVector = 16 / sizeof(T), kWord = 4 / sizeof(T), kVectors = kLast ? 4 : 2 * kWord,
                       kStep = kLast ? 4 * kVector : 8 * kWord;  // channels
  using Vector = std::conditional_t<kLast || sizeof(T) == 4, uint4, uint2>;
  using Ring = ThinRing<Vector, kVectors>;

  __device__ Feed(const ThinArguments& a, int at_once, void* ring)
      : a_(a), ring_(ring), at_once_(at_once), index_(static_cast<int>(blockIdx.x)), band_(a, index_) {
    find();
#pragma unroll
    for (int i = 0; i < Ring::kSteps - 1; ++i) bring();
  }
  /// The next step's vectors, while more are on their way.
  __device__ __forceinline__ void take(Vector (&vectors)[kVectors]) {
    bring();
    ring_.take(vectors);
  }

 private:
  static constexpr int kPlaces = kLast ? kTiles : 1;

  __device__ __forceinline__ void bring() {
    if (index_ < a_.tiles) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if constexpr (kLast) {
          ring_.bring(i, channel_ < a_.plan.ci && offsets_[i] >= 0, x_ + channel_ + max(offsets_[i], 0));
        } else {
          const bool exists = channel_ + i < a_.plan.ci && offsets_[0] >= 0;
          if constexpr (kWords) {
            ring_.bring_words(i, exists ? bytes_ : 0, at_ + i * plane_);
          } else {
            ring_.bring(i, exists, at_ + i * plane_);
          }
        }
      }
      channel_ += kStep;
      if constexpr (!kLast) at_ += kStep * plane_;
      if (--steps_ == 0) next();
    }
    ring_.end();
  }
  __device__ void next() {
    product_ += at_once_;
    if (product_ < a_.plan.padded_products) return begin();
    product_ = 0, turn_ += kWarps;
    find();
  }
  /// A turn's first channels.
  __device__ void begin() {
    channel_ = static_cast<int>(threadIdx.x) % 4 * (kLast ? kVector : kVectors);
    steps_ = (a_.plan.ci + kStep - 1) / kStep;
    at_ = x_ + max(offsets_[0], 0) + static_cast<std::int64_t>(channel_) * plane_;
  }
  /// The turn's pixels, of the next band if this one has no more.
  __device__ void find() {
    const ThinPlan& p = a_.plan;
    while (turn_ >= band_.turns(p)) {
      if (!band_.next(p)) {
        index_ += static_cast<int>(gridDim.x);
        if (index_ >= a_.tiles) return;
        band_ = Band(a_, index_);
      }
      turn_ = static_cast<int>(threadIdx.x) / 32;
    }
    plane_ = p.h.x * p.w.x;
    x_ = static_cast<const T*>(a_.from) + static_cast<std::int64_t>(band_.image) * p.ci * plane_;
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int j = 0; j < kPlaces; ++j) {
      const Place place(a_, band_, turn_ * (kLast ? kThinPixels : 8) + j * 8 + g);
      const int column = band_.column + place.column * (kLast ? 1 : 4);
      offsets_[j] = place.inside && column < p.w.x ? (place.row * p.w.x + column) * (kLast ? p.ci : 1) : -1;
      if constexpr (kWords) bytes_ = place.inside ? (p.w.x - column) * static_cast<int>(sizeof(T)) : 0;
    }
    begin();
  }

  const ThinArguments& a_;
  Ring ring_;
  const int at_once_;
  int index_;
  Band band_;
  int turn_ = static_cast<int>(threadIdx.x) / 32, product_ = 0;
  const T *x_ = nullptr, *at_ = nullptr;  // the image; this thread's next vectors, with nchw
  int plane_ = 0, channel_ = 0, steps_ = 0;
  int offsets_[kPlaces];  // of pixels in their image; -1: outside
  int bytes_ = 0;         // by words: of the row, from this thread's vectors on
};

/// What an output's column adds: `count` products of its taps, from `first` in z's rows on.
struct TapsOfColumn {
  int first, count;
};
static_assert(sizeof(TapsOfColumn) == sizeof(TapsOfPhase));

/// Those of a tile's columns.
__device__ void find_columns(const ThinPlan& p, const Band& band, TapsOfColumn* columns) {
  const ThinAxis& w = p.w;
  for (int i = static_cast<int>(threadIdx.x); i < w.size; i += kBlock) {
    const int at = band.tile_w * w.size + i + w.padding, q = w.by_stride.divide(at);
    TapsOfPhase taps = w.taps_of(w.by_stride.modulo(at, q));
    taps.i += q;
    for (; taps.k < w.kernel && taps.i >= w.x; taps.k += w.tap_step) taps.i -= w.tap_back;
    int count = 0;
    for (int k = taps.k, x = taps.i; k < w.kernel && x >= 0; k += w.tap_step, x -= w.tap_back) ++count;
    columns[i] = {taps.k * p.sum_pitch + taps.i - band.column, count};
  }
}

__device__ __forceinline__ int h_pitch(const ThinPlan& p) {
  return p.w.kernel * p.sum_pitch;
}

/// Those of the rows that a band completes, from `first` on: of each how many taps, and where in z their rows
/// are.
__device__ void find_rows(const ThinArguments& a, int first, int rows, const TapsOfPhase* phases, int* taps) {
  const ThinPlan& p = a.plan;
  const ThinAxis& h = p.h;
  for (int i = static_cast<int>(threadIdx.x); i < rows; i += kBlock) {
    const int at = first + i + h.padding, q = h.by_stride.divide(at);
    const TapsOfPhase of_phase = phases[h.by_stride.modulo(at, q)];
    int* const of_row = taps + i * (p.most_taps() + 1);
    int count = 0;
    for (int k = of_phase.k, x = of_phase.i + q; k < h.kernel && x >= 0; k += h.tap_step, x -= h.tap_back)
      if (x < h.x)
        of_row[++count] = k * h_pitch(p) + a.by_region_h.modulo(x, a.by_region_h.divide(x)) * p.w.region;
    of_row[0] = count;
  }
}

/// The outputs of rows from `first` on. A warp has 32 neighbours of a row.
template <class T, bool kLast, int kChannels>
__device__ void add_taps(const ThinArguments& a, const Band& band, int first, int rows, const float* z,
                         const int* taps, const TapsOfColumn* columns) {
  const ThinPlan& p = a.plan;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int of_channel = p.taps * p.sum_pitch, of_tap = p.w.tap_step * p.sum_pitch - p.w.tap_back,
            of_row = p.most_taps() + 1, plane = p.h.y * p.w.y;
  float bias[kChannels] = {};
  if (a.bias != nullptr)
#pragma unroll
    for (int m = 0; m < kChannels; ++m) bias[m] = convert<float>(static_cast<const T*>(a.bias)[m]);
#pragma unroll 1
  for (int i = lane; i < p.w.size; i += 32) {
    const int ow = band.tile_w * p.w.size + i;
    if (ow >= p.w.y) break;
    const TapsOfColumn column = columns[i];
    const float* const of_column = z + column.first;
    T* to = static_cast<T*>(a.to) + static_cast<std::int64_t>(band.image) * kChannels * plane +
            ((first + warp) * p.w.y + ow) * (kLast ? kChannels : 1);
#pragma unroll 1
    for (int row = warp; row < rows; row += kWarps, to += kWarps * p.w.y * (kLast ? kChannels : 1)) {
      float sums[kChannels];
#pragma unroll
      for (int m = 0; m < kChannels; ++m) sums[m] = bias[m];
      const int* const known = taps + row * of_row;
#pragma unroll 1
      for (int k = known[0]; k > 0; --k) {
        const float* at = of_column + known[k];
#pragma unroll 2
        for (int n = column.count; n > 0; --n, at += of_tap)
#pragma unroll
          for (int m = 0; m < kChannels; ++m) sums[m] += at[m * of_channel];
      }
#pragma unroll
      for (int m = 0; m < kChannels; ++m) to[kLast ? m : m * plane] = convert<T>(rectified(sums[m], a.slope));
    }
  }
}

/// Thread blocks that a multiprocessor has registers for.
template <class Math>
constexpr int kBlocks = blocks_of_registers(ThinPass::transposed, Math::kParts == 3 ? 2 : 1, 0);

/// kRows: times 16 products at once.
template <class Math, bool kLast, bool kWords, int kRows, bool kPrologue>
__global__ void __launch_bounds__(kBlock, kBlocks<Math>)
    thin_transposed_kernel(const __grid_constant__ ThinArguments a) {
  using T = typename Math::Element;
  using W = Words<Math>;
  using XFeed = Feed<T, kLast, kWords>;
  using XPrologue =
      std::conditional_t<kPrologue, ThreadPrologue<T, typename XFeed::Vector, XFeed::kVectors, kLast, false>,
                         NoPrologue>;
  const ThinPlan& p = a.plan;
  extern __shared__ uint4 memory[];
  uint4* const weights = memory + XFeed::Ring::kBytes / 16;
  float* const z = reinterpret_cast<float*>(weights) + p.weight_bytes() / 4;
  auto* const phases = reinterpret_cast<TapsOfPhase*>(z + p.products * p.sum_pitch);
  auto* const columns = reinterpret_cast<TapsOfColumn*>(phases + p.h.stride);
  int* const row_taps = reinterpret_cast<int*>(columns + p.w.size);
  for (int i = threadIdx.x; i < p.h.stride; i += kBlock) phases[i] = p.h.taps_of(i);
  await_previous();
  XFeed feed(a, 16 * kRows, memory);
  // A step's operands of 16 products each: of lane (g, t) rows g and g + 8, and the channels that it has of
  // x.
  const int tiles = p.padded_products / 16, to_small = p.channels * p.padded_products / (16 / sizeof(T));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  bring_weights<Math, true>(
      a, weights, tiles,
      [](int of_g, int of_t, int i) {
        const int c = kLast ? of_t * W::kVector + i / 2 * W::kWord : (of_t * 2 + i / 2) * W::kWord;
        return WeightPlace{c, of_g + i % 2 * 8};
      },
      [](int step, int tile) {
        const int c = kLast ? step / 2 * XFeed::kStep + step % 2 * 2 * W::kWord : step * XFeed::kStep;
        return WeightPlace{c, tile * 16};
      });
  __syncthreads();

#pragma unroll 1
  for (int index = blockIdx.x; index < a.tiles; index += static_cast<int>(gridDim.x)) {
    Band band(a, index);
    find_columns(p, band, columns);
    int first_y = p.h.outputs_before(band.begin);
#pragma unroll 1
    do {
      const int rows_y = max(p.h.outputs_before(band.end) - first_y, 0);
      find_rows(a, first_y, rows_y, phases, row_taps);
#pragma unroll 1
      for (int turn = warp; turn < band.turns(p); turn += kWarps) {
        // Where in z this thread's columns go: two vectors of pixels (nchw), or a pair of each tile.
        int to[kLast ? kTiles : 2];
#pragma unroll
        for (int j = 0; j < (kLast ? kTiles : 2); ++j) {
          const Place place(a, band, kLast ? turn * kThinPixels + j * 8 + 2 * t : turn * 8 + 2 * t + j);
          const int slot = a.by_region_h.modulo(place.row, a.by_region_h.divide(place.row));
          to[j] = place.inside ? slot * p.w.region + place.column * (kLast ? 1 : 4) : -1;
        }
#pragma unroll 1
        for (int first = 0; first < p.padded_products; first += 16 * kRows) {
          ThinSums<Math, kRows, kTiles> sums;
          const uint4* of_step = weights + first * 2 + lane;
          const auto multiply_step = [&]<bool kFirst>(const Operand<Math, 2>(&of_x)[kTiles]) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
              const Operand<Math, 4> of_weights(of_step + i * 32, to_small);
#pragma unroll
              for (int j = 0; j < kTiles; ++j) sums.template add<kFirst>(i, j, of_weights, of_x[j]);
            }
            of_step += tiles * 32;
          };
#pragma unroll 1
          for (int c = 0; c < p.ci;) {
            // Two steps of k, or one if there are no more channels.
            typename XFeed::Vector vectors[XFeed::kVectors];
            const auto take = [&] {
              feed.take(vectors);
              XPrologue(a, c + t * (kLast ? XFeed::kVector : XFeed::kVectors), 1).apply(vectors);
            };
            const auto multiply_vectors = [&]<int kStep>() {
              Operand<Math, 2> of_x[kTiles];
#pragma unroll
              for (int j = 0; j < kTiles; ++j) {
                std::uint32_t words[2];
                if constexpr (kLast) {
                  words[0] = word_of(vectors[j], 2 * kStep), words[1] = word_of(vectors[j], 2 * kStep + 1);
                } else {
                  words_across<T>(vectors, j, words);
                }
                of_x[j] = Operand<Math, 2>(words);
              }
              multiply_step.template operator()<kStep == 0>(of_x);
            };
            take();
            multiply_vectors.template operator()<0>();
            c += XFeed::kStep;
            if constexpr (kLast) {
              multiply_vectors.template operator()<1>();
            } else if (sums.kFlushes && c < p.ci) {
              take();
              multiply_vectors.template operator()<1>();
              c += XFeed::kStep;
            }
            sums.flush();
          }
#pragma unroll
          for (int i = 0; i < kRows; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int r = first + i * 16 + g + half * 8;
              if (r >= p.products) continue;
              float* const of_product = z + r * p.sum_pitch;
              if constexpr (kLast) {
#pragma unroll
                for (int j = 0; j < kTiles; ++j)
                  if (to[j] >= 0)
                    *reinterpret_cast<float2*>(of_product + to[j]) =
                        make_float2(sums.values[i][j][half * 2], sums.values[i][j][half * 2 + 1]);
              } else {
#pragma unroll
                for (int k = 0; k < 2; ++k) {
                  const int e = half * 2 + k;
                  if (to[k] >= 0)
                    *reinterpret_cast<float4*>(of_product + to[k]) =
                        make_float4(sums.values[i][0][e], sums.values[i][1][e], sums.values[i][2][e],
                                    sums.values[i][3][e]);
                }
              }
            }
        }
      }
      __syncthreads();
      switch (p.co) {
        case 1:
          add_taps<T, kLast, 1>(a, band, first_y, rows_y, z, row_taps, columns);
          break;
        case 2:
          add_taps<T, kLast, 2>(a, band, first_y, rows_y, z, row_taps, columns);
          break;
        case 3:
          add_taps<T, kLast, 3>(a, band, first_y, rows_y, z, row_taps, columns);
          break;
        default:
          add_taps<T, kLast, 4>(a, band, first_y, rows_y, z, row_taps, columns);
      }
      __syncthreads();
      first_y += rows_y;
    } while (band.next(p));
  }
}

}  // namespace

void launch_transposed(const ThinArguments& arguments, const Tensor& to, bool has_prologue) {
  ThinArguments a = arguments;
  const ThinPlan& p = a.plan;
  visit_thin(to, [&]<class Math, bool kLast>() {
    a.by_row = Divider(kLast ? p.w.region : p.w.region / 4);
    a.by_region_h = Divider(p.h.region);
    const dim3 grid(grid_size("conv", p.blocks()));
    visit_rows<!kLast && sizeof(typename Math::Element) == 2>(p, [&]<bool kWords>() {
      const auto launch = [&]<int... kRows>(std::integer_sequence<int, kRows...>) {
        ((p.at_once == kRows
              ? launch_thin(has_prologue ? thin_transposed_kernel<Math, kLast, kWords, kRows, true>
                                         : thin_transposed_kernel<Math, kLast, kWords, kRows, false>,
                            grid, a, to)
              : void()),
         ...);
      };
      launch(std::integer_sequence<int, 1, 2, 3>());
    });
  });
}

}  // namespace tapedeck::cu::conv_thin
