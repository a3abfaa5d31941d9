// Rows of one channel at stride 2 along w: tap k of a row of the kernel takes element m of x to element
// 2m + at + k of y. Vectors of y are split or joined in registers. With AVX-512 what lies a few elements
// further is shifted in from the vectors beside them, so that nothing is loaded twice and rows that are
// aligned are loaded so; with AVX2, which has few registers and no permutations of two, it is loaded again,
// unaligned, from the nearest cache. For float, and few taps; others, and builds for size, go by planes.
#if defined(__AVX2__) && !defined(TAPEDECK_SMALL)
#define TAPEDECK_MICRO_PAIRS

/// Tap k of those that begin at `At`: it meets element 2(m + kHalf) + kPhase of y.
template <int At, int k>
struct PairTap {
  static constexpr int kPhase = (At + k) & 1, kHalf = (At + k - kPhase) / 2;
};

/// Elements m + Shift: of this vector and the next, or else of the one before and this.
template <int L, int Shift>
struct Shifted {
  static constexpr int at(int l) { return l + Shift + (Shift < 0 ? L : 0); }
};
constexpr std::int64_t kLineOfFloats = 16;

/// Asks the second cache for V vectors that later calls read: processors foresee badly what is read in
/// columns of some vectors, and nothing beyond a page. (Without asking for the lines that it writes, an input
/// gradient in columns was slower than in rows.)
template <int V>
inline void ask_for(const float* later) {
  TAPEDECK_UNROLL for (int i = 0; i < V * kLanes<float>; i += kLineOfFloats)
      __builtin_prefetch(later + i, 0, 2);
}

/// Copies past the caches, from a whole line of the target on.
inline void stream(float* to, const float* from, std::int64_t count) {
  constexpr std::int64_t L = kLanes<float>;
  std::int64_t i = 0;
  for (; i < count && reinterpret_cast<std::uintptr_t>(to + i) % 64 != 0; ++i) to[i] = from[i];
  for (; i + L <= count; i += L) store_past_caches(to + i, load(from + i));
  for (; i < count; ++i) to[i] = from[i];
}

template <int Taps, int At, int V>
[[gnu::always_inline]] inline void spread_tile(const PairTask& t, const float* x, float* y, std::int64_t m) {
  constexpr int L = kLanes<float>;
  Vector<float> sums[V][2];
  TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[v][0] = sums[v][1] = broadcast(t.start);
  const float *from = x + m - L, *weights = t.weights;
  for (std::int64_t i = 0; i < t.tap_rows; ++i, from += t.tap_row, weights += t.weight_row) {
    Vector<float> raw[V + 2];
    TAPEDECK_UNROLL for (int v = 0; v < V + 2; ++v) raw[v] = load(from + v * L);
    for_each_constant<Taps>([&]<int k>() {
      constexpr int kShift = -PairTap<At, k>::kHalf;
      const Vector<float> w = broadcast(weights[k]);
      TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
        const int first = kShift < 0 ? v : v + 1;
        sums[v][PairTap<At, k>::kPhase] +=
            w * (kShift == 0                      ? raw[v + 1]
                 : TAPEDECK_MICRO_REGISTERS == 32 ? permute<Shifted<L, kShift>>(raw[first], raw[first + 1])
                                                  : load(from + (v + 1) * L + kShift));
      }
    });
  }
  Vector<float> joined[2 * V];
  TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
    Vector<float> pair[2];
    join_phases<float, 2>(sums[v], pair);
    joined[2 * v] = pair[0];
    joined[2 * v + 1] = pair[1];
  }
  if (t.negative_slope != 1) {
    TAPEDECK_UNROLL for (Vector<float>& u : joined) u = rectified(u, t.negative_slope);
  }
  y += 2 * m;
  const std::int64_t left = t.width - 2 * m;
  if (t.past_caches && left >= 2 * V * L) {
    TAPEDECK_UNROLL for (int i = 0; i < 2 * V; ++i) store_past_caches(y + i * L, joined[i]);
  } else if (left >= 2 * V * L) {
    TAPEDECK_UNROLL for (int i = 0; i < 2 * V; ++i) store(y + i * L, joined[i]);
  } else {
    TAPEDECK_UNROLL for (int i = 0; i < 2 * V; ++i) {
      if (t.past_caches) {
        if (i * L < left) store_past_caches(y + i * L, joined[i]);
      } else {
        store(y + i * L, joined[i], part<float>(left, i * L));
      }
    }
  }
}

/// Of pixels of x, so that sums and what they meet fit the registers.
constexpr int kSpreadVectors = TAPEDECK_MICRO_REGISTERS == 32 ? 2 : 4;

template <int Taps, int At>
void spread_pairs(const PairTask& t) {
  constexpr std::int64_t L = kLanes<float>;
  constexpr int V = kSpreadVectors;
  const std::int64_t vectors = (t.width + 2 * L - 1) / (2 * L);
  const float* x = t.from;
  float* y = t.to;
  const float* ahead = t.ahead;
  const std::int64_t asked = t.rows > 0 ? (t.ahead_count + t.rows - 1) / t.rows : 0;  // of a row
  for (std::int64_t i = 0; i < t.rows; ++i, x += t.from_row, y += t.to_row) {
    for (const float* const until = ahead + asked; ahead < until; ahead += kLineOfFloats)
      __builtin_prefetch(ahead, 0, 2);
    std::int64_t m = 0, left = vectors;
    for (; left >= V; left -= V, m += V * L) spread_tile<Taps, At, V>(t, x, y, m);
    if (left > 0) with_constant<V - 1>(left, [&]<int Rest>() { spread_tile<Taps, At, Rest>(t, x, y, m); });
  }
}

#if defined(__AVX512F__)
/// Elements m + Half of a phase: of the vector of the phase, and of the pairs beside it.
template <int L, int Half, int Phase>
struct ShiftedPairs {
  static constexpr int at(int l) {
    const int m = l + Half;
    return m < 0 ? 2 * L + 2 * m + Phase : m < L ? m : L + 2 * (m - L) + Phase;
  }
};

/// The vectors of rows of y that V vectors of x from m on meet, and their neighbours.
template <int V>
struct PairsOfRow {
  static constexpr int L = kLanes<float>;
  std::uint16_t lanes[2 * V + 2];  // that are in the row
  Vector<float> raw[2 * V + 2], halves[V][2];

  PairsOfRow(const PairTask& t, std::int64_t m) {
    TAPEDECK_UNROLL for (int i = 0; i < 2 * V + 2; ++i) {
      const std::int64_t first = 2 * m + (i - 1) * L;
      const std::uint32_t outside = (1U << part<float>(0, first)) - 1;
      lanes[i] = static_cast<std::uint16_t>(((1U << part<float>(t.width, first)) - 1) & ~outside);
    }
  }
  /// Of a row whose element 2m is at `from`.
  void set_row(const float* from) {
    TAPEDECK_UNROLL for (int i = 0; i < 2 * V + 2; ++i) {
      raw[i] = reinterpret_cast<Vector<float>>(_mm512_maskz_loadu_ps(lanes[i], from + (i - 1) * L));
    }
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
      const Vector<float> pair[2] = {raw[2 * v + 1], raw[2 * v + 2]};
      halves[v][0] = phase_of<float, 2, 0>(pair);
      halves[v][1] = phase_of<float, 2, 1>(pair);
    }
  }
  /// What tap k meets.
  template <int At, int k, bool>
  Vector<float> of_tap(int v) const {
    using Tap = PairTap<At, k>;
    if constexpr (Tap::kHalf == 0) return halves[v][Tap::kPhase];
    return permute<ShiftedPairs<L, Tap::kHalf, Tap::kPhase>>(halves[v][Tap::kPhase],
                                                             raw[Tap::kHalf < 0 ? 2 * v : 2 * v + 3]);
  }
  /// To elements of x, and from them.
  static Vector<float> in_order(Vector<float> x) { return x; }

  /// Whether all that of_tap() loads is in the row, as far as it must know.
  template <int Taps, int At>
  static bool is_inside(const PairTask&, std::int64_t) {
    return true;
  }
};
#else
/// The elements of a row of y that V vectors of x meet, loaded for two taps at a time where these begin, and
/// split within the halves of registers: lanes are elements 0, 1, 4, 5, 2, 3, 6 and 7 of x.
template <int V>
struct PairsOfRow {
  static constexpr int L = kLanes<float>;
  const float* from = nullptr;
  const std::int64_t first, width;  // element `first` is at `from`

  PairsOfRow(const PairTask& t, std::int64_t m) : first(2 * m), width(t.width) {}
  void set_row(const float* row) { from = row; }
  template <int At, int k, bool kInside>
  Vector<float> of_tap(int v) const {
    const std::int64_t at = At + k - k % 2 + 2 * v * L;
    const Vector<float> a = load_row<kInside>(at), b = load_row<kInside>(at + L);
    if constexpr (k % 2 == 0) return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14);
    return __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
  }
  static Vector<float> in_order(Vector<float> x) {
    return __builtin_shufflevector(x, x, 0, 1, 4, 5, 2, 3, 6, 7);
  }
  template <int Taps, int At>
  static bool is_inside(const PairTask& t, std::int64_t m) {
    constexpr int kLast = Taps - 1 - (Taps - 1) % 2;
    return 2 * m + At >= 0 && 2 * (m + V * L) + At + kLast <= t.width;
  }

 private:
  template <bool kInside>
  Vector<float> load_row(std::int64_t at) const {
    if constexpr (kInside) return load(from + at);
    const __m256i element = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first + at)),
                                             _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0)),
                  before_end = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(width)), element);
    return reinterpret_cast<Vector<float>>(
        _mm256_maskload_ps(from + at, _mm256_andnot_si256(_mm256_srai_epi32(element, 31), before_end)));
  }
};
#endif

/// V vectors of Rows rows of x, whose rows of y begin `step` rows of taps apart.
template <int Taps, int At, int V, int Rows, bool kInside>
[[gnu::always_inline]] inline void gather_tile(const PairTask& t, const float* y, float* x, std::int64_t step,
                                               PairsOfRow<V>& pairs, std::int64_t last) {
  constexpr int L = kLanes<float>;
  Vector<float> sums[Rows][V][2] = {};  // of each phase, so that fewer additions wait for each other
  TAPEDECK_UNROLL for (int r = 0; r < Rows; ++r) {
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[r][v][0] = broadcast(t.start);
  }
  const float* weights = t.weights;
  std::int64_t left = t.tap_rows + (Rows - 1) * step;
  const auto add = [&]<int First, int Last>(std::int64_t rows) __attribute__((always_inline)) {
    for (; rows > 0; --rows, --left, y += t.tap_row, weights += t.weight_row) {
      pairs.set_row(y);
      if (left <= Rows * step) ask_for<2 * V>(y + t.next);  // rows that results before these have not read
      for_each_constant<Taps>([&]<int k>() {
        TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
          const Vector<float> of_tap = pairs.template of_tap<At, k, kInside>(v);
          TAPEDECK_UNROLL for (int r = First; r <= Last; ++r) {
            sums[r][v][k % 2] += broadcast(weights[k - r * step * t.weight_row]) * of_tap;
          }
        }
      });
    }
  };
  if constexpr (Rows == 1) {
    add.template operator()<0, 0>(t.tap_rows);
  } else {
    static_assert(Rows == 2);
    add.template operator()<0, 0>(step);
    add.template operator()<0, 1>(t.tap_rows - step);
    add.template operator()<1, 1>(step);
  }
  TAPEDECK_UNROLL for (int r = 0; r < Rows; ++r) {
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) __builtin_prefetch(x + r * t.to_row + v * L + t.x_next, 1, 2);
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
      Vector<float> sum = PairsOfRow<V>::in_order(sums[r][v][0] + sums[r][v][1]);
      if (t.negative_slope != 1) sum = rectified(sum, t.negative_slope);
      float* const to = x + r * t.to_row + v * L;
      v == V - 1 ? store(to, sum, last) : store(to, sum);
    }
  }
}

/// Rows of x that are summed at once where they share rows of y, so that these are split once.
constexpr int kGatherRows = TAPEDECK_MICRO_REGISTERS == 32 ? 2 : 1;

/// V vectors from m on of `rows` rows from row i on.
template <int Taps, int At, int V, bool kInside>
[[gnu::always_inline]] inline void gather_columns(const PairTask& t, std::int64_t i, std::int64_t rows,
                                                  std::int64_t m) {
  PairsOfRow<V> pairs(t, m);
  const bool shares = t.from_row % t.tap_row == 0 && t.from_row < t.tap_rows * t.tap_row;
  const std::int64_t last = part<float>(t.count, m + (V - 1) * kLanes<float>),
                     step = shares ? t.from_row / t.tap_row : t.tap_rows;
  const float* y = t.from + i * t.from_row + 2 * m;
  float* x = t.to + i * t.to_row + m;
  const auto gather = [&]<int Rows>() __attribute__((always_inline)) {
    for (; rows >= Rows; rows -= Rows, y += Rows * t.from_row, x += Rows * t.to_row)
      gather_tile<Taps, At, V, Rows, kInside>(t, y, x, step, pairs, last);
  };
  if (shares) gather.template operator()<kGatherRows>();
  gather.template operator()<1>();
}

/// Calls f.template operator()<V, kInside>(m) for columns of V vectors of a row from m on. The last ones may
/// be columns once more, so that they are whole vectors: processors store parts of vectors slowly.
template <int Taps, int At, bool kTwice, class F>
[[gnu::always_inline]] inline void for_each_columns(const PairTask& t, F f) {
  constexpr std::int64_t L = kLanes<float>;
  const auto call = [&]<int V>(std::int64_t m) __attribute__((always_inline)) {
    PairsOfRow<V>::template is_inside<Taps, At>(t, m) ? f.template operator()<V, true>(m)
                                                      : f.template operator()<V, false>(m);
  };
  std::int64_t m = 0;
  for (; m + L < t.count; m += 2 * L) {
    const bool again = kTwice && t.count >= 2 * L && m + 2 * L > t.count;
    call.template operator()<2>(again ? t.count - 2 * L : m);
  }
  if (m < t.count) call.template operator()<1>(kTwice && t.count >= L ? t.count - L : m);
}

template <int Taps, int At>
void gather_pairs(const PairTask& t) {
  constexpr std::int64_t kElements = 4096;  // of y, that the first cache holds until all columns are done
  const std::int64_t most = (kElements / t.from_row / kGatherRows + 1) * kGatherRows;
  for (std::int64_t i = 0; i < t.rows; i += most) {
    const std::int64_t rows = t.rows - i < most ? t.rows - i : most;
    for_each_columns<Taps, At, true>(
        t, [&]<int V, bool kInside>(std::int64_t m)
               __attribute__((always_inline)) { gather_columns<Taps, At, V, kInside>(t, i, rows, m); });
  }
}

template <int Taps, int At, int Rows, int V, bool kInside>
[[gnu::always_inline]] inline void add_pairs(const PairTask& t, std::int64_t m,
                                             Vector<float> (&sums)[Rows][Taps]) {
  constexpr int L = kLanes<float>;
  const float *y = t.from + 2 * m, *x = t.x + m;
  PairsOfRow<V> pairs(t, m);
  const std::int64_t last = part<float>(t.count, m + (V - 1) * L);
  for (std::int64_t i = 0; i < t.rows; ++i, y += t.from_row, x += t.x_row) {
    pairs.set_row(y);
    ask_for<2 * V>(y + t.next);
    ask_for<V>(x + t.x_next);
    Vector<float> factors[Rows][V];
    TAPEDECK_UNROLL for (int r = 0; r < Rows; ++r) {
      TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
        const float* const from = x + r * t.tap_row + v * L;
        factors[r][v] = pairs.in_order(v == V - 1 ? load(from, last) : load(from));
      }
    }
    for_each_constant<Taps>([&]<int k>() {
      TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
        const Vector<float> of_tap = pairs.template of_tap<At, k, kInside>(v);
        TAPEDECK_UNROLL for (int r = 0; r < Rows; ++r) sums[r][k] += factors[r][v] * of_tap;
      }
    });
  }
}

template <int Taps, int At, int Rows>
void pair_sums(const PairTask& t) {
  constexpr int L = kLanes<float>;
  Vector<float> sums[Rows][Taps] = {};
  for_each_columns<Taps, At, false>(
      t, [&]<int V, bool kInside>(std::int64_t m)
             __attribute__((always_inline)) { add_pairs<Taps, At, Rows, V, kInside>(t, m, sums); });
  constexpr int kTogether = Rows == 2 && 2 * Taps <= L ? 2 : 1;  // rows whose lanes are added at once
  TAPEDECK_UNROLL for (int first = 0; first < Rows; first += kTogether) {
    Vector<float> columns[L] = {};
    TAPEDECK_UNROLL for (int r = 0; r < kTogether; ++r) {
      TAPEDECK_UNROLL for (int k = 0; k < Taps; ++k) columns[r * Taps + k] = sums[first + r][k];
    }
    float results[L];
    store(results, sum_lanes<float>(columns));
    for (int r = 0; r < kTogether; ++r) {
      for (int k = 0; k < Taps; ++k) t.to[(first + r) * t.weight_row + k] += results[r * Taps + k];
    }
  }
}

/// Calls f.template operator()<Taps, At>() for a task's.
template <class F>
inline void with_pair_taps(const PairTask& t, F f) {
  with_constant<kMaxPairTaps - 1>(t.tap_count - 1, [&]<int Taps>() {
    with_constant<kMaxPairPadding + 1>(1 - t.at,
                                       [&]<int At>() { f.template operator()<Taps + 1, 1 - At>(); });
  });
}
inline void spread_any_pairs(const PairTask& t) {
  with_pair_taps(t, [&]<int Taps, int At>() { spread_pairs<Taps, At>(t); });
}
inline void gather_any_pairs(const PairTask& t) {
  with_pair_taps(t, [&]<int Taps, int At>() { gather_pairs<Taps, At>(t); });
}
inline void any_pair_sums(const PairTask& t) {
  with_pair_taps(t, [&]<int Taps, int At>() {
    t.tap_rows == 2 ? pair_sums<Taps, At, 2>(t) : pair_sums<Taps, At, 1>(t);
  });
}

#endif
