// Results over boxes (wgmma_box.cuh) to nchw: boxes of whole rows, those that two blocks swap, runs of all
// phases, and loops over single results, pairs, and folded columns.
#pragma once

#include <tapedeck/ops/conv/strip_async.cuh>
#include <tapedeck/ops/conv/wgmma_box_sums.cuh>

namespace tapedeck::cu::conv_gemm {

/// Of two blocks of a cluster that swap results: of each warp, whether what the other block's warp sends has
/// come (data and barrier are in this block's shared memory, where waiting for one shows the other), whether
/// the other one may be sent more, and how often they have swapped.
struct SwapBarriers {
  __device__ void initialise() {
#pragma unroll
    for (int w = 0; w < kConsumerThreads / 32; ++w)
      come[w].initialise(1), free[w].initialise(1), turns[w] = 0;
  }
  Barrier come[kConsumerThreads / 32], free[kConsumerThreads / 32];
  unsigned turns[kConsumerThreads / 32];
};

/// What a BoxOutput writes to nchw.
template <class Math, int kPlaces, int kOfPlace>
struct BoxRows : BoxSums<Math, kPlaces, kOfPlace> {
  using Base = BoxSums<Math, kPlaces, kOfPlace>;
  using Base::channel;
  using Base::channel_of_warp;
  using Base::channel_offset;
  using Base::exists;
  using Base::first_channel;
  using Base::in_tile;
  using Base::inside;
  using Base::kJoined;
  using Base::kSums;
  using Base::N;
  using Base::pair_of;
  using Base::place;
  using Base::writes;
  using typename Base::Sums;
  using typename Base::TileAt;
  using typename Base::Value;

  /// What a warp has of the results of a tile with whole rows: which of channel_copies(), its first channel,
  /// row and image.
  struct Share {
    int lane, warp, copy, first_of_warp, row, image;
  };
  __device__ __forceinline__ static Share share_of_warp(const BoxArguments& call, const TileAt& tile) {
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32),
              half = call.halves == 2 ? warp / (kWarpgroup / 32) : 0;
    const bool of_rows = call.tile.halves_are_of_rows();
    return {static_cast<int>(threadIdx.x % 32),
            warp,
            warp % (kWarpgroup / 32) >> (2 - call.log_copies),
            static_cast<int>(uniform(first_channel(call, tile) + channel_of_warp(call))),
            tile.row + (of_rows ? half * call.box.rows : 0),
            tile.image + (of_rows ? 0 : half * call.box.images)};
  }

  /// In nchw, where a tile has whole rows: each warp has its channels' results as a box in shared memory,
  /// [channel][row][image][column], which one thread hands to the tensor memory accelerator. Of copies of
  /// channels the first has the even ones, the second the odd ones.
  ///
  /// (The lanes of a store meet few banks here. With eight channels' rows beside each other, swizzled, they
  /// meet all, and 16-bit ones are stored as matrices; but 163 ways to compute a DCGAN's, a VAE's and larger
  /// layers then took 1.02 times as long, by layer and pass 0.98 to 1.05, those of write_swapped() among
  /// them: what bounds them seems to be how memory takes short rows, of which those of a channel follow each
  /// other.)
  __device__ __forceinline__ static void write_box(const BoxArguments& call, const TileAt& tile, char* memory,
                                                   const Sums& sums) {
    const BoxPlan& p = call.plan;
    const ResultBox& box = call.box;
    const auto [lane, warp, copy, first_of_warp, row, image] = share_of_warp(call, tile);
    if (copy >= 2 || first_of_warp >= p.to_channels || image >= p.n || row >= p.h.count[tile.i]) return;
    const int channels = call.log_copies == 0 ? 16 : 8, pitch = box.places * kJoined;  // of a channel
    Value* const rows = reinterpret_cast<Value*>(memory) + warp * channels * pitch;
    if (lane == 0) await_boxes_read();
    __syncwarp();
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      if (call.log_copies > 0 && copy != odd) continue;
      Value* const mine = rows + (call.log_copies == 0 ? lane / 4 * 2 + odd : lane / 4) * pitch;
#pragma unroll
      for (int k = 0; k < kSums; k += 4) {  // of eight places
        Pack<Value, 2 * kJoined> values;
#pragma unroll
        for (int i = 0; i < 2 * kJoined; ++i)
          values.values[i] = convert<Value>(sums[i % kJoined][k + odd * 2 + i / kJoined]);
        if (place(k) < box.places)
          *reinterpret_cast<Pack<Value, 2 * kJoined>*>(mine + place(k) * kJoined) = values;
      }
    }
    fence_async();
    __syncwarp();
    if (lane == 0) {
      store_box(call.maps[p.planes() + tile.i], shared_address(rows), 0, image, row,
                call.log_copies == 0 ? 0 : copy, (tile.group * p.to_channels + first_of_warp) / 2);
      commit_boxes();
    }
  }
  /// In nchw, of results that step over columns: blocks of a pair have a phase of columns each of the same
  /// tile. Warps of the same channels swap them: the first block's has the even channels of both phases then,
  /// the second one's the odd ones, and each hands whole rows to the tensor memory accelerator as write_box()
  /// does. What comes lies as the threads have it, where the box is made of it.
  ///
  /// (Written by a phase, rows have a result in every second place: 64 to 128 stores a thread that fill no
  /// sector, which with all around them took some 10 of the 26 us of a DCGAN's layer in a profile on an H200.
  /// Plain stores to the other block, with a release and an arrival behind all, took 0.98 to 1.07 times as
  /// long in unet_up.)
  __device__ __forceinline__ static void write_swapped(const BoxArguments& call, const TileAt& tile,
                                                       char* memory, SwapBarriers& barriers,
                                                       const float (&sums)[kSums]) {
    const BoxPlan& p = call.plan;
    const ResultBox& box = call.box;
    const auto [lane, warp, copy, first_of_warp, row, image] = share_of_warp(call, tile);
    // The same for both blocks.
    if (first_of_warp >= p.to_channels || image >= p.n || row >= p.h.count[tile.i]) return;
    const unsigned rank = rank_in_cluster();
    const bool is_first = p.w.to[tile.j] == 0;  // of a row's results
    char* const mine = memory + warp * (call.staged_bytes / (kConsumerThreads / 32));
    const unsigned come = shared_address(&barriers.come[warp]), free = shared_address(&barriers.free[warp]);
    constexpr int kGroupWords = sizeof(Value) / 2, kWords = kSums / 4 * kGroupWords;  // a group: eight places
    const unsigned turn = barriers.turns[warp];
    __syncwarp();
    if (lane == 0) {
      barriers.turns[warp] = turn + 1;
      Barrier::arrive_and_expect_at(come, 32 * kWords * 4);
    }
    if (turn > 0) {
      if (lane == 0) {
        await_boxes_read();
        Barrier::arrive_at_other(address_of_cluster(free, rank ^ 1));
      }
      Barrier::wait_at(free, (turn - 1) & 1);
    }
    static_assert(kWords % 4 == 0);
    const unsigned there = address_of_cluster(shared_address(mine), rank ^ 1) + lane * kVectorBytes,
                   to_come = address_of_cluster(come, rank ^ 1);
    std::uint32_t kept[kWords], words[kWords];
#pragma unroll
    for (int v = 0; v < kWords / 4; ++v) {
      std::uint32_t sent[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int word = 4 * v + i, k = word / kGroupWords * 4, e = word % kGroupWords;
        std::uint32_t even, odd;
        if constexpr (sizeof(Value) == 2) {
          even = pair_of(sums[k], sums[k + 1]), odd = pair_of(sums[k + 2], sums[k + 3]);
        } else {
          // Copies: where sums themselves go on, products wait for each other (C7520).
          asm volatile("mov.b32 %0, %1;" : "=r"(even) : "f"(sums[k + e]));
          asm volatile("mov.b32 %0, %1;" : "=r"(odd) : "f"(sums[k + 2 + e]));
        }
        kept[word] = rank == 0 ? even : odd, sent[i] = rank == 0 ? odd : even;
        asm volatile("" : "+r"(kept[word]));  // here, so that sums need no registers longer
      }
      send_words(there + v * (32 * kVectorBytes), make_uint4(sent[0], sent[1], sent[2], sent[3]), to_come);
    }
    Barrier::wait_at(come, turn & 1);
#pragma unroll
    for (int v = 0; v < kWords / 4; ++v) {
      const uint4 x = load_words(shared_address(mine) + (v * 32 + lane) * kVectorBytes);
      words[4 * v] = x.x, words[4 * v + 1] = x.y, words[4 * v + 2] = x.z, words[4 * v + 3] = x.w;
    }
    __syncwarp();
    // Of two places both phases' results.
    const int pitch = box.places * 2 * static_cast<int>(sizeof(Value));  // of a channel
    char* const to = mine + lane / 4 * pitch + lane % 4 * (4 * sizeof(Value));
#pragma unroll
    for (int g = 0; g < kSums / 4; ++g) {
      if (place(4 * g) >= box.places) continue;
      std::uint32_t first[kGroupWords], second[kGroupWords];
#pragma unroll
      for (int e = 0; e < kGroupWords; ++e) {
        const std::uint32_t a = kept[g * kGroupWords + e], b = words[g * kGroupWords + e];
        first[e] = is_first ? a : b, second[e] = is_first ? b : a;
      }
      char* const of_group = to + g * (16 * sizeof(Value));
      if constexpr (sizeof(Value) == 2) {
        *reinterpret_cast<uint2*>(of_group) =
            make_uint2(__byte_perm(first[0], second[0], 0x5410), __byte_perm(first[0], second[0], 0x7632));
      } else {
        *reinterpret_cast<uint4*>(of_group) = make_uint4(first[0], second[0], first[1], second[1]);
      }
    }
    if (sizeof(Value) == 2 && call.rows_are_vectors) {
      __syncwarp();
      return write_vectors_of_box(call, tile, shared_address(mine), image, row,
                                  first_of_warp + static_cast<int>(rank));
    }
    fence_async();
    __syncwarp();
    if (lane == 0) {
      store_box(call.maps[p.planes() + tile.i], shared_address(mine), 0, image, row, static_cast<int>(rank),
                (tile.group * p.to_channels + first_of_warp) / 2);
      commit_boxes();
    }
  }
  /// Writes a warp's box of every second channel, from `channel` on, of which a row's results are a vector.
  /// (The tensor memory accelerator is slow with such rows: warps that had handed it boxes waited 1,300 to
  /// 4,300 clocks until it had read them, where rows are two vectors 200 to 400; read in the kernel on an
  /// H200. With loads and stores, and weights packed by pairs, dcgan2's forward in bfloat16 took 0.93 of the
  /// time. A DCGAN's layers with rows of two to eight vectors took 1 to 1.07 times as long so.)
  __device__ __forceinline__ static void write_vectors_of_box(const BoxArguments& call, const TileAt& tile,
                                                              unsigned from, int image, int row,
                                                              int channel) {
    const BoxPlan& p = call.plan;
    const ResultBox& box = call.box;
    const ImageStrides& s = call.to_strides;
    const int rows = box.rows * box.images,
              row_bytes = box.places / rows * 2 * static_cast<int>(sizeof(Value)), to_row = p.h.to_step * s.h;
    Value* const to = static_cast<Value*>(call.to) + image * s.n +
                      static_cast<std::int64_t>(p.h.to[tile.i]) * s.h +
                      row * static_cast<std::int64_t>(to_row) +
                      (static_cast<std::int64_t>(tile.group) * p.to_channels + channel) * s.c;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % 32; i < 8 * rows; i += 32) {
      const int c = i / rows, of_box = i - c * rows, y = of_box / box.images, n = of_box - y * box.images;
      const bool exists = channel + 2 * c < p.to_channels && row + y < p.h.count[tile.i] && image + n < p.n;
      store_if(exists, reinterpret_cast<uint4*>(to + n * s.n + y * to_row + 2 * c * s.c),
               load_words(from + i * row_bytes));
    }
  }

  /// In nchw, of tiles that have all phases and whole rows: what a warpgroup has of an image's channel is one
  /// piece of memory, wherever that begins. A warp puts its channels' runs in order in shared memory, each as
  /// it lies in vectors of memory; threads copy whole vectors of a run each at once, and what is before and
  /// behind these.
  __device__ __forceinline__ static void write_runs(const BoxArguments& call, const TileAt& tile,
                                                    const PlaceOfResult* places, char* memory,
                                                    const Sums& sums) {
    static_assert(kJoined == 4);
    const BoxPlan& p = call.plan;
    const ResultBox& box = call.box;
    const ResultRuns& runs = call.runs;
    const ImageStrides& s = call.to_strides;
    constexpr int kVector = kVectorBytes / sizeof(Value);
    const auto [lane, warp, copy, first_of_warp, row, image] = share_of_warp(call, tile);
    const int count = runs.count(row);
    if (copy >= 2 || first_of_warp >= p.to_channels || image >= p.n || count <= 0) return;
    Value* const to = static_cast<Value*>(call.to) + image * s.n + static_cast<std::int64_t>(2 * row) * s.h +
                      (static_cast<std::int64_t>(tile.group) * p.to_channels + first_of_warp) * s.c;
    Value* const staged = reinterpret_cast<Value*>(memory) + warp * runs.staged();
    // Where a run begins in its vector, from its channel and image on.
    const auto in_vector =
        [begin = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(to) / sizeof(Value)),
         of_channel = static_cast<unsigned>(s.c), of_image = static_cast<unsigned>(s.n)](int c, int n) {
          return static_cast<int>((begin + c * of_channel + n * of_image) % kVector);
        };
    await_boxes_read();
    __syncwarp();
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      if (call.log_copies > 0 && copy != odd) continue;
      const int channel = lane / 4 * 2 + odd;
      Value* const mine = staged + (call.log_copies == 0 ? channel : lane / 4) * (runs.images * runs.pitch);
#pragma unroll
      for (int k = 0; k < kSums; k += 4) {  // two places
        const PlaceOfResult at = places[place(k)];
        Value* const first =
            mine + static_cast<int>(at.offset) + in_vector(channel, static_cast<int>(at.in_tile & 0x1ff));
        const int left = place(k) < box.places ? runs.width - 2 * static_cast<int>(at.in_tile >> 20) : 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {  // rows
          Value* const four = first + i * runs.width;
          Pack<Value, 4> values;
#pragma unroll
          for (int e = 0; e < 4; ++e)
            values.values[e] = convert<Value>(sums[2 * i + e % 2][k + odd * 2 + e / 2]);
          if (call.vectors) {
            if (left > 0) *reinterpret_cast<Pack<Value, 4>*>(four) = values;
          } else if (call.pairs) {
#pragma unroll
            for (int e = 0; e < 4; e += 2)
              if (left > e)
                *reinterpret_cast<Pack<Value, 2>*>(four + e) = {values.values[e], values.values[e + 1]};
          } else {
#pragma unroll
            for (int e = 0; e < 4; ++e)
              if (left > e) four[e] = values.values[e];
          }
        }
      }
    }
    fence_async();
    __syncwarp();
#pragma unroll 1
    for (int run = lane; run < runs.all(); run += 32) {
      const int c = runs.by_images.divide(run), n = runs.by_images.modulo(run, c),
                channel = call.log_copies == 0 ? c : 2 * c + copy;
      if (first_of_warp + channel >= p.to_channels || image + n >= p.n) continue;
      const int at = in_vector(channel, n);
      const ResultRuns::Whole whole = runs.whole(count, at);
      const Value* const from = staged + run * runs.pitch + at;
      Value* const result = to + channel * s.c + n * s.n;
      if (whole.end > whole.begin)
        conv_strip::start_bulk_copy(result + whole.begin, shared_address(from + whole.begin),
                                    (whole.end - whole.begin) * static_cast<int>(sizeof(Value)));
#pragma unroll 1
      for (int e = 0; e < whole.begin; ++e) result[e] = from[e];
#pragma unroll 1
      for (int e = whole.end; e < count; ++e) result[e] = from[e];
    }
    commit_boxes();
  }

  /// Writes a place's values of channels `step` apart, of which `count` exist, if the place does.
  template <int kChannels, class V>
  __device__ __forceinline__ static void write_place(Value* to, std::int64_t step, int count, bool exists,
                                                     const V (&values)[kChannels]) {
    const auto write_all = [&](const auto& is_there) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) store_if(is_there(c), to + c * step, values[c]);
    };
    if (count >= kChannels) {  // nothing to compare
      write_all([&](int) { return exists; });
    } else {
      write_all([&](int c) { return exists && c < count; });
    }
  }

  /// In nchw: a warp's 16 channels have a row each of kStagedPlaces results.
  __device__ __forceinline__ static void write_rows(const BoxArguments& call, const TileAt& tile,
                                                    const PlaceOfResult* places, float* staged, Value* to,
                                                    const float (&sums)[kSums]) {
    const BoxPlan& p = call.plan;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_of_warp = first_channel(call, tile) + channel_of_warp(call);
    if (first_of_warp >= p.to_channels) return;
    float* const rows = staged + warp * (16 * kStagedPitch);
    const std::int64_t step = call.to_strides.c;
    to += first_of_warp * step;
    const unsigned inside_tile = inside(tile, tile.columns[0]);
    const int channels = p.to_channels - first_of_warp;
#pragma unroll
    for (int pass = 0; pass < (N + kStagedPlaces - 1) / kStagedPlaces; ++pass) {
      if (!writes(call, pass)) continue;
      constexpr int kAll = kStagedPlaces / 2;  // sums of a pass
#pragma unroll
      for (int i = 0; i < kAll; i += 4) {
        const int k = pass * kAll + i;
        if (k >= kSums) break;
        float* const at = rows + lane / 4 * kStagedPitch + i * 2 + lane % 4 * 2;
        *reinterpret_cast<float2*>(at) = make_float2(sums[k], sums[k + 1]);
        *reinterpret_cast<float2*>(at + 8 * kStagedPitch) = make_float2(sums[k + 2], sums[k + 3]);
      }
      const int place = pass * kStagedPlaces + lane;
      const PlaceOfResult at = places[min(place, N - 1)];
      const bool mine = place < N && exists(at, inside_tile);
      __syncwarp();
      Value values[16];
#pragma unroll
      for (int c = 0; c < 16; ++c) values[c] = convert<Value>(rows[block_row(c) * kStagedPitch + lane]);
      __syncwarp();
      write_place(to + at.offset, step, channels, mine, values);
    }
  }

  /// In nchw, where two results of a row are neighbours at an even place of memory: those of joined phases,
  /// of two folded columns (kFolded), or of two places. Half of a warp's channels, the even or the odd ones,
  /// have a row of 32 pairs at a time; folded columns all that there are.
  template <bool kFolded>
  __device__ __forceinline__ static void write_pairs(const BoxArguments& call, const TileAt& tile,
                                                     const PlaceOfResult* places, float* staged, Value* to,
                                                     const Sums& sums) {
    constexpr int kOfPlaceHere = kFolded ? 2 : kJoined, kPass = 64 / kOfPlaceHere;  // places
    constexpr int kPitch = kOfPlaceHere == 2 ? kJoinedPitch : kPairedPitch;
    const BoxPlan& p = call.plan;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_of_warp = first_channel(call, tile) + channel_of_warp(call);
    if (first_of_warp >= p.to_channels) return;
    float* const rows = staged + warp * (16 * kStagedPitch);
    const std::int64_t step = call.to_strides.c;
    to += (kFolded ? first_of_warp / 2 : first_of_warp) * step;
    const unsigned inside_tile = inside(tile, tile.columns[0]);
    const int channels = p.to_channels - first_of_warp;
#pragma unroll
    for (int pass = 0; pass < (N + kPass - 1) / kPass; ++pass) {
      if (!writes(call, pass)) continue;
      const int place = pass * kPass + lane * (2 / kOfPlaceHere);
      const PlaceOfResult at = places[min(place, N - 1)];
      const bool mine = place < N && exists(at, inside_tile);
#pragma unroll
      for (int odd = 0; odd < (kFolded ? 1 : 2); ++odd) {
        constexpr int kGroups = kPass / 8, kOfGroup = 2 * kOfPlaceHere;  // groups of eight places
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          const int first = (pass * kGroups + i) * 4;
          if (first >= kSums) break;
          Pack<float, kOfGroup> of_group;
#pragma unroll
          for (int e = 0; e < kOfGroup; ++e)
            of_group.values[e] =
                sums[kFolded ? 0 : e % kJoined][first + e / kOfPlaceHere + (kFolded ? e % 2 : odd) * 2];
          *reinterpret_cast<Pack<float, kOfGroup>*>(rows + lane / 4 * kPitch +
                                                    (i * 8 + lane % 4 * 2) * kOfPlaceHere) = of_group;
        }
        __syncwarp();
        Pack<Value, 2> values[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          const float2 pair = *reinterpret_cast<const float2*>(rows + c * kPitch + lane * 2);
          values[c] = {convert<Value>(pair.x), convert<Value>(pair.y)};
        }
        __syncwarp();
        write_place(to + at.offset + odd * step, kFolded ? step : 2 * step,
                    kFolded ? (channels + 1) / 2 : (channels - odd + 1) / 2, mine, values);
      }
    }
  }

  /// The same of 16-bit results: as matrices of 8 channels and 8 results, which is how threads have them, a
  /// warp's channels come to rows of 64 results each. Of joined phases or folded columns, where a thread has
  /// four neighbours, vectors of a row have every other pair.
  template <bool kFolded>
  __device__ __forceinline__ static void write_halves(const BoxArguments& call, const TileAt& tile,
                                                      const PlaceOfResult* places, char* memory, Value* to,
                                                      const Sums& sums) {
    constexpr int kOfPlaceHere = kFolded ? 2 : kJoined, kPass = 64 / kOfPlaceHere, kRowBytes = 128,
                  kRowVectors = kRowBytes / kVectorBytes, kChannels = kFolded ? 8 : 16,
                  kAtOnce = kFolded ? 4 : 2;  // vectors of a row
    static_assert(kOfPlaceHere == 2 || kSums % 8 == 0);
    const BoxPlan& p = call.plan;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_of_warp = first_channel(call, tile) + channel_of_warp(call);
    if (first_of_warp >= p.to_channels) return;
    const std::int64_t step = call.to_strides.c;
    to += (kFolded ? first_of_warp / 2 : first_of_warp) * step;
    const unsigned inside_tile = inside(tile, tile.columns[0]);
    const int channels = (p.to_channels - first_of_warp) / (kFolded ? 2 : 1);
    // A lane has the address of row r of one of four matrices: of two channels and two vectors, or of four
    // vectors. A channel's vector v lies at v ^ r, so that rows of a matrix are in all banks. Then a lane has
    // two results of each channel.
    const unsigned rows = shared_address(memory) + warp * (16 * kStagedPitch * 4);
    const int r = lane % 8, matrix = lane / 8, channel_of_row = kFolded ? r : 2 * r + matrix % 2,
              vector = kOfPlaceHere == 1 ? lane / 4 : lane / 8 * 2 + lane % 2,
              word = kOfPlaceHere == 1 ? lane % 4 : lane % 8 / 2;
    const unsigned stored = rows + channel_of_row * kRowBytes +
                            ((kFolded ? matrix : matrix / 2) ^ r) * kVectorBytes,
                   loaded = rows + vector * kVectorBytes + word * 4;
#pragma unroll
    for (int pass = 0; pass < (N + kPass - 1) / kPass; ++pass) {
      if (!writes(call, pass)) continue;
      const int place = pass * kPass + lane * (2 / kOfPlaceHere);
      const PlaceOfResult at = places[min(place, N - 1)];
      const bool mine = place < N && exists(at, inside_tile);
#pragma unroll
      for (int v = 0; v < kRowVectors; v += kAtOnce) {
        const int first = (pass * kRowVectors + v) / kOfPlaceHere * 4;
        if (first >= kSums) break;
        // Of a thread's second channel or the first one: of two groups of eight places, element e of one; of
        // joined phases place `group` of phase e.
        const auto sum = [&](int second, int group, int e) {
          if constexpr (kJoined == 2) return sums[e][first + second * 2 + group];
          const int k = first + group * 4 + second * 2 + e;
          return k < kSums ? sums[0][k] : 0;
        };
        std::uint32_t words[4];
#pragma unroll
        for (int m = 0; m < 4; ++m)
          words[m] = kFolded ? pair_of(sum(0, m / 2, m % 2), sum(1, m / 2, m % 2))
                             : pair_of(sum(m % 2, m / 2, 0), sum(m % 2, m / 2, 1));
        store_matrices(stored ^ v * kVectorBytes, words);
      }
      __syncwarp();
      std::uint32_t values[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c)
        values[c] = load_word((loaded ^ (kFolded ? c : c / 2) * kVectorBytes) + c * kRowBytes);
      __syncwarp();
      write_place(to + at.offset, step, channels, mine, values);
    }
  }

  /// In nchw, of folded columns: a thread's two channels are neighbours in a row, and so are those of two
  /// places, if the fold is of two. Four threads write 16 results that are, of each of eight channels.
  __device__ __forceinline__ static void write_folds(const BoxArguments& call, const TileAt& tile,
                                                     const PlaceOfResult* places, Value* to,
                                                     const float (&sums)[kSums]) {
    const int mine = first_channel(call, tile) + channel(call, 0);
    if (mine >= call.plan.to_channels) return;
    const bool whole = call.vectors && call.log_fold == 1;
    const unsigned inside_tile = inside(tile, tile.columns[0]), next_column = in_tile(0, 0, 1);
    to += channel_offset(call, mine);
    constexpr int kAtOnce = kSums % 16 == 0 ? 4 : 2;  // pairs of places
#pragma unroll
    for (int first = 0; first < kSums; first += 4 * kAtOnce) {
      PlaceOfResult at[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) at[i] = places[place(first + 4 * i)];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int k = first + 4 * i;
        if (!writes(call, k / 4)) continue;
        const Pack<Value, 2> a = {convert<Value>(sums[k]), convert<Value>(sums[k + 2])},
                             b = {convert<Value>(sums[k + 1]), convert<Value>(sums[k + 3])};
        Value* const result = to + at[i].offset;
        const bool one = exists(at[i], inside_tile);
        PlaceOfResult next = at[i];
        next.in_tile += next_column;
        const bool two = exists(next, inside_tile);
        if (whole && two) {
          *reinterpret_cast<Pack<Value, 4>*>(result) = {a.values[0], a.values[1], b.values[0], b.values[1]};
        } else {
          if (one) *reinterpret_cast<Pack<Value, 2>*>(result) = a;
          if (two) *reinterpret_cast<Pack<Value, 2>*>(result + (1 << call.log_fold)) = b;
        }
      }
    }
  }
};

}  // namespace tapedeck::cu::conv_gemm
