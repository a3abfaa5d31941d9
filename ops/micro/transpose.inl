// Transposes in blocks of B x B registers' elements: log2(B) rounds of interleaving rows i and i + B/2.

constexpr int kRegisterBytes = TAPEDECK_MICRO_BYTES;
template <class T>
constexpr int kBlock = (kRegisterBytes < 32 ? kRegisterBytes : 32) / sizeof(T);

/// Elements of a and b in turn: a0 b0 a1 b1 ...
template <class V>
inline void interleave(V a, V b, V& low, V& high) {
  if constexpr (sizeof(V) / sizeof(a[0]) == 16) {
    low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    high = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  } else if constexpr (sizeof(V) / sizeof(a[0]) == 8) {
    low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  } else if constexpr (sizeof(V) / sizeof(a[0]) == 4) {
    low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  } else {
    low = __builtin_shufflevector(a, b, 0, 2);
    high = __builtin_shufflevector(a, b, 1, 3);
  }
}

template <class T, class Offset>
inline void transpose_block(const T* in, std::int64_t in_step, T* out, Offset offset) {
  constexpr int B = kBlock<T>;
  using Types = VectorOf<T, B * sizeof(T)>;
  typename Types::type x[B], next[B];
  TAPEDECK_UNROLL for (int i = 0; i < B; ++i, in += in_step) {
    x[i] = *reinterpret_cast<const typename Types::unaligned*>(in);
  }
  TAPEDECK_UNROLL for (int round = 1; round < B; round *= 2) {
    TAPEDECK_UNROLL for (int i = 0; i < B / 2; ++i)
        interleave(x[i], x[i + B / 2], next[2 * i], next[2 * i + 1]);
    TAPEDECK_UNROLL for (int i = 0; i < B; ++i) x[i] = next[i];
  }
  TAPEDECK_UNROLL for (int j = 0; j < B; ++j) {
    *reinterpret_cast<typename Types::unaligned*>(out + offset(j)) = x[j];
  }
}

/// Squares of blocks that fill whole lines of both sides, one after the other along the rows that are far
/// apart. A processor does not foresee short rows in turn: each square asks the second cache for the lines of
/// the kAhead'th from there on, be it of the next call. The last blocks overlap their neighbours.
template <class T, class Offset>
inline void transpose_all(const Transpose<T> t, Offset offset) {
  constexpr std::int64_t B = kBlock<T>, kLine = 64 / sizeof(T), kAhead = 8;
  if (t.rows < B || t.columns < B) {
    for (std::int64_t j = 0; j < t.columns; ++j) {
      T* to = t.out + offset(j);
      for (std::int64_t i = 0; i < t.rows; ++i) to[i] = t.in[i * t.in_step + j];
    }
    return;
  }
  const bool along_out = t.in_step <= t.out_step;
  struct Square {
    std::int64_t i = 0, j = 0;
  };
  const auto advance = [&](Square& s) {
    std::int64_t &inner = along_out ? s.i : s.j, &outer = along_out ? s.j : s.i;
    inner += kLine;
    if (inner >= (along_out ? t.rows : t.columns)) {
      inner = 0;
      outer += kLine;
    }
  };
  Square ahead;
  for (std::int64_t k = 0; k < kAhead; ++k) advance(ahead);
  for (Square s; s.i < t.rows && s.j < t.columns; advance(s), advance(ahead)) {
    for (std::int64_t k = 0; k < kLine; ++k) {
      __builtin_prefetch(t.in + (ahead.i + k) * t.in_step + ahead.j, 0, 2);
    }
    for (std::int64_t k = ahead.j; along_out && k < t.columns && k < ahead.j + kLine; ++k) {
      __builtin_prefetch(t.out + offset(k) + ahead.i, 1, 2);
    }
    for (std::int64_t i = s.i; i < t.rows && i < s.i + kLine; i += B) {
      const std::int64_t row = i < t.rows - B ? i : t.rows - B;
      for (std::int64_t j = s.j; j < t.columns && j < s.j + kLine; j += B) {
        const std::int64_t column = j < t.columns - B ? j : t.columns - B;
        transpose_block(t.in + row * t.in_step + column, t.in_step, t.out + row,
                        [&](std::int64_t k) { return offset(column + k); });
      }
    }
  }
}

template <class T>
void transpose(const Transpose<T>& t) {
  if (t.offsets != nullptr) {
    transpose_all(t, [offsets = t.offsets](std::int64_t j) { return offsets[j]; });
  } else {
    transpose_all(t, [step = t.out_step](std::int64_t j) { return j * step; });
  }
}
