// Every step-th element of a row: a row is split into phases, and joined from them. A vector of results draws
// from `step` vectors, which are merged one after the other by constant permutations.

/// Lane l of the result is lane Index::at(l) of a and b, those of b counted from kLanes on.
template <class Index, class V>
inline V permute(V a, V b) {
  constexpr auto i = [](int l) { return Index::at(l); };
  if constexpr (sizeof(V) / sizeof(a[0]) == 16) {
    return __builtin_shufflevector(a, b, i(0), i(1), i(2), i(3), i(4), i(5), i(6), i(7), i(8), i(9), i(10),
                                   i(11), i(12), i(13), i(14), i(15));
  } else if constexpr (sizeof(V) / sizeof(a[0]) == 8) {
    return __builtin_shufflevector(a, b, i(0), i(1), i(2), i(3), i(4), i(5), i(6), i(7));
  } else if constexpr (sizeof(V) / sizeof(a[0]) == 4) {
    return __builtin_shufflevector(a, b, i(0), i(1), i(2), i(3));
  } else {
    return __builtin_shufflevector(a, b, i(0), i(1));
  }
}

/// Merges vector v into what vectors 0 to v - 1 gave: lane l wants lane `lane` of vector `source`.
template <int L, int v, class Wanted>
struct Merge {
  static constexpr int at(int l) {
    const int source = Wanted::source(l), lane = Wanted::lane(l);
    if (source == v) return L + lane;
    return v == 1 && source == 0 ? lane : l;
  }
};
template <int L, class Wanted, int v = 1, int S, class V>
inline V merge(const V (&x)[S], V merged) {
  if constexpr (v < S) {
    return merge<L, Wanted, v + 1>(x, permute<Merge<L, v, Wanted>>(merged, x[v]));
  } else {
    return merged;
  }
}

template <int L, int S, int r>
struct WantedOfSplit {
  static constexpr int source(int l) { return (l * S + r) / L; }
  static constexpr int lane(int l) { return (l * S + r) % L; }
};
template <int L, int S, int v>
struct WantedOfJoin {
  static constexpr int source(int l) { return (v * L + l) % S; }
  static constexpr int lane(int l) { return (v * L + l) / S; }
};
/// Lane l of vector v of what is joined: of phase r if it belongs to that, else as it is.
template <int L, int S, int v, int r>
struct MergePhase {
  static constexpr int at(int l) { return (v * L + l) % S == r ? L + (v * L + l) / S : l; }
};

// Without permutations of two registers, one costs three instructions, a selection by lanes one. At odd steps
// the elements of a phase lie in lanes of their own, all of them: so a phase is selected, then permuted.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr bool kSelectsLanes = true;
#else
constexpr bool kSelectsLanes = false;
#endif
template <int S>
constexpr bool kSelects = kSelectsLanes && S % 2 == 1 && S > 1;
/// Lanes of vector v where its element is of phase r, others as they are.
template <int L, int S, int v, int r>
struct SelectPhase {
  static constexpr int at(int l) { return (v * L + l) % S == r ? L + l : l; }
};
/// Elements of phase r to the lanes where they lie in a row, and back.
template <int L, int S, int r>
struct ToLanesOfRow {
  static constexpr int at(int l) {
    int m = 0;
    while ((m * S + r) % L != l) ++m;
    return m;
  }
};
template <int L, int S, int r>
struct FromLanesOfRow {
  static constexpr int at(int l) { return (l * S + r) % L; }
};

/// Phase r of S vectors of a row.
template <class T, int S, int r>
[[gnu::always_inline]] inline Vector<T> phase_of(const Vector<T> (&x)[S]) {
  constexpr int L = kLanes<T>;
  if constexpr (kSelects<S>) {
    Vector<T> phase = x[0];
    for_each_constant<S>([&]<int v>() {
      if constexpr (v > 0) phase = permute<SelectPhase<L, S, v, r>>(phase, x[v]);
    });
    return permute<FromLanesOfRow<L, S, r>>(phase, phase);
  } else if constexpr (kSelectsLanes && S == 4 && L == 8) {  // twice every second element, within halves of registers
    constexpr int k = r % 2, n = r / 2;
    const Vector<T> a = __builtin_shufflevector(x[0], x[1], k, k + 2, k + 8, k + 10, k + 4, k + 6, k + 12,
                                                k + 14),
                    b = __builtin_shufflevector(x[2], x[3], k, k + 2, k + 8, k + 10, k + 4, k + 6, k + 12,
                                                k + 14),
                    c = __builtin_shufflevector(a, b, n, n + 2, n + 8, n + 10, n + 4, n + 6, n + 12, n + 14);
    return __builtin_shufflevector(c, c, 0, 4, 1, 5, 2, 6, 3, 7);
  } else {
    return merge<L, WantedOfSplit<L, S, r>>(x, x[0]);
  }
}

/// Puts phase r into S vectors of a row.
template <class T, int S, int r>
[[gnu::always_inline]] inline void put_phase(Vector<T> (&row)[S], Vector<T> phase) {
  constexpr int L = kLanes<T>;
  if constexpr (kSelects<S>) {
    const Vector<T> in_lanes = permute<ToLanesOfRow<L, S, r>>(phase, phase);
    for_each_constant<S>([&]<int v>() { row[v] = permute<SelectPhase<L, S, v, r>>(row[v], in_lanes); });
  } else {
    for_each_constant<S>([&]<int v>() { row[v] = permute<MergePhase<L, S, v, r>>(row[v], phase); });
  }
}

/// S vectors of a row of all phases.
template <class T, int S>
[[gnu::always_inline]] inline void join_phases(const Vector<T> (&x)[S], Vector<T> (&row)[S]) {
  constexpr int L = kLanes<T>;
  if constexpr (kSelects<S>) {
    TAPEDECK_UNROLL for (int v = 0; v < S; ++v) row[v] = x[0];
    for_each_constant<S>([&]<int r>() { put_phase<T, S, r>(row, x[r]); });
  } else if constexpr (kSelectsLanes && S == 4 && L == 8) {  // the way back of phase_of()
    Vector<T> y[S];
    TAPEDECK_UNROLL for (int r = 0; r < S; ++r) y[r] =
        __builtin_shufflevector(x[r], x[r], 0, 2, 4, 6, 1, 3, 5, 7);
    const Vector<T> a = __builtin_shufflevector(y[0], y[1], 0, 8, 1, 9, 4, 12, 5, 13),
                    b = __builtin_shufflevector(y[2], y[3], 0, 8, 1, 9, 4, 12, 5, 13),
                    c = __builtin_shufflevector(y[0], y[1], 2, 10, 3, 11, 6, 14, 7, 15),
                    d = __builtin_shufflevector(y[2], y[3], 2, 10, 3, 11, 6, 14, 7, 15);
    row[0] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
    row[1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    row[2] = __builtin_shufflevector(c, d, 0, 1, 8, 9, 4, 5, 12, 13);
    row[3] = __builtin_shufflevector(c, d, 2, 3, 10, 11, 6, 7, 14, 15);
  } else {
    for_each_constant<S>([&]<int v>() { row[v] = merge<L, WantedOfJoin<L, S, v>>(x, x[0]); });
  }
}

constexpr int kMaxStep = 5;

/// How many of n elements a vector that begins at `first` has.
template <class T>
inline std::int64_t part(std::int64_t n, std::int64_t first) {
  return n - first < 0 ? 0 : n - first < kLanes<T> ? n - first : kLanes<T>;
}

/// Elements i to i + kLanes<T> of each phase of a row, of which all are there if `whole`.
template <class T, int S, bool whole>
inline void split_vectors(const Strided<T>& t, const T* in, T* out, std::int64_t i) {
  constexpr int L = kLanes<T>;
  Vector<T> x[S];
  TAPEDECK_UNROLL for (int v = 0; v < S; ++v) {
    x[v] = whole ? load(in + i * S + v * L) : load(in + i * S + v * L, part<T>(t.count * S, i * S + v * L));
  }
  for_each_constant<S>([&]<int r>() {
    if (t.offsets[r] < 0) return;
    const Vector<T> phase = phase_of<T, S, r>(x);
    whole ? store(out + t.offsets[r] + i, phase) : store(out + t.offsets[r] + i, phase, part<T>(t.count, i));
  });
}

template <class T, int S>
void split_row(const Strided<T>& t, const T* in, T* out) {
  std::int64_t i = 0;
  for (; i + kLanes<T> <= t.count; i += kLanes<T>) split_vectors<T, S, true>(t, in, out, i);
  if (i < t.count) split_vectors<T, S, false>(t, in, out, i);
}

/// `gaps`: whether there are phases without elements.
template <class T, int S, bool whole, bool gaps>
inline void join_vectors(const Strided<T>& t, const T* in, T* out, std::int64_t i) {
  constexpr int L = kLanes<T>;
  const auto phase = [&](int r) {
    const T* from = in + t.offsets[r] + i;
    return whole ? load(from) : load(from, part<T>(t.count, i));
  };
  Vector<T> joined[S];
  if constexpr (gaps) {
    TAPEDECK_UNROLL for (int v = 0; v < S; ++v) joined[v] = broadcast(t.start);
    for_each_constant<S>([&]<int r>() {
      if (t.offsets[r] < 0) return;
      put_phase<T, S, r>(joined, phase(r));
    });
  } else {
    Vector<T> x[S];
    TAPEDECK_UNROLL for (int r = 0; r < S; ++r) x[r] = phase(r);
    join_phases<T, S>(x, joined);
  }
  TAPEDECK_UNROLL for (int v = 0; v < S; ++v) {
    T* to = out + i * S + v * L;
    whole ? store(to, joined[v]) : store(to, joined[v], part<T>(t.count * S, i * S + v * L));
  }
}

template <class T, int S, bool gaps>
void join_row(const Strided<T>& t, const T* in, T* out) {
  std::int64_t i = 0;
  for (; i + kLanes<T> <= t.count; i += kLanes<T>) join_vectors<T, S, true, gaps>(t, in, out, i);
  if (i < t.count) join_vectors<T, S, false, gaps>(t, in, out, i);
}

template <class T>
void split(const Strided<T>& t) {
  if (t.step == 1 && t.rows > 1 && t.in_row == t.count && t.out_row == t.count) {  // one long row
    return split(Strided<T>{t.in, t.out, t.offsets, 1, t.rows * t.count});
  }
  if (t.step <= kMaxStep) {
    return with_constant<kMaxStep>(t.step, [&]<int S>() {
      for (std::int64_t row = 0; row < t.rows; ++row) {
        split_row<T, S>(t, t.in + row * t.in_row, t.out + row * t.out_row);
      }
    });
  }
  for (std::int64_t row = 0; row < t.rows; ++row) {
    for (std::int64_t r = 0; r < t.step; ++r) {
      if (t.offsets[r] < 0) continue;
      const T* in = t.in + row * t.in_row + r;
      T* out = t.out + row * t.out_row + t.offsets[r];
      for (std::int64_t i = 0; i < t.count; ++i) out[i] = in[i * t.step];
    }
  }
}

template <class T>
void join(const Strided<T>& t) {
  if (t.step <= kMaxStep) {
    bool gaps = false;
    for (std::int64_t r = 0; r < t.step; ++r) gaps = gaps || t.offsets[r] < 0;
    return with_constant<kMaxStep>(t.step, [&]<int S>() {
      for (std::int64_t row = 0; row < t.rows; ++row) {
        const T* in = t.in + row * t.in_row;
        T* out = t.out + row * t.out_row;
        gaps ? join_row<T, S, true>(t, in, out) : join_row<T, S, false>(t, in, out);
      }
    });
  }
  for (std::int64_t row = 0; row < t.rows; ++row) {
    for (std::int64_t r = 0; r < t.step; ++r) {
      const std::int64_t at = t.offsets[r];
      const T* in = t.in + row * t.in_row + at;
      T* out = t.out + row * t.out_row + r;
      for (std::int64_t i = 0; i < t.count; ++i) out[i * t.step] = at < 0 ? t.start : in[i];
    }
  }
}

template <class T>
inline Vector<T> rectified(Vector<T> u, T negative_slope) {
  const Vector<T> below = negative_slope == 0 ? Vector<T>{} : u * negative_slope;
  return u <= 0 ? below : u;
}

template <class T>
void rectify(const Rectification<T>& t) {
  for (std::int64_t row = 0; row < t.rows; ++row) {
    T* const x = t.x + row * t.step;
    for (std::int64_t i = 0; i < t.columns; i += kLanes<T>) {
      const std::int64_t n = part<T>(t.columns, i);
      store(x + i, rectified(load(x + i, n), t.negative_slope), n);
    }
  }
}
