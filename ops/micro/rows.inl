// Rows of A times a packed panel: M x V accumulators in registers, one panel row of V vectors and one element
// of each of the M rows of A at a time.
//
// Additions to one accumulator wait for each other, and tiles of one vector and few rows, as at the borders of
// small maps, have few. So rows of such a panel are added in turn to two sets of accumulators, where registers
// suffice: for every M, as the order of a sum must not depend on how rows are split among threads.
template <int V>
#ifdef TAPEDECK_SMALL
constexpr int kSumSets = 1;
#else
constexpr int kSumSets = V == 1 && TAPEDECK_MICRO_REGISTERS == 32 ? 2 : 1;
#endif

template <class T, int V, int M>
[[gnu::noinline]] void rows_tile(const Rows<T>& t, std::int64_t first, Asking& asking) {
  constexpr int L = kLanes<T>, kSets = kSumSets<V>, kAtOnce = kSets * kStepsAtOnce;
  const T* a = t.a + first * t.a_step;
  T* c = t.c + first * t.c_step;
  const std::int64_t last = t.columns - (V - 1) * L;  // columns of the last vector

  Vector<T> sums[kSets][M][V] = {};
  if (t.accumulate) {
    TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
      TAPEDECK_UNROLL for (int v = 0; v < V - 1; ++v) sums[0][m][v] = load(c + m * t.c_step + v * L);
      sums[0][m][V - 1] = load(c + m * t.c_step + (V - 1) * L, last);
    }
  } else {
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
      const Vector<T> start = t.start != nullptr ? load(t.start + v * L) : Vector<T>{};
      TAPEDECK_UNROLL for (int m = 0; m < M; ++m) sums[0][m][v] = start;
    }
  }

  for (const Run *run = t.runs, *end = run + t.run_count; run != end; ++run) {
    const T* row[M];
    TAPEDECK_UNROLL for (int m = 0; m < M; ++m) row[m] = a + run->a + m * t.a_step;
    const T* panel = t.panel + run->b;
    const auto add = [&](Vector<T>(&to)[M][V], std::int64_t k) __attribute__((always_inline)) {
      add_products<T>(
          to, [&]<int m>() __attribute__((always_inline)) { return broadcast(row[m][k]); },
          [&](int v) __attribute__((always_inline)) { return load(panel + v * L); });
      panel += V * L;
    };
    for (std::int64_t k = 0; k < run->length;) {
      asking.spell();
      const std::int64_t stop = run->length - k < kSpell ? run->length : k + kSpell;
      for (; k + kAtOnce <= stop; k += kAtOnce) {
        TAPEDECK_UNROLL for (int i = 0; i < kAtOnce; ++i) add(sums[i % kSets], k + i);
      }
      for (; kAtOnce > 1 && k < stop; k += kSets) {
        TAPEDECK_UNROLL for (int i = 0; i < kSets; ++i) {
          if (i == 0 || k + i < stop) add(sums[i], k + i);
        }
      }
    }
  }
  TAPEDECK_UNROLL for (int i = 1; i < kSets; ++i) {
    TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
      TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[0][m][v] += sums[i][m][v];
    }
  }

  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    TAPEDECK_UNROLL for (int v = 0; v < V - 1; ++v) store(c + m * t.c_step + v * L, sums[0][m][v]);
    store(c + m * t.c_step + (V - 1) * L, sums[0][m][V - 1], last);
  }
}

template <class T>
void rows(const Rows<T>& t) {
  with_constant<kMaxVectors>((t.columns + kLanes<T> - 1) / kLanes<T>, [&]<int V>() {
    std::int64_t steps = 0;
    for (std::int64_t i = 0; i < t.run_count; ++i) steps += spells(t.runs[i].length);
    Asking asking(t.ahead, (t.rows + kTileRows<V> - 1) / kTileRows<V> * steps);
    for_each_tile<kTileRows<V>>(t.rows,
                                [&]<int M>(std::int64_t first) { rows_tile<T, V, M>(t, first, asking); });
  });
}
