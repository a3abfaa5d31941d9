// Rows of results that go past the caches: phases are computed for a stretch of pixels, joined in registers
// and stored at once. The line of memory that a row ends in waits for what follows, in registers and between
// rows in `carry`, so that only whole aligned vectors are stored, one after the other. The lines of a stretch
// drain while the next is computed; where whole rows were computed, joined and copied in turn, each waited.
// Tried: joined lines kept in the cache and stored a few at a time between the steps of the next stretch's
// loops. One thread of a Xeon with AVX-512 took 1.0 to 1.25 times as long for it, with stretches of 1 to 4 KB
// (kb81 1.15 at least, kb75 1.03): the loops became slower by more than the rest became faster. So did one and two
// of Zen 5 (kb81 1.41 and 1.13, kb75 1.17 and 1.14). Rows without taps are constants, and can be left to loops.
//
// Where there are no permutations of two registers (baseline), rows are stored the usual way, and builds for
// size have none of this.
#if defined(TAPEDECK_SMALL)
constexpr int kMaxStreamStep = 0;
#else
constexpr int kMaxStreamStep = kMaxStep;

#if defined(__AVX2__)
/// Lanes of two vectors that follow each other, from `kLanes<T> - behind` of the first on.
template <class T>
class Window {
 public:
  explicit Window(std::int64_t behind) {
    constexpr int kWords = TAPEDECK_MICRO_BYTES / 4;
    const int words = static_cast<int>(behind * static_cast<std::int64_t>(sizeof(T)) / 4);
#if defined(__AVX512F__)
    lanes_ = _mm512_add_epi32(_mm512_set1_epi32(kWords - words),
                              _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
#else
    const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    lanes_ = _mm256_add_epi32(_mm256_set1_epi32(kWords - words), lane);
    first_ = reinterpret_cast<__m256>(_mm256_cmpgt_epi32(_mm256_set1_epi32(words), lane));
#endif
  }
  Vector<T> operator()(Vector<T> first, Vector<T> second) const {
#if defined(__AVX512F__)
    return reinterpret_cast<Vector<T>>(
        _mm512_permutex2var_ps(reinterpret_cast<__m512>(first), lanes_, reinterpret_cast<__m512>(second)));
#else
    return reinterpret_cast<Vector<T>>(
        _mm256_blendv_ps(_mm256_permutevar8x32_ps(reinterpret_cast<__m256>(second), lanes_),
                         _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(first), lanes_), first_));
#endif
  }

 private:
#if defined(__AVX512F__)
  __m512i lanes_;
#else
  __m256i lanes_;
  __m256 first_;
#endif
};

/// Lanes begin to end - 1.
template <class T>
inline void store_some(T* to, Vector<T> v, std::int64_t begin, std::int64_t end) {
  T values[kLanes<T>];
  store(values, v);
  for (std::int64_t i = begin; i < end; ++i) to[i] = values[i];
}

/// Where a row of results is: vectors of it are put one after the other.
template <class T>
class RowStream {
 public:
  /// From element `at` of row m on.
  RowStream(const StreamedRow<T>& t, std::int64_t m, std::int64_t at)
      : carry_(t.carry + m * kLanes<T>),
        before_(load(carry_)),
        behind_(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(t.to + m * t.to_step) %
                                          TAPEDECK_MICRO_BYTES / sizeof(T))),
        window_(behind_),
        line_(t.to + m * t.to_step - behind_ + at),
        left_(t.width - at),
        is_first_(t.first && at == 0) {}
  ~RowStream() { store(carry_, before_); }

  /// A vector that is in the row.
  void put(Vector<T> v) {
    const Vector<T> line = window_(before_, v);
    if (is_first_ && behind_ > 0) {
      store_some(line_, line, behind_, kLanes<T>);
    } else {
      store_past_caches(line_, line);
    }
    is_first_ = false;
    before_ = v;
    line_ += kLanes<T>, left_ -= kLanes<T>;
  }
  /// A vector that the row ends in, or that lies behind it.
  void put_last(Vector<T> v) {
    if (left_ >= kLanes<T>) return put(v);
    if (left_ <= 0) return;
    if (left_ + behind_ >= kLanes<T>) store_past_caches(line_, window_(before_, v));
    before_ = Window<T>(kLanes<T> - left_)(before_, v);
    left_ = 0;
  }
  /// Vectors that put() would store after the last one, all like that, are left to others.
  void leave(std::int64_t vectors, Fills& fills) {
    if (fills.begin == fills.end) fills.begin = fills.end = 0;
    if (fills.end == Fills::kMost) return;
    Fills::Fill& fill = fills.fills[fills.end++];
    fill.to = reinterpret_cast<char*>(line_);
    fill.vectors = vectors;
    store(reinterpret_cast<T*>(fill.value), before_);
    fills.vectors += vectors;
    line_ += vectors * kLanes<T>, left_ -= vectors * kLanes<T>;
  }
  std::int64_t left() const { return left_; }

 private:
  T* const carry_;
  Vector<T> before_;
  const std::int64_t behind_;
  const Window<T> window_;
  T* line_;
  std::int64_t left_;
  bool is_first_;
};

/// What waits for the row that follows, of which there is none; then other threads may be told.
template <class T>
inline void end_rows(const StreamedRow<T>& t) {
  for (std::int64_t m = 0; m < t.rows; ++m) {
    T* const end = t.to + m * t.to_step + t.width;
    const auto waiting =
        static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(end) % TAPEDECK_MICRO_BYTES / sizeof(T));
    const T* const carry = t.carry + (m + 1) * kLanes<T> - waiting;
    for (std::int64_t i = 0; i < waiting; ++i) end[i - waiting] = carry[i];
  }
  _mm_sfence();
}
#else
template <class T>
class RowStream {
 public:
  RowStream(const StreamedRow<T>& t, std::int64_t m, std::int64_t at)
      : to_(t.to + m * t.to_step + at), left_(t.width - at) {}
  void put(Vector<T> v) {
    store(to_, v);
    to_ += kLanes<T>, left_ -= kLanes<T>;
  }
  void put_last(Vector<T> v) {
    if (left_ >= kLanes<T>) return put(v);
    if (left_ > 0) store(to_, v, left_);
    left_ = 0;
  }
  void leave(std::int64_t, Fills&) {}
  std::int64_t left() const { return left_; }

 private:
  T* to_;
  std::int64_t left_;
};
template <class T>
inline void end_rows(const StreamedRow<T>&) {}
#endif

/// Joins what was computed of `vectors` vectors of pixels from `first` on: [phase][row][vector].
template <class T, int S, bool gaps>
void stream_stretch(const StreamedRow<T>& t, const T* results, std::int64_t first, std::int64_t vectors) {
  constexpr int L = kLanes<T>;
  // Vectors of pixels all of whose results are in the row.
  std::int64_t whole = (t.width / S - first) / L;
  whole = whole < vectors ? whole : vectors;
  for (std::int64_t m = 0; m < t.rows; ++m) {
    RowStream<T> stream(t, m, first * S);
    const Vector<T> start = broadcast(t.start != nullptr ? t.start[m] : T(0));
    const T* from = results + m * vectors * L;
    for (std::int64_t i = 0; i < vectors; ++i, from += L) {
      Vector<T> joined[S];
      if constexpr (gaps) {
        TAPEDECK_UNROLL for (int v = 0; v < S; ++v) joined[v] = start;
        for_each_constant<S>([&]<int r>() {
          if (t.phases[r].depth == 0) return;
          const Vector<T> x = load(from + r * t.rows * vectors * L);
          for_each_constant<S>([&]<int v>() { joined[v] = permute<MergePhase<L, S, v, r>>(joined[v], x); });
        });
      } else {
        Vector<T> x[S];
        TAPEDECK_UNROLL for (int r = 0; r < S; ++r) x[r] = load(from + r * t.rows * vectors * L);
        for_each_constant<S>([&]<int v>() { joined[v] = merge<L, WantedOfJoin<L, S, v>>(x, x[0]); });
      }
      if (t.negative_slope != 1) {
        TAPEDECK_UNROLL for (int v = 0; v < S; ++v) joined[v] = rectified(joined[v], t.negative_slope);
      }
      if (i < whole) {
        TAPEDECK_UNROLL for (int v = 0; v < S; ++v) stream.put(joined[v]);
      } else {
        TAPEDECK_UNROLL for (int v = 0; v < S; ++v) stream.put_last(joined[v]);
      }
    }
  }
}

/// Bytes of a channel that are computed before they are stored: longer stretches of memory are written
/// faster.
constexpr std::int64_t kStretchBytes = 4 << 10;

template <class T>
void stream_phases(const StreamedRow<T>& t) {
  constexpr int L = kLanes<T>;
  std::int64_t filled = 0;  // phases
  for (std::int64_t r = 0; r < t.step; ++r) filled += t.phases[r].depth > 0 ? 1 : 0;
  void (*write)(const StreamedRow<T>&, const T*, std::int64_t, std::int64_t) = nullptr;
  with_constant<kMaxStreamStep>(t.step, [&]<int S>() {
    write = filled < S ? stream_stretch<T, S, true> : stream_stretch<T, S, false>;
  });
  const std::int64_t vectors = (t.count + L - 1) / L, most = kStretchBytes / TAPEDECK_MICRO_BYTES / t.step,
                     stretches = (vectors + most - 1) / most, calls = stretches * filled,
                     asks = t.ahead.count, fills = t.fills != nullptr ? t.fills->vectors : 0;
  alignas(64) T results[kPlaneRows * kStretchBytes / sizeof(T)];
  Ahead ahead = t.ahead;
  std::int64_t call = 0;
  for (std::int64_t i = 0; i < stretches; ++i) {
    const std::int64_t first = vectors * i / stretches, count = vectors * (i + 1) / stretches - first;
    for (std::int64_t r = 0; r < t.step; ++r) {
      Correlation<T> phase = t.phases[r];
      if (phase.depth == 0) continue;
      const std::int64_t asked = asks * call / calls, filled_before = fills * call / calls;
      phase.start = t.start;
      phase.b += first * L;
      phase.c = results + r * t.rows * count * L;
      phase.c_step = phase.count = count * L;
      phase.rows = t.rows;
      phase.runs = 1;
      ++call;
      phase.ahead = take_lines(ahead, asks * call / calls - asked);
      phase.ahead.fills = t.fills;
      phase.ahead.fill_count = fills * call / calls - filled_before;
      correlate(phase);
    }
    write(t, results, first * L, count);
  }
}

/// A row without taps.
template <class T>
void stream_start(const StreamedRow<T>& t) {
  for (std::int64_t m = 0; m < t.rows; ++m) {
    RowStream<T> stream(t, m, 0);
    Vector<T> start = broadcast(t.start != nullptr ? t.start[m] : T(0));
    if (t.negative_slope != 1) start = rectified(start, t.negative_slope);
    stream.put(start);
    if (t.fills != nullptr && stream.left() >= kLanes<T>) stream.leave(stream.left() / kLanes<T>, *t.fills);
    while (stream.left() >= kLanes<T>) stream.put(start);
    stream.put_last(start);
  }
}

template <class T>
void stream_row(const StreamedRow<T>& t) {
  t.phases != nullptr ? stream_phases(t) : stream_start(t);
  if (!t.last) return;
  if (t.fills != nullptr) fill(*t.fills, t.fills->vectors);
  end_rows(t);
}
#endif
