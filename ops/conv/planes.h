// The convolution family on planes (nchw): results of a phase, row after row, are one correlation at unit
// stride.
//
// Both directions are, on each axis,
//   result m*to_step + r  =  sum over the taps k of result phase r of from[(m + shift(k))*from_step +
//   phase(k)]
// with to_step = stride, from_step = 1 for the transposed direction and the reverse for the plain one
// (ConvAxis has the relation). So the tensor that is read is copied by bands of rows, split into its phases:
// planes[channel][phase h][phase w][row][pitch], where rows and columns outside of it are zeros. All phases
// of results share the pitch, which holds the reach of every tap: a tap of a band is one offset, and what
// vectors compute between the rows of results is thrown away.
//
// The zeros are multiplied: a weight that is not finite makes results NaN whose windows hang over the border.
#pragma once

#include <vector>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/plan.h>
#include <tapedeck/ops/micro/kernels.h>
#include <tapedeck/ops/micro/scratch.h>

namespace tapedeck::cpu {

struct PlaneTap {
  std::int64_t tap, plane, shift;
};

/// Results m*to_step + phase, m < count, read element m + shift of a plane.
struct PlanePhase {
  std::int64_t count;
  std::vector<PlaneTap> taps;
};

struct PlaneAxis {
  PlaneAxis(const ConvAxis& axis, Direction direction);

  std::int64_t from, to;  // sizes
  std::int64_t from_step, to_step;
  std::vector<std::int64_t> planes;  // the phases of `from` that any tap reads
  std::vector<PlanePhase> phases;    // to_step of them
  std::int64_t count = 0;            // most results of a phase
  std::int64_t first = 0, last = 0;  // shifts
};

/// How a band of a tensor [n,c,h,w] is copied to planes.
struct PlaneBand {
  /// For bands of `rows` results of each phase.
  PlaneBand(const PlaneAxis& h, const PlaneAxis& w, std::int64_t rows);

  const PlaneAxis& h;
  const PlaneAxis& w;
  std::int64_t rows;            // of results
  std::int64_t origin, pitch;   // column 0 and the number of columns
  std::int64_t plane, channel;  // elements

  /// Where tap (kh, kw) of results begins.
  std::int64_t offset(const PlaneTap& kh, const PlaneTap& kw) const {
    const auto wide = static_cast<std::int64_t>(w.planes.size());
    return (kh.plane * wide + kw.plane) * plane + (kh.shift - h.first) * pitch + kw.shift - origin;
  }
  /// Elements that so many channels take, and that vectors may reach beyond.
  template <class T>
  std::int64_t elements(std::int64_t channels) const {
    return channels * channel + pitch + micro::kernels<T>().plane_slack;
  }

  /// Copies `channels` channels from `first` on of image n for results from row `row` on. What lies outside
  /// of the columns is not written: it must be zeros from the beginning.
  template <class T>
  void load(const Tensor& from, std::int64_t n, std::int64_t first, std::int64_t channels, std::int64_t row,
            T* to) const;
  /// Asks for part `part` of `parts` of what the same load would read, so that memory works while the
  /// multipliers do: one load after the other left each idle in turn.
  template <class T>
  void prefetch(const Tensor& from, std::int64_t n, std::int64_t first, std::int64_t channels,
                std::int64_t row, std::int64_t part, std::int64_t parts) const;
};

}  // namespace tapedeck::cpu
