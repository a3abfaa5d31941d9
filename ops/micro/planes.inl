// Planes (nchw): the lanes of vectors are pixels that follow each other. Vectors may begin anywhere, so that
// a tap is an offset and nothing is gathered.

/// Vectors of a tile of M rows: M x V accumulators beside V vectors of pixels and one factor.
template <int M>
constexpr int kPlaneVectors = (TAPEDECK_MICRO_REGISTERS - 1) / (M + 1) < 8
                                  ? (TAPEDECK_MICRO_REGISTERS - 1) / (M + 1)
                                  : 8;
constexpr int kPlaneRows = TAPEDECK_MICRO_REGISTERS == 32 ? 8 : 4;

/// Adds the products of all taps to a tile of pixels from b on; `a` moves on.
template <class T, int M, int V>
[[gnu::always_inline]] inline void add_taps(const Correlation<T>& t, const T*& a, const T* b,
                                            Vector<T> (&sums)[M][V], Asking& asking) {
  constexpr int L = kLanes<T>;
  for (const std::int64_t *offset = t.offsets, *end = offset + t.depth; offset != end;) {
    asking.spell();
    for (const std::int64_t* stop = end - offset < kSpell ? end : offset + kSpell; offset != stop;
         ++offset, a += M) {
      const T* row = b + *offset;
      add_products<T>(
          sums, [&]<int m>() __attribute__((always_inline)) { return broadcast(a[m]); },
          [&](int v) __attribute__((always_inline)) { return load(row + v * L); });
    }
  }
}

/// `first`: the pixel that the tile begins at, and `count` what is left of its run there.
template <class T, int M, int V>
[[gnu::noinline]] void correlate_tile(const Correlation<T>& t, std::int64_t first, std::int64_t count,
                                      Asking& asking) {
  constexpr int L = kLanes<T>;
  Vector<T> sums[M][V];
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    const Vector<T> start = t.start != nullptr ? broadcast(t.start[m]) : Vector<T>{};
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[m][v] = start;
  }
  const T* a = t.a;
  add_taps(t, a, t.b + first, sums, asking);
  const std::int64_t last = count - (V - 1) * L;  // elements of the last vector
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    T* c = t.c + m * t.c_step + first;
    TAPEDECK_UNROLL for (int v = 0; v < V - 1; ++v) store(c + v * L, sums[m][v]);
    store(c + (V - 1) * L, sums[m][V - 1], last < L ? last : L);
  }
}

template <class T>
void correlate(const Correlation<T>& t) {
  constexpr int L = kLanes<T>;
  with_constant<kPlaneRows>(t.rows, [&]<int M>() {
    const std::int64_t vectors = (t.count + L - 1) / L;
    Asking asking(t.ahead, t.runs * ((vectors + kPlaneVectors<M> - 1) / kPlaneVectors<M> * spells(t.depth)));
    for (std::int64_t run = 0; run < t.runs; ++run) {
      for_each_tile<kPlaneVectors<M>>(vectors, [&]<int V>(std::int64_t first) {
        correlate_tile<T, M, V>(t, run * t.pitch + first * L, t.count - first * L, asking);
      });
    }
  });
}

#if !defined(TAPEDECK_SMALL)
template <class T>
void pair_rows(const T* const* rows, T* to, std::int64_t count, std::int64_t pitch) {
  constexpr int L = kLanes<T>;
  const auto make = [&](std::int64_t i, std::int64_t n) {
    Vector<T> x[4];
    TAPEDECK_UNROLL for (int k = 0; k < 4; ++k) x[k] = load(rows[k] + i, n);
    const Vector<T> parts[4] = {x[1] + x[2], x[2] - x[1], x[0] - x[2], x[1] - x[3]};
    TAPEDECK_UNROLL for (int k = 0; k < 4; ++k) store(to + k * pitch + i, parts[k], n);
  };
  std::int64_t i = 0;
  for (; i + L <= count; i += L) make(i, L);
  if (i < count) make(i, count - i);
}

/// Tiles of two rows of results: of the first one in t.c, of the second one in `second`. Both begin with the
/// products of the first two parts. (Not in line: in one function with all other sizes of tiles asking became
/// calls, around which all sums were spilled.)
template <class T, int M, int V>
[[gnu::noinline]] void pair_tile(const Correlation<T>& t, T* second, std::int64_t first, Asking& asking) {
  constexpr int L = kLanes<T>;
  Vector<T> sums[M][V] = {}, others[M][V];
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    const Vector<T> start = t.start != nullptr ? broadcast(t.start[m]) : Vector<T>{};
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) others[m][v] = start;
  }
  const T* a = t.a;
  for (int part = 0; part < 4; ++part) {
    add_taps(t, a, t.b + part * t.pitch + first, sums, asking);
    T* const to = (part == 3 ? second : t.c) + first;
    TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
      TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
        const Vector<T> x = sums[m][v];
        if (part == 0) {
          others[m][v] += x;
          sums[m][v] = Vector<T>{};
        } else if (part == 1) {
          sums[m][v] = others[m][v] + x;
          others[m][v] -= x;
        } else {
          store(to + m * t.c_step + v * L, x);
          sums[m][v] = others[m][v];
        }
      }
    }
  }
}
#endif

/// Rows and columns of a tile of sums along pixels: M x J accumulators beside M vectors and one more.
#if defined(TAPEDECK_SMALL) && !defined(__AVX2__)  // a build for size: few CPUs run this
constexpr int kSumRows = 2;
#else
constexpr int kSumRows = TAPEDECK_MICRO_REGISTERS == 32 ? 4 : 3;
#endif
template <int M>
constexpr int kSumColumns = (TAPEDECK_MICRO_REGISTERS - 1) / M - 1 < 12
                                ? (TAPEDECK_MICRO_REGISTERS - 1) / M - 1
                                : 12;

template <class T, int M, int J>
[[gnu::noinline]] void pixel_sums_tile(const PixelSums<T>& t, std::int64_t row, std::int64_t column,
                                       Asking& asking) {
  constexpr int L = kLanes<T>, kGroups = (M * J + L - 1) / L;
  const T* a = t.a + row * t.a_step;
  const T* b[J];
  TAPEDECK_UNROLL for (int j = 0; j < J; ++j) b[j] = t.b + t.offsets[column + j];
  Vector<T> sums[J][M] = {};
  for (std::int64_t image = 0; image < t.images; ++image, a += t.a_image) {
    const auto add = [&](std::int64_t p, std::int64_t n) __attribute__((always_inline)) {
      add_products<T>(
          sums, [&]<int j>() __attribute__((always_inline)) { return load(b[j] + p, n); },
          [&](int m) __attribute__((always_inline)) { return load(a + m * t.a_step + p, n); });
    };
    for (std::int64_t run = 0; run < t.runs; ++run) {
      std::int64_t p = run * t.pitch;
      const std::int64_t end = p + t.count;
      for (const std::int64_t whole = p + t.count / L * L; p < whole;) {
        asking.spell();
        for (const std::int64_t stop = whole - p < kSpell * L ? whole : p + kSpell * L; p < stop; p += L) {
          add(p, L);
        }
      }
      if (p < end) add(p, end - p);
    }
    TAPEDECK_UNROLL for (int j = 0; j < J; ++j) b[j] += t.b_image;
  }
  T results[kGroups * L];
  TAPEDECK_UNROLL for (int group = 0; group < kGroups; ++group) {
    Vector<T> some[L];
    TAPEDECK_UNROLL for (int i = 0; i < L; ++i) {
      const int at = group * L + i;
      some[i] = at < M * J ? sums[at / M % J][at % M] : Vector<T>{};  // % J: what is not read must exist
    }
    store(results + group * L, sum_lanes<T>(some));
  }
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    for (int j = 0; j < J; ++j) t.c[(row + m) * t.c_step + column + j] += results[j * M + m];
  }
}

template <class T>
void pixel_sums(const PixelSums<T>& t) {
  const std::int64_t steps = t.images * t.runs * spells(t.count / kLanes<T>);
  Ahead ahead = t.ahead;
  for_each_tile<kSumRows>(t.rows, [&]<int M>(std::int64_t row) {
    const std::int64_t asked = t.ahead.count * row / t.rows, until = t.ahead.count * (row + M) / t.rows;
    Asking asking(take_lines(ahead, until - asked),
                  steps * ((t.columns + kSumColumns<M> - 1) / kSumColumns<M>));
    for_each_tile<kSumColumns<M>>(
        t.columns, [&]<int J>(std::int64_t column) { pixel_sums_tile<T, M, J>(t, row, column, asking); });
  });
}
