// Sums of outer products: M x V accumulators in registers, to which each pixel adds M elements of A times
// V vectors of B. (Not by add_products: nothing is spilled here, and settled in order these tiles took 1.05 of
// the time, as those of apart.inl took 1.02.)

template <class T, int V, int M>
[[gnu::noinline]] void outer_tile(const Outer<T>& t, std::int64_t first, Asking& asking) {
  constexpr int L = kLanes<T>;
  T* c = t.c + first * t.c_step;
  Vector<T> sums[M][V];
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[m][v] = load(c + m * t.c_step + v * L);
  }
  // In variables: what is asked for is written meanwhile, and might be they, for all that is known here. Steps
  // are counted by where B is: beside another thread of the core, instructions are what takes time.
  const std::int64_t count = t.counts[2], a_step = t.a_step[2], b_step = t.b_step[2], rows = t.counts[1],
                     a_row = t.a_step[1] - count * a_step, b_row = t.b_step[1] - count * b_step;
  const std::int64_t parts = spells(count), spell = kSpell * b_step,
                     rest = (count - (parts - 1) * kSpell) * b_step;
  for (std::int64_t i = 0; i < t.counts[0]; ++i) {
    const T *a = t.a + first + i * t.a_step[0], *b = t.b + i * t.b_step[0];
    for (std::int64_t j = 0; j < rows; ++j, a += a_row, b += b_row) {
      for (std::int64_t left = parts; left > 0; --left) {
        asking.spell();
        for (const T* const stop = b + (left > 1 ? spell : rest); b != stop; a += a_step, b += b_step) {
          Vector<T> lanes[V];
          TAPEDECK_UNROLL for (int v = 0; v < V; ++v) lanes[v] = load(b + v * L);
          TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
            const Vector<T> x = broadcast(a[m]);
            TAPEDECK_UNROLL for (int v = 0; v < V; ++v) sums[m][v] += x * lanes[v];
          }
        }
      }
    }
  }
  TAPEDECK_UNROLL for (int m = 0; m < M; ++m) {
    TAPEDECK_UNROLL for (int v = 0; v < V; ++v) store(c + m * t.c_step + v * L, sums[m][v]);
  }
}

/// Pixels, but whole rows, that all tiles add before the next ones, so that the nearest cache has them from
/// the second tile on: on a Zen 3, 24 rows of 128 lanes took 0.72 of the time (by 128 pixels), with copies whose
/// steps spread over the sets of a cache (conv/pixels.h). Where registers are 32, tiles are larger, and wait less.
constexpr std::int64_t kPixelsOfTiles = 96;

/// Calls f with tasks of some pixels each.
template <class T, class F>
inline void for_some_pixels(const Outer<T>& t, F f) {
  const auto fit = [](std::int64_t pixels) {
    return pixels == 0 || pixels > kPixelsOfTiles ? 1 : kPixelsOfTiles / pixels;
  };
  const std::int64_t rows = fit(t.counts[2]),
                     images = rows < t.counts[1] ? 1 : fit(t.counts[1] * t.counts[2]);
  Outer<T> some = t;
  for (std::int64_t i = 0; i < t.counts[0]; i += images) {
    some.counts[0] = t.counts[0] - i < images ? t.counts[0] - i : images;
    for (std::int64_t j = 0; j < t.counts[1]; j += rows) {
      some.counts[1] = t.counts[1] - j < rows ? t.counts[1] - j : rows;
      some.a = t.a + i * t.a_step[0] + j * t.a_step[1];
      some.b = t.b + i * t.b_step[0] + j * t.b_step[1];
      f(some);
    }
  }
}

template <class T>
void outer(const Outer<T>& t) {
  with_constant<kMaxVectors>(t.vectors, [&]<int V>() {
    const std::int64_t tiles = (t.rows + kTileRows<V> - 1) / kTileRows<V>;
    Asking asking(t.ahead, tiles * t.counts[0] * t.counts[1] * spells(t.counts[2]));
    const auto add = [&](const Outer<T>& some) {
      for_each_tile<kTileRows<V>>(
          t.rows, [&]<int M>(std::int64_t first) { outer_tile<T, V, M>(some, first, asking); });
    };
    tiles == 1 || TAPEDECK_MICRO_REGISTERS == 32 ? add(t) : for_some_pixels(t, add);
  });
}
