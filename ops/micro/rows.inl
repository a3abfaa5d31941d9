// Rows of A times a packed panel: M x V accumulators in registers, one panel row of V vectors and one element
// of each of the M rows of A at a time.

template <class T, int V, int M>
void rows_tile(const Rows<T>& t, std::int64_t first, Asking& asking) {
  constexpr int L = kLanes<T>;
  const T* a = t.a + first * t.a_step;
  T* c = t.c + first * t.c_step;
  const std::int64_t last = t.columns - (V - 1) * L;  // columns of the last vector

  Vector<T> sums[M][V];
  if (t.accumulate) {
    TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
      TAPEDECK_UNROLL for (int v = 0; v < V - 1; ++v) sums[m][v] = load(c + m * t.c_step + v * L);
      sums[m][V - 1] = load(c + m * t.c_step + (V - 1) * L, last);
    }
  } else {
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
      const Vector<T> start = t.start != nullptr ? load(t.start + v * L) : Vector<T>{};
      TAPEDECK_UNROLL for (int m = 0; m < M; ++m) sums[m][v] = start;
    }
  }

  for (const Run *run = t.runs, *end = run + t.run_count; run != end; ++run) {
    const T* row[M];
    TAPEDECK_UNROLL for (int m = 0; m < M; ++m) row[m] = a + run->a + m * t.a_step;
    const T* panel = t.panel + run->b;
    for (std::int64_t k = 0; k < run->length;) {
      asking.spell();
      for (const std::int64_t stop = run->length - k < kSpell ? run->length : k + kSpell; k < stop;
           ++k, panel += V * L) {
        Vector<T> b[V];
        TAPEDECK_UNROLL for (int v = 0; v < V; ++v) b[v] = load(panel + v * L);
        TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
          const Vector<T> x = broadcast(row[m][k]);
          TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[m][v] += x * b[v];
        }
      }
    }
  }

  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    TAPEDECK_UNROLL for (int v = 0; v < V - 1; ++v) store(c + m * t.c_step + v * L, sums[m][v]);
    store(c + m * t.c_step + (V - 1) * L, sums[m][V - 1], last);
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
