// Few columns: dot products with the lanes along the contraction. M x J accumulators, one for each element of
// C, are summed over their lanes at the end.

/// Lane i of the result is the sum of the lanes of x[i], i < kLanes<T>: rounds that add neighbours' halves,
/// each of which leaves half as many vectors with twice as many sums.
template <class T>
inline Vector<T> sum_lanes(Vector<T>* x) {
  TAPEDECK_UNROLL for (int half = kLanes<T> / 2; half > 0; half /= 2) {
    TAPEDECK_UNROLL for (int i = 0; i < half; ++i) {
      Vector<T> low, high;
      interleave(x[i], x[i + half], low, high);
      x[i] = low + high;
    }
  }
  return x[0];
}

template <class T, int J, int M>
void dots_tile(const Rows<T>& t, std::int64_t first) {
  constexpr int L = kLanes<T>;
  const T* a = t.a + first * t.a_step;
  Vector<T> sums[L] = {};
  for (const Run *run = t.runs, *end = run + t.run_count; run != end; ++run) {
    const T* row[M];
    TAPEDECK_UNROLL for (int m = 0; m < M; ++m) row[m] = a + run->a + m * t.a_step;
    const T* panel = t.panel + run->b;
    for (std::int64_t k = 0; k < run->length; k += L) {
      Vector<T> b[J];
      TAPEDECK_UNROLL for (int j = 0; j < J; ++j) b[j] = load(panel + j * t.panel_step + k);
      TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
        const Vector<T> x = load(row[m] + k);
        TAPEDECK_UNROLL for (int j = 0; j < J; ++j) sums[m * J + j] += x * b[j];
      }
    }
  }
  T results[L];
  store(results, sum_lanes<T>(sums));
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    TAPEDECK_UNROLL for (int j = 0; j < J; ++j) {
      t.c[(first + m) * t.c_step + j] = results[m * J + j] + (t.start != nullptr ? t.start[j] : T(0));
    }
  }
}

template <class T>
constexpr int kMaxDots = kLanes<T> < 4 ? kLanes<T> : 4;

template <class T>
void dots(const Rows<T>& t) {
  with_constant<kMaxDots<T>>(t.columns, [&]<int J>() {
    constexpr int kRows = kLanes<T> / J < 8 ? kLanes<T> / J : 8;
    for_each_tile<kRows>(t.rows, [&]<int M>(std::int64_t first) { dots_tile<T, J, M>(t, first); });
  });
}
