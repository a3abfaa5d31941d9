// Lane by lane products, for channels that do not mix: both factors are vectors, and each load serves one
// multiplication, so that memory sets the pace.

template <class T, int V, int M>
void products_tile(const Rows<T>& t, std::int64_t first) {
  constexpr int L = kLanes<T>;
  const T* a = t.a + first * t.a_step;
  Vector<T> sums[M][V];
  TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
    const Vector<T> start = t.start != nullptr ? load(t.start + v * L) : Vector<T>{};
    TAPEDECK_UNROLL for (int m = 0; m < M; ++m) sums[m][v] = start;
  }
  for (const Run *run = t.runs, *end = run + t.run_count; run != end; ++run) {
    Vector<T> b[V];
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) b[v] = load(t.panel + run->b + v * L);
    TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
      TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[m][v] +=
          load(a + m * t.a_step + run->a + v * L) * b[v];
    }
  }
  const std::int64_t last = t.columns - (V - 1) * L;
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    T* c = t.c + (first + m) * t.c_step;
    TAPEDECK_UNROLL for (int v = 0; v < V - 1; ++v) store(c + v * L, sums[m][v]);
    store(c + (V - 1) * L, sums[m][V - 1], last);
  }
}

template <class T>
void products(const Rows<T>& t) {
  with_constant<kMaxVectors>((t.columns + kLanes<T> - 1) / kLanes<T>, [&]<int V>() {
    for_each_tile<4>(t.rows, [&]<int M>(std::int64_t first) { products_tile<T, V, M>(t, first); });
  });
}

template <class T, int V, int M>
void product_sums_tile(const Outer<T>& t, std::int64_t first) {
  constexpr int L = kLanes<T>;
  T* c = t.c + first * t.c_step;
  Vector<T> sums[M][V];
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[m][v] = load(c + m * t.c_step + v * L);
  }
  for (std::int64_t i = 0; i < t.counts[0]; ++i) {
    for (std::int64_t j = 0; j < t.counts[1]; ++j) {
      const T* a = t.a + first * t.a_row + i * t.a_step[0] + j * t.a_step[1];
      const T* b = t.b + i * t.b_step[0] + j * t.b_step[1];
      for (std::int64_t k = 0; k < t.counts[2]; ++k, a += t.a_step[2], b += t.b_step[2]) {
        TAPEDECK_UNROLL for (int v = 0; v < V; ++v) {
          const Vector<T> x = load(b + v * L);
          TAPEDECK_UNROLL for (int m = 0; m < M; ++m) sums[m][v] += load(a + m * t.a_row + v * L) * x;
        }
      }
    }
  }
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) store(c + m * t.c_step + v * L, sums[m][v]);
  }
}

template <class T>
void product_sums(const Outer<T>& t) {
  with_constant<kMaxVectors>(t.vectors, [&]<int V>() {
    for_each_tile<4>(t.rows, [&]<int M>(std::int64_t first) { product_sums_tile<T, V, M>(t, first); });
  });
}
