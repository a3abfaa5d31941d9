// Rows of one channel at stride 2 along w: tap k of a row of the kernel takes element m of x to element
// 2m + at + k of y. Vectors of y are split or joined in registers, and what lies a few elements further is
// shifted in from the vectors beside them, so that nothing is loaded twice and rows that are aligned are
// loaded so. For AVX-512 and float, and few taps; others, and builds for size, go by planes.
#if defined(__AVX512F__) && !defined(TAPEDECK_SMALL)
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
/// Elements m + Half of a phase: of the vector of the phase, and of the pairs beside it.
template <int L, int Half, int Phase>
struct ShiftedPairs {
  static constexpr int at(int l) {
    const int m = l + Half;
    return m < 0 ? 2 * L + 2 * m + Phase : m < L ? m : L + 2 * (m - L) + Phase;
  }
};

inline Vector<float> load_lanes(const float* from, std::uint16_t lanes) {
  return reinterpret_cast<Vector<float>>(_mm512_maskz_loadu_ps(lanes, from));
}

/// Asks for V vectors of a tensor whose rows follow each other, a page before they are read: a processor's
/// own requests stop where a page ends.
template <int V>
inline void ask_ahead(const float* from) {
  constexpr std::int64_t kAhead = 1024;  // elements
  TAPEDECK_UNROLL for (int v = 0; v < V; ++v) __builtin_prefetch(from + kAhead + v * kLanes<float>, 0, 2);
}

/// Copies past the caches, whole lines of the target.
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
            w * (kShift == 0 ? raw[v + 1] : permute<Shifted<L, kShift>>(raw[first], raw[first + 1]));
      }
    });
  }
  TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
    for_each_constant<2>([&]<int half>() {
      Vector<float> joined = merge<L, WantedOfJoin<L, 2, half>>(sums[v], sums[v][0]);
      if (t.negative_slope != 1) joined = rectified(joined, t.negative_slope);
      const std::int64_t at = 2 * (m + v * L) + half * L;
      if (t.past_caches) {
        if (at < t.width) store_past_caches(y + at, joined);
      } else {
        store(y + at, joined, part<float>(t.width, at));
      }
    });
  }
}

template <int Taps, int At>
void spread_pairs(const PairTask& t) {
  constexpr std::int64_t L = kLanes<float>;
  const float* x = t.from;
  float* y = t.to;
  const float* ahead = t.ahead;
  const std::int64_t asked = t.rows > 0 ? (t.ahead_count + t.rows - 1) / t.rows : 0;  // of a row
  for (std::int64_t i = 0; i < t.rows; ++i, x += t.from_row, y += t.to_row) {
    for (const float* const until = ahead + asked; ahead < until; ahead += L) __builtin_prefetch(ahead, 0, 2);
    std::int64_t m = 0;
    for (; 2 * (m + L) < t.width; m += 2 * L) spread_tile<Taps, At, 2>(t, x, y, m);
    if (2 * m < t.width) spread_tile<Taps, At, 1>(t, x, y, m);
  }
}

/// The vectors of a row of y that V vectors of x meet, and their neighbours.
template <int V>
struct PairsOfRow {
  static constexpr int L = kLanes<float>;
  Vector<float> raw[2 * V + 2], halves[V][2];

  /// Before the first advance() to element m.
  PairsOfRow(const float* row, std::int64_t m, const std::uint16_t* lanes) {
    TAPEDECK_UNROLL for (int i = 0; i < 2; ++i) {
      raw[2 * V + i] = load_lanes(row + 2 * m + (i - 1) * L, lanes[2 * m / L + i]);
    }
  }
  /// To the vectors from m on, which follow those before.
  void advance(const float* row, std::int64_t m, const std::uint16_t* lanes) {
    raw[0] = raw[2 * V];
    raw[1] = raw[2 * V + 1];
    TAPEDECK_UNROLL for (int i = 2; i < 2 * V + 2; ++i) {
      raw[i] = load_lanes(row + 2 * m + (i - 1) * L, lanes[2 * m / L + i]);
    }
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
      const Vector<float> pair[2] = {raw[2 * v + 1], raw[2 * v + 2]};
      halves[v][0] = merge<L, WantedOfSplit<L, 2, 0>>(pair, pair[0]);
      halves[v][1] = merge<L, WantedOfSplit<L, 2, 1>>(pair, pair[0]);
    }
  }
  template <class Tap>
  Vector<float> of(int v) const {
    if constexpr (Tap::kHalf == 0) return halves[v][Tap::kPhase];
    return permute<ShiftedPairs<L, Tap::kHalf, Tap::kPhase>>(halves[v][Tap::kPhase],
                                                             raw[Tap::kHalf < 0 ? 2 * v : 2 * v + 3]);
  }
};

template <int Taps, int At, int V>
[[gnu::always_inline]] inline void gather_tile(const PairTask& t, const float* y, float* x, std::int64_t m) {
  constexpr int L = kLanes<float>;
  Vector<float> sums[V][2] = {};  // of each phase, so that fewer additions wait for each other
  TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[v][0] = broadcast(t.start);
  const float* weights = t.weights;
  for (std::int64_t i = 0; i < t.tap_rows; ++i, y += t.tap_row, weights += t.weight_row) {
    PairsOfRow<V> pairs(y, m, t.lanes);
    pairs.advance(y, m, t.lanes);
    if (i + 2 >= t.tap_rows) ask_ahead<2 * V>(y + 2 * m);  // rows that the results before have not read
    for_each_constant<Taps>([&]<int k>() {
      const Vector<float> w = broadcast(weights[k]);
      TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
        sums[v][PairTap<At, k>::kPhase] += w * pairs.template of<PairTap<At, k>>(v);
      }
    });
  }
  TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
    Vector<float> sum = sums[v][0] + sums[v][1];
    if (t.negative_slope != 1) sum = rectified(sum, t.negative_slope);
    store(x + m + v * L, sum, part<float>(t.count, m + v * L));
  }
}

template <int Taps, int At>
void gather_pairs(const PairTask& t) {
  constexpr std::int64_t L = kLanes<float>;
  const float* y = t.from;
  float* x = t.to;
  for (std::int64_t i = 0; i < t.rows; ++i, y += t.from_row, x += t.to_row) {
    std::int64_t m = 0;
    for (; m + L < t.count; m += 2 * L) gather_tile<Taps, At, 2>(t, y, x, m);
    if (m < t.count) gather_tile<Taps, At, 1>(t, y, x, m);
  }
}

template <int Taps, int At, int Rows>
void pair_sums(const PairTask& t) {
  constexpr std::int64_t L = kLanes<float>;
  Vector<float> sums[Rows][Taps] = {};
  const float *y = t.from, *x = t.x;
  for (std::int64_t i = 0; i < t.rows; ++i, y += t.from_row, x += t.x_row) {
    PairsOfRow<1> pairs(y, 0, t.lanes);
    for (std::int64_t m = 0; m < t.count; m += L) {
      pairs.advance(y, m, t.lanes);
      ask_ahead<2>(y + 2 * m);
      ask_ahead<1>(x + m);
      Vector<float> factors[Rows];
      TAPEDECK_UNROLL for (int r = 0; r < Rows; ++r) {
        factors[r] = load(x + r * t.tap_row + m, part<float>(t.count, m));
      }
      for_each_constant<Taps>([&]<int k>() {
        const Vector<float> of_tap = pairs.template of<PairTap<At, k>>(0);
        TAPEDECK_UNROLL for (int r = 0; r < Rows; ++r) sums[r][k] += factors[r] * of_tap;
      });
    }
  }
  Vector<float> columns[L] = {};  // of Rows * Taps sums each
  TAPEDECK_UNROLL for (int r = 0; r < Rows; ++r) {
    TAPEDECK_UNROLL for (int k = 0; k < Taps; ++k) columns[r * Taps + k] = sums[r][k];
  }
  float results[L];
  store(results, sum_lanes<float>(columns));
  for (int r = 0; r < Rows; ++r) {
    for (int k = 0; k < Taps; ++k) t.to[r * t.weight_row + k] += results[r * Taps + k];
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
