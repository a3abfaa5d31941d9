// The inner loops of the dense operations, compiled once for each instruction set.
//
// The loops are written with the compiler's vector types in ops/micro/*.inl, which kernels.cpp includes.
// CMake compiles that file once for each instruction set into a namespace of its own (see
// tapedeck_micro_kernels), and kernels() chooses when it is called. Such a file includes this header and
// nothing of the library or the standard's templates: an inline function compiled for AVX-512 there could be
// the copy that the linker keeps for everybody. Unlike the loops of core/simd.h, multiplications and
// additions are fused where the instruction set can, so results differ between instruction sets in the last
// bits; on one machine they do not depend on anything but the arguments.
//
// All sizes and steps count elements. Matrices are given by a pointer and the step between rows; what runs
// along a row is contiguous. A panel is a matrix of `vectors * lanes` columns whose rows lie densely one
// after the other: `lanes` is the width of a vector register.
#pragma once

#include <cstdint>

namespace tapedeck::micro {

/// Lines of memory that follow each other.
struct Lines {
  const char* first;
  std::int64_t count;
};

/// What a kernel asks its caches for while it computes, evenly: what is read next is on its way then, which a
/// processor does not see by itself where rows are short or far apart. `count` lines, after the first
/// `skipped` ones of `lines`.
struct Ahead {
  const Lines* lines = nullptr;
  std::int64_t skipped = 0, count = 0;
};

/// A stretch of a contraction: elements a, a+1, ... of a row of A meet rows b/width, b/width + 1, ... of a
/// panel of that width.
struct Run {
  std::int64_t a, b, length;
};

/// C[m,:] = start + the sum over runs and k of A[m, run.a + k] * panel[run.b/width + k, :] for m < rows.
/// Everything a convolution or a matrix product does with packed weights. For kernels.dots the panel is
/// transposed: panel[:, run.b + k], with panel_step between its rows; run lengths are whole vectors. For
/// kernels.products a run has length 1 and C[m,:] gets A[m, run.a + :] * panel[run.b + :], lane by lane.
template <class T>
struct Rows {
  const T* a;
  std::int64_t a_step;
  const T* panel;
  std::int64_t panel_step;  // for dots
  const Run* runs;
  std::int64_t run_count;
  const T* start;   // a row as wide as the panel, or null for zeros
  bool accumulate;  // start from C instead; for rows only
  T* c;
  std::int64_t c_step;
  std::int64_t rows;
  std::int64_t columns;  // of C; the panel has as many vectors as these need. At most max_dots for dots
  Ahead ahead = {};      // for rows only
};

/// C[m,:] += the sum over i, j, k of A[i,j,k,m] * B[i,j,k,:] for m < rows, where A[i,j,k,m] is
/// a[i*a_step[0] + j*a_step[1] + k*a_step[2] + m], and B likewise; C has `vectors` whole vectors in a row.
/// For kernels.product_sums C[m,:] gets A[i,j,k,m,:] * B[i,j,k,:], lane by lane, with a_row between the rows
/// m of A.
template <class T>
struct Outer {
  const T* a;
  const T* b;
  std::int64_t counts[3], a_step[3], b_step[3];
  T* c;
  std::int64_t c_step;
  std::int64_t rows;
  std::int64_t vectors;  // at most max_vectors
  std::int64_t a_row;    // for product_sums
  Ahead ahead = {};      // not for product_sums
};

/// Sums C of `rows` rows m and some vectors v, to which the steps k of runs add products of one element of A
/// for each m, which lie apart, with one vector for each v:
///   rows_apart    C[m,v] += the sum over runs and k < length of
///                           A[run.a + m*a_step + k*a_run] * B[run.b + k*b_step + v]
///   outer_apart   C[m,v] += A[run.a + m*a_step + k*a_run] * B[run.b + offsets[v] + k*b_step]
/// where C[m,v] is c[m*c_step + offsets[v]] for the former, c[m*c_step + v*lanes] for the latter, and B's v
/// counts lanes for the former.
template <class T>
struct ApartTask {
  const T* a;
  std::int64_t a_step, a_run;
  const T* b;
  std::int64_t b_step;
  const Run* runs;
  std::int64_t run_count;
  T* c;
  std::int64_t c_step;
  const std::int64_t* offsets;  // of vectors
  std::int64_t vectors;         // at most max_vectors
  std::int64_t rows;
  Ahead ahead = {};
};

/// out[offset(j) + i] = in[i*in_step + j] for i < rows, j < columns; offset(j) is offsets[j], or
/// j*out_step where offsets is null.
template <class T>
struct Transpose {
  const T* in;
  std::int64_t in_step;
  std::int64_t rows, columns;
  T* out;
  std::int64_t out_step;
  const std::int64_t* offsets;
};

/// C[m,p] = start[m] + the sum over k < depth of a[k*rows + m] * b[offsets[k] + p] for m < rows and the
/// pixels p = run*pitch + i, run < runs and i < count. Whole vectors of b are read: up to plane_slack
/// elements after the last.
template <class T>
struct Correlation {
  const T* a;
  const T* b;
  const std::int64_t* offsets;
  std::int64_t depth;
  const T* start;  // or null for zeros
  T* c;
  std::int64_t c_step;
  std::int64_t rows;  // at most plane_rows
  std::int64_t count, runs, pitch;
  Ahead ahead = {};
};

/// A row of results of `rows` channels, past the caches: element i*step + r of C[m] is pixel i < count of
/// phase r, or start[m] where phases[r] has depth 0, or all of the row where `phases` is null; then
/// rectified. Of the phases only a, b, offsets and depth count. The rows of a channel follow each other in
/// memory, `first` to `last`. Whole vectors of b are read, as for a Correlation.
///
/// in_pairs: phases are those of two rows by minimal filtering (conv/planes.h, PairBand), four parts of
/// `depth` rows of a each and rows of b `pitch`, which counts then, apart. Both rows are computed with the
/// first one; the second one, `is_second`, follows before others are computed. Such rows have at most
/// kStretchBytes.
template <class T>
struct StreamedRow {
  const Correlation<T>* phases;
  std::int64_t step;  // at most max_stream_step
  const T* start;     // or null for zeros; until the row is written
  T negative_slope;
  T* to;
  std::int64_t to_step;  // between channels
  std::int64_t rows;     // at most plane_rows
  std::int64_t count;
  std::int64_t width;  // elements of the row, at least a vector
  bool first, last;
  Ahead ahead = {};
  bool in_pairs = false, is_second = false;
};

/// Bytes of a channel of a row of results that are computed before they are written.
constexpr std::int64_t kStretchBytes = 8 << 10;

/// What a thread's streamed rows have between calls: stretches that are computed, or have no taps, and wait
/// to be written.
template <class T>
struct RowQueue {
  static constexpr int kMost = 32;
  /// From pixel `begin` on.
  struct Stretch {
    StreamedRow<T> row;
    const T* results;  // [phase][row][vector]; null: all of the row is `start`
    unsigned taken;    // a bit for each phase that has results
    std::int64_t begin, vectors;
    T* carry;  // a vector for each channel: what waits for the row that follows
  };
  /// The i-th that waits.
  Stretch& at(int i) { return stretches[(begin + i) % kMost]; }

  T* memory = nullptr;  // of queue_elements
  Stretch stretches[kMost];
  int begin = 0, count = 0;
  std::int64_t channels = 0;  // of the first stretch that are written
  int turn = 0, side = 0;     // of memory for results and for carries
  T* second = nullptr;        // results of the second row of a pair
};

/// C[m,j] += the sum over i < images and the pixels p, as of a Correlation, of a[i*a_image + m*a_step + p] *
/// b[i*b_image + offsets[j] + p] for m < rows, j < columns.
template <class T>
struct PixelSums {
  const T* a;
  std::int64_t a_step;
  const T* b;
  const std::int64_t* offsets;
  T* c;
  std::int64_t c_step;
  std::int64_t rows, columns;
  std::int64_t count, runs, pitch;
  std::int64_t images, a_image, b_image;
  Ahead ahead = {};
};

/// Phases of rows for r < step, i < count: for kernels.split out[offsets[r] + i] = in[i*step + r], except
/// where offsets[r] is negative; for kernels.join out[i*step + r] = in[offsets[r] + i], or `start` where
/// offsets[r] is negative. The same for `rows` rows.
template <class T>
struct Strided {
  const T* in;
  T* out;
  const std::int64_t* offsets;
  std::int64_t step, count;
  std::int64_t rows = 1, in_row = 0, out_row = 0;  // between rows
  T start = 0;
};

/// Rows of one channel at stride 2 along w: tap j of a row of the kernel takes element m of x to element
/// 2m + at + j of y, and the pairs' phase r and column m' of y are those of 2m' + r. For i < rows and m <
/// count:
///   spread_pairs   to[i,2m + r] = start
///                  + the sum over k < tap_rows and j of weights[k,j] * from[i,k,m''], m'' that tap j takes
///                  there
///   gather_pairs   to[i,m] = start + the sum over k, j of weights[k,j] * from[i,k,2m + at + j]
///   pair_sums      to[k,j] += the sum over i, m of x[i,k,m] * from[i,2m + at + j] for k < tap_rows, 1 or 2:
///                  tap_row lies between x's k, weight_row between those of `to`
/// spread_pairs writes the first `width` elements of rows and reads whole vectors, from one before the row
/// on; `past_caches` needs rows of results that are whole vectors and aligned as such. The others read the
/// first `width` elements of rows, and zeros beside them.
/// Results of the first two are rectified. There are 2 to kMaxPairTaps taps, and `at` is -kMaxPairPadding to
/// 0. spread_pairs asks the second cache for `ahead_count` elements from `ahead` on, the others for what lies
/// `next` after an element of `from`, and `x_next` after one of x, that they read for the first time.
constexpr std::int64_t kMaxPairTaps = 5, kMaxPairPadding = 2;
struct PairTask {
  std::int64_t at, tap_count, tap_rows, tap_row;
  const float* weights;
  std::int64_t weight_row;
  float start;
  float negative_slope;  // of a rectifier of the results; 1 without
  const float* from;
  float* to;
  std::int64_t from_row, to_row, rows, count;
  std::int64_t width = 0;
  bool past_caches = false;
  const float* x = nullptr;
  std::int64_t x_row = 0;
  const float* ahead = nullptr;
  std::int64_t ahead_count = 0;
  std::int64_t next = 0, x_next = 0;
};

/// x[i*step + j] for i < rows, j < columns, where it is not above 0, is multiplied by negative_slope, or 0
/// where that is 0; NaN stays (Rectifier of ops/rectifier.h).
template <class T>
struct Rectification {
  T* x;
  std::int64_t rows, columns, step;
  T negative_slope;
};

/// The maps of minimal filtering that conv/winograd.h defines.
enum class WinogradMap : std::uint8_t { input, weight, output, output_adjoint, weight_adjoint };

/// A tile, row after row: each element is `count` channels (in whole vectors) at a pointer. An `output`
/// begins with `start`, a row of channels, or null for zeros. The elements of the tiles after it, `tiles` in
/// all, are from_step and to_step further each.
template <class T>
struct WinogradTiles {
  const T* const* from;
  T* const* to;
  const T* start;
  std::int64_t count;
  std::int64_t tiles = 1, from_step = 0, to_step = 0;
};

template <class T>
struct Kernels {
  std::int64_t lanes;
  std::int64_t max_vectors;    // of a panel
  std::int64_t tile_rows[5];   // of the largest tile, for panels of so many vectors
  std::int64_t apart_rows[5];  // the same of rows_apart and outer_apart
  std::int64_t max_dots;
  std::int64_t plane_rows;       // of a Correlation
  std::int64_t plane_slack;      // elements
  std::int64_t max_stream_step;  // of stream_row; 0 without
  std::int64_t queue_elements;   // of a RowQueue
  void (*rows)(const Rows<T>&);
  void (*dots)(const Rows<T>&);
  void (*products)(const Rows<T>&);
  void (*outer)(const Outer<T>&);
  void (*product_sums)(const Outer<T>&);
  /// Null in builds for size.
  void (*rows_apart)(const ApartTask<T>&);
  void (*outer_apart)(const ApartTask<T>&);
  /// Of places of one vector, which has `channels` elements for each of so many columns (conv/in_place.h):
  /// adds up those of pixel i, j*channels and on in place i + columns - 1 - j, in place i. Vectors behind the
  /// last place that pixels have are read.
  void (*unfold)(T* places, std::int64_t count, std::int64_t columns, std::int64_t channels);
  void (*transpose)(const Transpose<T>&);
  void (*correlate)(const Correlation<T>&);
  /// Null in builds for size. Of four rows of `count` elements those that a pair of rows of results needs
  /// (conv/planes.h, PairBand), `pitch` apart.
  void (*pair_rows)(const T* const* rows, T* to, std::int64_t count, std::int64_t pitch);
  void (*pixel_sums)(const PixelSums<T>&);
  void (*split)(const Strided<T>&);
  void (*join)(const Strided<T>&);
  void (*rectify)(const Rectification<T>&);
  /// Null for double.
  void (*winograd)(WinogradMap map, std::int64_t taps_h, std::int64_t taps_w, const WinogradTiles<T>&);
  /// For AVX2, AVX-512 and float, else null, and in builds for size.
  void (*spread_pairs)(const PairTask&);
  void (*gather_pairs)(const PairTask&);
  void (*pair_sums)(const PairTask&);
  /// Copies past the caches, for results that no cache holds until they are read. Other threads see these,
  /// and those of spread_pairs, after an atomic read-modify-write, as the end of a parallel_for of threads is
  /// one.
  void (*stream)(float* to, const float* from, std::int64_t count);
  /// Null in builds for size. Rows wait in the queue, and are written while others are computed; then
  /// write_rows writes those that are left, which other threads see as they do those of `stream`.
  void (*stream_row)(RowQueue<T>&, const StreamedRow<T>&);
  void (*write_rows)(RowQueue<T>&);
};

/// The kernels for the instruction set of core/simd.h; T is float or double.
template <class T>
const Kernels<T>& kernels();

// One pair for each instruction set that the build knows.
namespace baseline {
extern const Kernels<float> kernels32;
extern const Kernels<double> kernels64;
}  // namespace baseline
namespace avx2 {
extern const Kernels<float> kernels32;
extern const Kernels<double> kernels64;
}  // namespace avx2
namespace avx512 {
extern const Kernels<float> kernels32;
extern const Kernels<double> kernels64;
}  // namespace avx512

}  // namespace tapedeck::micro
