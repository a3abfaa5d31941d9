// Vector registers of the instruction set that this is compiled for.

// TAPEDECK_MICRO_BYTES and TAPEDECK_MICRO_REGISTERS: width and number of the vector registers.
#if defined(__AVX512F__)
#define TAPEDECK_MICRO_BYTES 64
#define TAPEDECK_MICRO_REGISTERS 32
#elif defined(__AVX2__)
#define TAPEDECK_MICRO_BYTES 32
#define TAPEDECK_MICRO_REGISTERS 16
#elif defined(__aarch64__)
#define TAPEDECK_MICRO_BYTES 16
#define TAPEDECK_MICRO_REGISTERS 32
#else
#define TAPEDECK_MICRO_BYTES 16
#define TAPEDECK_MICRO_REGISTERS 16
#endif

// Loops over registers must be unrolled whole, or the registers become memory.
#define TAPEDECK_UNROLL _Pragma("GCC unroll 16")

template <class T, int Bytes = TAPEDECK_MICRO_BYTES>
struct VectorOf {
  typedef T type __attribute__((vector_size(Bytes)));
  typedef T unaligned __attribute__((vector_size(Bytes), aligned(sizeof(T)), may_alias));
};
template <class T>
using Vector = typename VectorOf<T>::type;

template <class T>
constexpr int kLanes = TAPEDECK_MICRO_BYTES / sizeof(T);

template <class T>
inline Vector<T> load(const T* from) {
  return *reinterpret_cast<const typename VectorOf<T>::unaligned*>(from);
}
template <class T>
inline void store(T* to, Vector<T> v) {
  *reinterpret_cast<typename VectorOf<T>::unaligned*>(to) = v;
}
#if defined(__AVX512F__)
inline __mmask16 first_lanes(std::int64_t n) {
  return static_cast<__mmask16>((1U << n) - 1);
}
inline Vector<float> load_first(const float* from, std::int64_t n) {
  return reinterpret_cast<Vector<float>>(_mm512_maskz_loadu_ps(first_lanes(n), from));
}
inline Vector<double> load_first(const double* from, std::int64_t n) {
  return reinterpret_cast<Vector<double>>(_mm512_maskz_loadu_pd(static_cast<__mmask8>(first_lanes(n)), from));
}
inline void store_first(float* to, Vector<float> v, std::int64_t n) {
  _mm512_mask_storeu_ps(to, first_lanes(n), reinterpret_cast<__m512>(v));
}
inline void store_first(double* to, Vector<double> v, std::int64_t n) {
  _mm512_mask_storeu_pd(to, static_cast<__mmask8>(first_lanes(n)), reinterpret_cast<__m512d>(v));
}
#elif defined(__AVX2__)
inline Vector<float> load_first(const float* from, std::int64_t n) {
  const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  return reinterpret_cast<Vector<float>>(
      _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane)));
}
inline Vector<double> load_first(const double* from, std::int64_t n) {
  const __m256i lane = _mm256_set_epi64x(3, 2, 1, 0);
  return reinterpret_cast<Vector<double>>(
      _mm256_maskload_pd(from, _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), lane)));
}
// Masked stores take many cycles on processors without AVX-512. n is less than the lanes.
inline void store_first(float* to, Vector<float> v, std::int64_t n) {
  const __m256 all = reinterpret_cast<__m256>(v);
  __m128 some = _mm256_castps256_ps128(all);
  if ((n & 4) != 0) {
    _mm_storeu_ps(to, some);
    to += 4;
    some = _mm256_extractf128_ps(all, 1);
  }
  if ((n & 2) != 0) {
    _mm_storel_pi(reinterpret_cast<__m64*>(to), some);
    to += 2;
    some = _mm_movehl_ps(some, some);
  }
  if ((n & 1) != 0) _mm_store_ss(to, some);
}
inline void store_first(double* to, Vector<double> v, std::int64_t n) {
  const __m256d all = reinterpret_cast<__m256d>(v);
  __m128d some = _mm256_castpd256_pd128(all);
  if ((n & 2) != 0) {
    _mm_storeu_pd(to, some);
    to += 2;
    some = _mm256_extractf128_pd(all, 1);
  }
  if ((n & 1) != 0) _mm_store_sd(to, some);
}
#else
template <class T>
inline Vector<T> load_first(const T* from, std::int64_t n) {
  T values[kLanes<T>] = {};
  for (std::int64_t i = 0; i < n; ++i) values[i] = from[i];
  return load(values);
}
template <class T>
inline void store_first(T* to, Vector<T> v, std::int64_t n) {
  T values[kLanes<T>];
  store(values, v);
  for (std::int64_t i = 0; i < n; ++i) to[i] = values[i];
}
#endif
/// The first n elements, 0 <= n <= kLanes<T>; the others are zeros and are not touched.
template <class T>
inline Vector<T> load(const T* from, std::int64_t n) {
  return n == kLanes<T> ? load(from) : load_first(from, n);
}
template <class T>
inline void store(T* to, Vector<T> v, std::int64_t n) {
  if (n == kLanes<T>) return store(to, v);
  store_first(to, v, n);
}
template <class T>
inline Vector<T> broadcast(T x) {
  return x - Vector<T>{};
}

/// Has v computed here: gcc 12 loads factors ahead of other steps and spills sums for them, and a sum that
/// waits in memory between two additions is late. Of 102 GFLOP/s of a core of Zen 3, tiles of 12 sums had 92
/// instead of 100, of 10 sums 78 instead of 99. Not where registers are 32, which suffice, and factors may
/// stay in memory; nor where there is no fused multiplication, which needs a register more. (Tiles are not
/// in line: in large functions gcc leaves their sums in memory altogether.)
template <class V>
[[gnu::always_inline]] inline void settle([[maybe_unused]] V& v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  __asm__ volatile("" : "+x"(v));
#endif
}

/// Rows of the largest tile of accumulators that fits the registers beside a panel row of V vectors.
template <int V>
constexpr int kTileRows = TAPEDECK_MICRO_REGISTERS == 32 ? (V == 4 ? 6 : 8)
                                                         : (V == 3   ? 4
                                                            : V == 2 ? 6
                                                                     : 8);
constexpr int kMaxVectors = TAPEDECK_MICRO_REGISTERS == 32 ? 4 : 3;

/// Calls f.template operator()<V>() for the V that equals v, 1 <= v <= Max.
template <int Max, class F>
inline void with_constant(std::int64_t v, F f) {
  if constexpr (Max == 1) {
    f.template operator()<1>();
  } else if (v == Max) {
    f.template operator()<Max>();
  } else {
    with_constant<Max - 1>(v, f);
  }
}

/// Calls f.template operator()<r>() for r < S.
template <int S, int r = 0, class F>
[[gnu::always_inline]] inline void for_each_constant(F f) {
  if constexpr (r < S) {
    f.template operator()<r>();
    for_each_constant<S, r + 1>(f);
  }
}

/// A step of a tile: sums[m][v] += factor(m) * vector(v), both vectors; the former is
/// factor.template operator()<m>().
template <class T, int M, int V, class Factor, class Load>
[[gnu::always_inline]] inline void add_products(Vector<T> (&sums)[M][V], Factor factor, Load vector) {
  Vector<T> b[V];
  TAPEDECK_UNROLL for (int v = 0; v < V; ++v) b[v] = vector(v);
  TAPEDECK_UNROLL for (int v = 0; v < V; ++v) settle(b[v]);
  for_each_constant<M>([&]<int m>() __attribute__((always_inline)) {
    Vector<T> x = factor.template operator()<m>();
    settle(x);
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[m][v] += x * b[v];
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) settle(sums[m][v]);
  });
}

/// Calls f.template operator()<M>(first) for tiles of M rows from `first` on that cover [0, rows); their
/// sizes differ by one at most, so that none is too small to keep the multipliers busy.
template <int MaxRows, class F>
inline void for_each_tile(std::int64_t rows, F f) {
  const std::int64_t tiles = (rows + MaxRows - 1) / MaxRows;
  const std::int64_t least = tiles == 0 ? 0 : rows / tiles, larger = rows - tiles * least;
  for (std::int64_t tile = 0, first = 0; tile < tiles; ++tile) {
    const std::int64_t size = least + (tile < larger ? 1 : 0);
    with_constant<MaxRows>(size, [&]<int M>() { f.template operator()<M>(first); });
    first += size;
  }
}

#if defined(__AVX2__)
/// Stores a vector past the caches, to where it is aligned.
template <class T>
inline void store_past_caches(T* to, Vector<T> v) {
#if defined(__AVX512F__)
  __asm__("vmovntps %1, %0" : "=m"(*reinterpret_cast<Vector<T>*>(to)) : "v"(v));
#else
  __asm__("vmovntps %1, %0" : "=m"(*reinterpret_cast<Vector<T>*>(to)) : "x"(v));
#endif
}
#endif

/// Takes the next `count` lines, or those that are left.
inline Ahead take_lines(Ahead& from, std::int64_t count) {
  Ahead taken = from;
  taken.count = count < from.count ? count : from.count;
  from.count -= taken.count;
  from.skipped += taken.count;
  while (from.count > 0 && from.skipped >= from.lines->count) from.skipped -= (from.lines++)->count;
  return taken;
}

/// Asks for what an Ahead says, in so many equal spells; between them are kSpell steps of a loop.
class Asking {
 public:
  Asking(const Ahead& ahead, std::int64_t spells)
      : lines_(ahead.lines),
        at_(ahead.count > 0 ? ahead.lines->first + ahead.skipped * kLine : nullptr),
        of_these_(ahead.count > 0 ? ahead.lines->count - ahead.skipped : 0),
        left_(spells == 0 ? 0 : ahead.count),
        each_(spells == 0 ? 0 : (ahead.count + spells - 1) / spells) {}
  [[gnu::always_inline]] void spell() {
    if (left_ > 0) ask();
  }

 private:
  static constexpr std::int64_t kLine = 64;

  [[gnu::always_inline]] void ask() {
    std::int64_t some = left_ < each_ ? left_ : each_;
    left_ -= some;
    for (; some > 0; --some, --of_these_, at_ += kLine) {
      if (of_these_ == 0) {
        at_ = (++lines_)->first;
        of_these_ = lines_->count;
      }
      __builtin_prefetch(at_, 0, 2);
    }
  }

  const Lines* lines_;
  const char* at_;
  std::int64_t of_these_, left_, each_;
};
constexpr std::int64_t kSpell = 8;
/// Steps of a loop over products that are written out: what a loop adds to a step, six instructions and more, is
/// time where a processor takes four at once. (On a Cascade Lake, two steps of tiles of 2 vectors 1.12 and of 4
/// vectors 1.06 times as fast as one, four steps no faster.)
#if defined(__AVX2__) && !defined(TAPEDECK_SMALL)
constexpr int kStepsAtOnce = TAPEDECK_MICRO_REGISTERS == 32 ? 2 : 4;
#else
constexpr int kStepsAtOnce = 1;
#endif
inline std::int64_t spells(std::int64_t steps) {
  return (steps + kSpell - 1) / kSpell;
}
