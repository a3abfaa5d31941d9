// Products with elements of A that lie apart, anywhere in a tensor: each is broadcast and meets several vectors.
//
// Steps are counted by where B is, and addresses have registers: 23 instructions for 12 products. Where another
// thread shares the core, as another guest's does on a virtual machine, they are what takes time.

#if !defined(TAPEDECK_SMALL)
/// Rows of a tile: elements of A, each of which meets V vectors.
template <int V>
constexpr int kTileRowsApart = TAPEDECK_MICRO_REGISTERS == 32 ? (V == 1   ? 16
                                                                 : V == 2 ? 12
                                                                 : V == 3 ? 8
                                                                          : 6)
                                                              : kTileRows<V>;

/// Rows of elements that lie `step` apart, each of which is one address: what has its own register would be
/// reloaded from the stack for each use.
template <class T, int M>
class ApartRows {
 public:
  ApartRows(const T* first, std::int64_t step)
      : step_(step * static_cast<std::int64_t>(sizeof(T))),
        two_(2 * step_),
        three_(3 * step_),
        five_(5 * step_),
        seven_(7 * step_),
        low_(reinterpret_cast<const char*>(first)),
        high_(low_ + 8 * step_) {}
  void advance(std::int64_t elements) {
    low_ += elements * static_cast<std::int64_t>(sizeof(T));
    __asm__("" : "+r"(low_));
    if constexpr (M > 8) {
      high_ += elements * static_cast<std::int64_t>(sizeof(T));
      __asm__("" : "+r"(high_));
    }
  }
  /// Before each use of at(): sums and products of steps are not worth registers.
  void refresh() {
    __asm__("" : "+r"(step_), "+r"(two_), "+r"(three_), "+r"(five_), "+r"(seven_));
  }
  template <int m>
  Vector<T> at() const {
    const char* const p = m < 8 ? low_ : high_;
    constexpr int k = m % 8;
    const char* q = p;
    if constexpr (k == 1) q = p + step_;
    if constexpr (k == 2) q = p + two_;
    if constexpr (k == 3) q = p + three_;
    if constexpr (k == 4) q = p + 4 * step_;
    if constexpr (k == 5) q = p + five_;
    if constexpr (k == 6) q = p + 2 * three_;
    if constexpr (k == 7) q = p + seven_;
    return broadcast(*reinterpret_cast<const T*>(q));
  }

 private:
  std::int64_t step_, two_, three_, five_, seven_;
  const char *low_, *high_;
};

template <class T, int V, int M>
void rows_apart_tile(const ApartTask<T>& t, std::int64_t first, Asking& asking) {
  constexpr int L = kLanes<T>;
  const std::int64_t a_run = t.a_run, b_step = t.b_step;
  T* const c = t.c + first * t.c_step;
  Vector<T> sums[M][V];
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[m][v] = load(c + m * t.c_step + t.offsets[v]);
  }
  for (const Run *run = t.runs, *end = run + t.run_count; run != end; ++run) {
    ApartRows<T, M> rows(t.a + run->a + first * t.a_step, t.a_step);
    const T* panel = t.b + run->b;
    for (std::int64_t left = run->length; left > 0; left -= kSpell) {
      asking.spell();
      for (const T* const stop = panel + (left < kSpell ? left : kSpell) * b_step; panel != stop;) {
        rows.refresh();
        Vector<T> b[V];
        TAPEDECK_UNROLL for (int v = 0; v < V; ++v) b[v] = load(panel + v * L);
        panel += b_step;
        for_each_constant<M>([&]<int m>() __attribute__((always_inline)) {
          const Vector<T> x = rows.template at<m>();
          TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[m][v] += x * b[v];
        });
        rows.advance(a_run);
      }
    }
  }
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) store(c + m * t.c_step + t.offsets[v], sums[m][v]);
  }
}

template <class T>
void rows_apart(const ApartTask<T>& t) {
  with_constant<kMaxVectors>(t.vectors, [&]<int V>() {
    std::int64_t steps = 0;
    for (std::int64_t i = 0; i < t.run_count; ++i) steps += spells(t.runs[i].length);
    Asking asking(t.ahead, (t.rows + kTileRowsApart<V> - 1) / kTileRowsApart<V> * steps);
    for_each_tile<kTileRowsApart<V>>(
        t.rows, [&]<int M>(std::int64_t first) { rows_apart_tile<T, V, M>(t, first, asking); });
  });
}

template <class T, int V, int M>
void outer_apart_tile(const ApartTask<T>& t, std::int64_t first, Asking& asking) {
  constexpr int L = kLanes<T>;
  const std::int64_t a_run = t.a_run, b_step = t.b_step;
  T* const c = t.c + first * t.c_step;
  Vector<T> sums[M][V];
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[m][v] = load(c + m * t.c_step + v * L);
  }
  const T* b[V];
  for (const Run *run = t.runs, *end = run + t.run_count; run != end; ++run) {
    ApartRows<T, M> rows(t.a + run->a + first * t.a_step, t.a_step);
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) b[v] = t.b + run->b + t.offsets[v];
    std::int64_t at = 0;
    for (std::int64_t left = run->length; left > 0; left -= kSpell) {
      asking.spell();
      for (const std::int64_t stop = at + (left < kSpell ? left : kSpell) * b_step; at != stop;) {
        rows.refresh();
        Vector<T> lanes[V];
        TAPEDECK_UNROLL for (int v = 0; v < V; ++v) lanes[v] = load(b[v] + at);
        at += b_step;
        for_each_constant<M>([&]<int m>() __attribute__((always_inline)) {
          const Vector<T> x = rows.template at<m>();
          TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[m][v] += x * lanes[v];
        });
        rows.advance(a_run);
      }
    }
  }
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) store(c + m * t.c_step + v * L, sums[m][v]);
  }
}

template <class T>
void outer_apart(const ApartTask<T>& t) {
  with_constant<kMaxVectors>(t.vectors, [&]<int V>() {
    std::int64_t steps = 0;
    for (std::int64_t i = 0; i < t.run_count; ++i) steps += spells(t.runs[i].length);
    Asking asking(t.ahead, (t.rows + kTileRowsApart<V> - 1) / kTileRowsApart<V> * steps);
    for_each_tile<kTileRowsApart<V>>(
        t.rows, [&]<int M>(std::int64_t first) { outer_apart_tile<T, V, M>(t, first, asking); });
  });
}

template <class T>
void unfold(T* places, std::int64_t count, std::int64_t columns, std::int64_t channels) {
  constexpr int L = kLanes<T>;
  for (std::int64_t i = 0; i < count; ++i, places += L) {
    const T* of_pixel = places + (columns - 1) * L;
    Vector<T> sum = load(of_pixel);
    for (std::int64_t j = 1; j < columns; ++j) sum += load(of_pixel += channels - L);
    store(places, sum);
  }
}
#endif
