// Rows of results that go past the caches: phases are computed for a stretch of pixels, and what is computed
// waits in a queue. Between the tiles of the next stretch it is joined in registers, a channel at a time, and
// stored: memory takes a line in the time of some dozens of multiplications, and who has nothing but stores
// waits for each. The line of memory that a row ends in waits for what follows, in registers and between rows
// in `carry`, so that only whole aligned vectors are stored, one after the other.
//
// Beside storing each stretch at once, with rows without taps stored between the steps of loops (a5915a7, three
// turns on two cores of Zen 5): kb81 takes 1.03 of the time with one thread, 0.85 to 0.94 with two; kb75, where
// rows are computed in pairs, too, 0.83 to 0.89 and 0.98 to 1.07. Tried before: joined lines stored a few at a
// time between the steps of loops (kb81 1.41 and 1.13, kb75 1.17 and 1.14). And on a Zen 4, of kb81: a channel
// written in pieces of 8 to 20 lines (1.2 to 2.1); two to four channels at once, or tiles of one or two vectors,
// between which channels come sooner (both no faster, as far as a noisy host tells); phases loaded from where
// memory's lines begin in them, so that no window is shifted (kb81 1.02 to 1.03, kb75 1.03 to 1.04: what
// permutations cost does not show).
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
  RowStream(const StreamedRow<T>& t, T* carry, std::int64_t m, std::int64_t at)
      : carry_(carry + m * kLanes<T>),
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

/// Stores what waits for the row that follows, of which there is none.
template <class T>
inline void end_rows(const StreamedRow<T>& t, const T* carry, std::int64_t m) {
  T* const end = t.to + m * t.to_step + t.width;
  const auto waiting =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(end) % TAPEDECK_MICRO_BYTES / sizeof(T));
  const T* const last = carry + (m + 1) * kLanes<T> - waiting;
  for (std::int64_t i = 0; i < waiting; ++i) end[i - waiting] = last[i];
}
/// Before other threads are told.
inline void end_streams() {
  _mm_sfence();
}
#else
template <class T>
class RowStream {
 public:
  RowStream(const StreamedRow<T>& t, T*, std::int64_t m, std::int64_t at)
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
  std::int64_t left() const { return left_; }

 private:
  T* to_;
  std::int64_t left_;
};
template <class T>
inline void end_rows(const StreamedRow<T>&, const T*, std::int64_t) {}
inline void end_streams() {}
#endif

/// Joins what was computed of a channel of a stretch.
template <class T, int S, bool gaps>
void write_channel(const typename RowQueue<T>::Stretch& stretch, std::int64_t m) {
  constexpr int L = kLanes<T>;
  const StreamedRow<T>& t = stretch.row;
  const std::int64_t vectors = stretch.vectors, phase = t.rows * vectors * L;
  // Vectors of pixels all of whose results are in the row.
  const std::int64_t whole = (t.width / S - stretch.begin) / L;
  RowStream<T> stream(t, stretch.carry, m, stretch.begin * S);
  const Vector<T> start = broadcast(t.start != nullptr ? t.start[m] : T(0));
  const T* from = stretch.results + m * vectors * L;
  for (std::int64_t i = 0; i < vectors; ++i, from += L) {
    Vector<T> joined[S];
    if constexpr (gaps) {
      TAPEDECK_UNROLL for (int v = 0; v < S; ++v) joined[v] = start;
      for_each_constant<S>([&]<int r>() {
        if ((stretch.taken >> r & 1) == 0) return;
        put_phase<T, S, r>(joined, load(from + r * phase));
      });
    } else {
      Vector<T> x[S];
      TAPEDECK_UNROLL for (int r = 0; r < S; ++r) x[r] = load(from + r * phase);
      join_phases<T, S>(x, joined);
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

/// A channel of a row without taps.
template <class T>
void write_start(const typename RowQueue<T>::Stretch& stretch, std::int64_t m) {
  const StreamedRow<T>& t = stretch.row;
  RowStream<T> stream(t, stretch.carry, m, 0);
  Vector<T> start = broadcast(t.start != nullptr ? t.start[m] : T(0));
  if (t.negative_slope != 1) start = rectified(start, t.negative_slope);
  while (stream.left() >= kLanes<T>) stream.put(start);
  stream.put_last(start);
}

/// Memory of a queue: results of two rows that are computed and of two that wait, and a vector for each
/// channel of a panel and of the one before.
template <class T>
constexpr std::int64_t kResultElements = kPlaneRows * (kStretchBytes / sizeof(T) + kMaxStep * kLanes<T>);
template <class T>
constexpr std::int64_t kQueueElements = 4 * kResultElements<T> + 2 * kPlaneRows * kLanes<T>;

/// Writes the next channel that waits.
template <class T>
void write_next(RowQueue<T>& queue) {
  const typename RowQueue<T>::Stretch& stretch = queue.at(0);
  const StreamedRow<T>& t = stretch.row;
  const std::int64_t m = queue.channels++;
  if (stretch.results == nullptr) {
    write_start<T>(stretch, m);
  } else {
    with_constant<kMaxStreamStep>(t.step, [&]<int S>() {
      stretch.taken + 1 == 1U << S ? write_channel<T, S, false>(stretch, m)
                                   : write_channel<T, S, true>(stretch, m);
    });
  }
  const bool is_end = stretch.results == nullptr || (stretch.begin + stretch.vectors * kLanes<T>)*t.step >= t.width;
  if (is_end && t.last) end_rows(t, stretch.carry, m);
  if (queue.channels < t.rows) return;
  queue.channels = 0;
  queue.begin = (queue.begin + 1) % RowQueue<T>::kMost;
  --queue.count;
}

template <class T>
void write_all(RowQueue<T>& queue) {
  while (queue.count > 0) write_next(queue);
}

template <class T>
void write_rows(RowQueue<T>& queue) {
  write_all(queue);
  end_streams();
}

template <class T>
T* carry_of(const RowQueue<T>& queue) {
  return queue.memory + 4 * kResultElements<T> + queue.side * (kPlaneRows * kLanes<T>);
}
/// A panel begins, while the one before may wait; the one before that still waits only if nothing was computed
/// since.
template <class T>
void turn_carry(RowQueue<T>& queue) {
  queue.side ^= 1;
  for (int i = 0; i < queue.count; ++i) {
    if (queue.at(i).carry == carry_of(queue)) return write_all(queue);
  }
}

template <class T>
void append(RowQueue<T>& queue, const StreamedRow<T>& row, const T* results, unsigned taken, std::int64_t begin,
            std::int64_t vectors) {
  while (queue.count == RowQueue<T>::kMost) write_next(queue);
  typename RowQueue<T>::Stretch& to = queue.at(queue.count++);
  to.row = row;
  to.results = results;
  to.taken = taken;
  to.begin = begin;
  to.vectors = vectors;
  to.carry = carry_of(queue);
}

/// A bit for each phase that has taps.
template <class T>
unsigned taken_of(const StreamedRow<T>& t) {
  unsigned taken = 0;
  for (std::int64_t r = 0; t.phases != nullptr && r < t.step; ++r) {
    taken |= t.phases[r].depth > 0 ? 1U << r : 0;
  }
  return taken;
}

/// Writes what waits between the tiles of others.
template <class T>
class Writing {
 public:
  Writing(RowQueue<T>& queue, std::int64_t tiles) : queue_(queue), tiles_(tiles) {
    all_ = -queue.channels;
    for (int i = 0; i < queue.count; ++i) all_ += queue.at(i).row.rows;
  }
  void after_tile() {
    for (owed_ += all_; owed_ >= tiles_; owed_ -= tiles_) write_next(queue_);
  }

 private:
  RowQueue<T>& queue_;
  std::int64_t tiles_, all_ = 0, owed_ = 0;
};

/// Computes a stretch of phases, while what waits is written; then it waits.
template <class T>
void compute_stretch(RowQueue<T>& queue, const StreamedRow<T>& t, std::int64_t first, std::int64_t vectors,
                     Ahead& ahead, std::int64_t asks) {
  constexpr int L = kLanes<T>;
  const unsigned taken = taken_of(t);
  std::int64_t depth = 0;
  for (std::int64_t r = 0; r < t.step; ++r) depth += t.phases[r].depth;
  queue.turn ^= 1;
  T* const results = queue.memory + queue.turn * 2 * kResultElements<T>;
  queue.second = results + kResultElements<T>;
  with_constant<kPlaneRows>(t.rows, [&]<int M>() {
    const std::int64_t tiles = (vectors + kPlaneVectors<M> - 1) / kPlaneVectors<M>;
    Writing<T> writing(queue, tiles * __builtin_popcount(taken));
    for (std::int64_t r = 0; r < t.step; ++r) {
      Correlation<T> phase = t.phases[r];
      if (phase.depth == 0) continue;
      phase.start = t.start;
      phase.b += first * L;
      phase.c = results + r * M * vectors * L;
      phase.c_step = phase.count = vectors * L;
      phase.rows = M;
      phase.runs = 1;
      T* const second = queue.second + r * M * vectors * L;
      Asking asking(take_lines(ahead, (asks * phase.depth + depth - 1) / depth),
                    tiles * spells(phase.depth) * (t.in_pairs ? 4 : 1));
      for_each_tile<kPlaneVectors<M>>(vectors, [&]<int V>(std::int64_t at) {
        if (t.in_pairs) {
          pair_tile<T, M, V>(phase, second, at * L, asking);
        } else {
          correlate_tile<T, M, V>(phase, at * L, phase.count - at * L, asking);
        }
        writing.after_tile();
      });
    }
  });
  append(queue, t, results, taken, first * L, vectors);
}

template <class T>
void stream_row(RowQueue<T>& queue, const StreamedRow<T>& t) {
  if (t.first) turn_carry(queue);
  const unsigned taken = taken_of(t);
  if (taken == 0) return append<T>(queue, t, nullptr, 0, 0, 0);
  const std::int64_t vectors = (t.count + kLanes<T> - 1) / kLanes<T>;
  if (t.is_second) return append<T>(queue, t, queue.second, taken, 0, vectors);
  const std::int64_t most = kStretchBytes / TAPEDECK_MICRO_BYTES / t.step,
                     stretches = t.in_pairs ? 1 : (vectors + most - 1) / most;
  Ahead ahead = t.ahead;
  for (std::int64_t i = 0; i < stretches; ++i) {
    const std::int64_t first = vectors * i / stretches, end = vectors * (i + 1) / stretches;
    compute_stretch(queue, t, first, end - first, ahead, (t.ahead.count + stretches - 1) / stretches);
  }
}
#endif
