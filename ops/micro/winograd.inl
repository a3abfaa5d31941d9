// The maps of minimal filtering (conv/winograd.h) on tiles of pixels, for vectors of channels.

/// The map M of R taps on one axis: from in[0], in[in_step], ... to out[0], out[out_step], ...
template <WinogradMap M, int R, class V>
inline void winograd_axis(const V* in, int in_step, V* out, int out_step) {
  const auto x = [&](int i) { return in[i * in_step]; };
  const auto y = [&](int i) -> V& { return out[i * out_step]; };
  if constexpr (M == WinogradMap::input) {
    if constexpr (R == 1) y(0) = x(0), y(1) = x(1);
    if constexpr (R == 2) y(0) = x(0) - x(1), y(1) = x(1), y(2) = x(2) - x(1);
    if constexpr (R == 3) y(0) = x(0) - x(2), y(1) = x(1) + x(2), y(2) = x(2) - x(1), y(3) = x(3) - x(1);
  } else if constexpr (M == WinogradMap::weight) {
    if constexpr (R == 1) y(0) = x(0), y(1) = x(0);
    if constexpr (R == 2) y(0) = x(0), y(1) = x(0) + x(1), y(2) = x(1);
    if constexpr (R == 3) {
      const V ends = x(0) + x(2);
      y(0) = x(0), y(1) = (ends + x(1)) * 0.5F, y(2) = (ends - x(1)) * 0.5F, y(3) = x(2);
    }
  } else if constexpr (M == WinogradMap::output) {
    if constexpr (R == 1) y(0) = x(0), y(1) = x(1);
    if constexpr (R == 2) y(0) = x(0) + x(1), y(1) = x(1) + x(2);
    if constexpr (R == 3) y(0) = x(0) + x(1) + x(2), y(1) = x(1) - x(2) + x(3);
  } else if constexpr (M == WinogradMap::output_adjoint) {
    if constexpr (R == 1) y(0) = x(0), y(1) = x(1);
    if constexpr (R == 2) y(0) = x(0), y(1) = x(0) + x(1), y(2) = x(1);
    if constexpr (R == 3) y(0) = x(0), y(1) = x(0) + x(1), y(2) = x(0) - x(1), y(3) = x(1);
  } else {
    if constexpr (R == 1) y(0) = x(0) + x(1);
    if constexpr (R == 2) y(0) = x(0) + x(1), y(1) = x(1) + x(2);
    if constexpr (R == 3) {
      const V middle = (x(1) + x(2)) * 0.5F;
      y(0) = x(0) + middle, y(1) = (x(1) - x(2)) * 0.5F, y(2) = middle + x(3);
    }
  }
}

template <WinogradMap M>
constexpr int winograd_in(int r) {
  return M == WinogradMap::output_adjoint ? 2 : M == WinogradMap::weight ? r : r + 1;
}
template <WinogradMap M>
constexpr int winograd_out(int r) {
  return M == WinogradMap::output ? 2 : M == WinogradMap::weight_adjoint ? r : r + 1;
}

template <class T, WinogradMap M, int H, int W>
void winograd_tiles(const WinogradTiles<T>& t) {
  constexpr int kInH = winograd_in<M>(H), kInW = winograd_in<M>(W);
  constexpr int kOutH = winograd_out<M>(H), kOutW = winograd_out<M>(W);
  for (std::int64_t tile = 0; tile < t.tiles; ++tile) {
    const std::int64_t read = tile * t.from_step, written = tile * t.to_step;
    for (std::int64_t c = 0; c < t.count; c += kLanes<T>) {
      Vector<T> in[kInH * kInW], rows[kOutH * kInW], out[kOutH * kOutW];
      TAPEDECK_UNROLL for (int i = 0; i < kInH * kInW; ++i) in[i] = load(t.from[i] + read + c);
      TAPEDECK_UNROLL for (int j = 0; j < kInW; ++j) {
        winograd_axis<M, H, Vector<T>>(in + j, kInW, rows + j, kInW);
      }
      TAPEDECK_UNROLL for (int i = 0; i < kOutH; ++i) {
        winograd_axis<M, W, Vector<T>>(rows + i * kInW, 1, out + i * kOutW, 1);
      }
      if (M == WinogradMap::output && t.start != nullptr) {
        const Vector<T> start = load(t.start + c);
        TAPEDECK_UNROLL for (int i = 0; i < kOutH * kOutW; ++i) out[i] += start;
      }
      TAPEDECK_UNROLL for (int i = 0; i < kOutH * kOutW; ++i) store(t.to[i] + written + c, out[i]);
    }
  }
}

template <class T, WinogradMap M>
void winograd(const WinogradTiles<T>& t, std::int64_t taps_h, std::int64_t taps_w) {
  with_constant<3>(
      taps_h, [&]<int H>() { with_constant<3>(taps_w, [&]<int W>() { winograd_tiles<T, M, H, W>(t); }); });
}

template <class T>
void winograd(WinogradMap map, std::int64_t taps_h, std::int64_t taps_w, const WinogradTiles<T>& t) {
  switch (map) {
    case WinogradMap::input:
      return winograd<T, WinogradMap::input>(t, taps_h, taps_w);
    case WinogradMap::weight:
      return winograd<T, WinogradMap::weight>(t, taps_h, taps_w);
    case WinogradMap::output:
      return winograd<T, WinogradMap::output>(t, taps_h, taps_w);
    case WinogradMap::output_adjoint:
      return winograd<T, WinogradMap::output_adjoint>(t, taps_h, taps_w);
    case WinogradMap::weight_adjoint:
      return winograd<T, WinogradMap::weight_adjoint>(t, taps_h, taps_w);
  }
}

/// For float only: there is no call for speed in double that would be worth a tenth of these kernels' size.
template <class T>
constexpr auto winograd_of() -> void (*)(WinogradMap, std::int64_t, std::int64_t, const WinogradTiles<T>&) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return winograd<T>;
  } else {
    return nullptr;
  }
}
