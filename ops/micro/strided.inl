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
    const Vector<T> phase = merge<L, WantedOfSplit<L, S, r>>(x, x[0]);
    whole ? store(out + t.offsets[r] + i, phase) : store(out + t.offsets[r] + i, phase, part<T>(t.count, i));
  });
}

template <class T, int S>
void split_row(const Strided<T>& t, const T* in, T* out) {
  std::int64_t i = 0;
  for (; i + kLanes<T> <= t.count; i += kLanes<T>) split_vectors<T, S, true>(t, in, out, i);
  if (i < t.count) split_vectors<T, S, false>(t, in, out, i);
}

/// Lane l of vector v of what is joined: of phase r if it belongs to that, else as it is.
template <int L, int S, int v, int r>
struct MergePhase {
  static constexpr int at(int l) { return (v * L + l) % S == r ? L + (v * L + l) / S : l; }
};

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
      const Vector<T> x = phase(r);
      for_each_constant<S>([&]<int v>() { joined[v] = permute<MergePhase<L, S, v, r>>(joined[v], x); });
    });
  } else {
    Vector<T> x[S];
    TAPEDECK_UNROLL for (int r = 0; r < S; ++r) x[r] = phase(r);
    for_each_constant<S>([&]<int v>() { joined[v] = merge<L, WantedOfJoin<L, S, v>>(x, x[0]); });
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
