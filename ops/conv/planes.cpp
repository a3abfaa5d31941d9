#include <tapedeck/ops/conv/planes.h>

#include <algorithm>

#include <tapedeck/ops/conv/ahead.h>

namespace tapedeck::cpu {

PlaneAxis::PlaneAxis(const ConvAxis& a, Direction direction)
    : from(direction == Direction::transposed ? a.in : a.out),
      to(direction == Direction::transposed ? a.out : a.in),
      from_step(direction == Direction::transposed ? 1 : a.stride),
      to_step(direction == Direction::transposed ? a.stride : 1) {
  for (std::int64_t r = 0; r < to_step; ++r) {
    phases.push_back({std::max<std::int64_t>(0, ConvAxis::ceil_div(to - r, to_step)), {}});
    count = std::max(count, phases.back().count);
  }
  for (std::int64_t k = 0; k < a.kernel; ++k) {
    // Where the result 0 of the tap's phase reads.
    std::int64_t phase = 0, at = 0;
    if (direction == Direction::transposed) {
      const std::int64_t offset = k * a.dilation - a.padding;  // of the output that input 0 reaches
      at = ConvAxis::floor_div(offset, a.stride);
      phase = offset - at * a.stride;
      at = -at;
    } else {
      at = a.output(0, k);
    }
    if (phases[static_cast<std::size_t>(phase)].count == 0) continue;
    const std::int64_t shift = ConvAxis::floor_div(at, from_step), read = at - shift * from_step;
    phases[static_cast<std::size_t>(phase)].taps.push_back({k, read, shift});
    planes.push_back({read, shift, shift});
    first = std::min(first, shift);
    last = std::max(last, shift);
  }
  std::sort(planes.begin(), planes.end(), [](const Plane& p, const Plane& q) { return p.phase < q.phase; });
  std::size_t count_of_planes = 0;
  for (const Plane& p : planes) {  // one of each phase
    if (count_of_planes == 0 || planes[count_of_planes - 1].phase != p.phase) planes[count_of_planes++] = p;
    Plane& kept = planes[count_of_planes - 1];
    kept.first = std::min(kept.first, p.first);
    kept.last = std::max(kept.last, p.last);
  }
  planes.resize(count_of_planes);
  for (PlanePhase& phase : phases) {
    for (PlaneTap& t : phase.taps) {
      std::int64_t index = 0;
      while (planes[static_cast<std::size_t>(index)].phase != t.plane) ++index;
      t.plane = index;
    }
  }
}

PlaneBand::PlaneBand(const PlaneAxis& h_axis, const PlaneAxis& w_axis, std::int64_t row_count,
                     std::int64_t lane_count)
    : h(h_axis), w(w_axis), rows(row_count), lanes(lane_count), lead(in_vectors(-w.first)) {
  const std::int64_t read = ConvAxis::ceil_div(w.from, w.from_step);
  pitch = std::max(read - w.first, w.count + w.last);
  // What is added costs memory, and work unless rows are runs.
  const std::int64_t whole = in_vectors(pitch), share = can_be_runs(whole) ? 8 : 32;
  if (whole * share <= pitch * (share + 1)) pitch = whole;
  for (const Plane& p : h.planes) {
    rows_before.push_back(all_rows);
    all_rows += rows_of(p);
  }
  channel = all_rows * static_cast<std::int64_t>(w.planes.size()) * pitch;
}

template <class T>
void PlaneBand::load(const Tensor& from, std::int64_t n, std::int64_t first, std::int64_t channels,
                     std::int64_t row, T* to) const {
  const auto& kernels = micro::kernels<T>();
  const std::int64_t whole = w.from / w.from_step, rest = w.from % w.from_step;
  const auto wide = static_cast<std::int64_t>(w.planes.size());
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(w.from_step));
  to += lead;
  const std::int64_t copied = channel == 0 ? 0 : channels;  // without taps on an axis there are no planes
  for (std::int64_t c = 0; c < copied; ++c) {
    const T* image = from.data<T>() + (n * from.size(1) + first + c) * h.from * w.from;
    for (const Plane& p : h.planes) {
      const std::int64_t all = rows_of(p), top = row + p.first, plane = all * pitch;
      const std::int64_t begin = std::clamp<std::int64_t>(-top, 0, all);
      const std::int64_t end =
          std::clamp<std::int64_t>(ConvAxis::ceil_div(h.from - p.phase, h.from_step) - top, begin, all);
      std::fill(offsets.begin(), offsets.end(), -1);
      for (std::int64_t k = 0; k < wide; ++k) {
        std::fill_n(to + k * plane, begin * pitch, T(0));
        std::fill(to + k * plane + end * pitch, to + (k + 1) * plane, T(0));
        offsets[static_cast<std::size_t>(w.planes[static_cast<std::size_t>(k)].phase)] = k * plane;
      }
      const T* in = image + ((top + begin) * h.from_step + p.phase) * w.from;
      T* out = to + begin * pitch;
      const std::int64_t in_row = h.from_step * w.from;
      kernels.split({in, out, offsets.data(), w.from_step, whole, end - begin, in_row, pitch});
      for (std::int64_t k = 0; k < rest; ++k) {
        const std::int64_t at = offsets[static_cast<std::size_t>(k)];
        for (std::int64_t i = 0; at >= 0 && i < end - begin; ++i) {
          out[at + i * pitch + whole] = in[i * in_row + whole * w.from_step + k];
        }
      }
      to += wide * plane;
    }
  }
}

template <class T>
void PlaneBand::lines(const Tensor& from, std::int64_t n, std::int64_t first, std::int64_t channels,
                      std::int64_t row, LineList& to) const {
  const T* image = from.data<T>() + (n * from.size(1) + first) * h.from * w.from;
  const auto append = [&](std::int64_t begin, std::int64_t end) {
    begin = std::clamp<std::int64_t>(begin, 0, h.from);
    append_lines(image + begin * w.from, (std::clamp(end, begin, h.from) - begin) * w.from, to);
  };
  const auto first_of = [&](const Plane& p) { return (row + p.first) * h.from_step + p.phase; };
  std::int64_t all_begin = h.from, all_end = 0;
  for (const Plane& p : h.planes) {
    all_begin = std::min(all_begin, first_of(p));
    all_end = std::max(all_end, first_of(p) + (rows_of(p) - 1) * h.from_step + 1);
  }
  const bool takes_all = static_cast<std::int64_t>(h.planes.size()) == h.from_step;
  for (std::int64_t c = 0; c < channels; ++c, image += h.from * w.from) {
    if (takes_all) {
      append(all_begin, all_end);
      continue;
    }
    for (const Plane& p : h.planes) {
      for (std::int64_t m = 0; m < rows_of(p); ++m)
        append(first_of(p) + m * h.from_step, first_of(p) + m * h.from_step + 1);
    }
  }
}

DenseBand::DenseBand(const PlaneBand& b)
    : band(b),
      taps(b.w.phases[0].taps),
      channel(b.all_rows * static_cast<std::int64_t>(taps.size()) * b.w.count) {}

bool DenseBand::is_worth_it(const PlaneAxis& h, const PlaneAxis& w, std::int64_t channels,
                            std::int64_t others) {
  const auto copies = static_cast<std::int64_t>(h.planes.size() * w.phases[0].taps.size());
  return h.to_step == 1 && w.to_step == 1 && copies > 0 && channels * copies <= others;
}

std::int64_t DenseBand::offset(const PlaneTap& kh, std::int64_t kw) const {
  const Plane& plane = band.h.planes[static_cast<std::size_t>(kh.plane)];
  const std::int64_t before = band.rows_before[static_cast<std::size_t>(kh.plane)];
  return (before * static_cast<std::int64_t>(taps.size()) + kw * band.rows_of(plane) + kh.shift -
          plane.first) *
         band.w.count;
}

template <class T>
void DenseBand::load(const T* planes, std::int64_t channels, T* to) const {
  const std::int64_t one = 0;  // phase
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::size_t k = 0; k < band.h.planes.size(); ++k) {
      const PlaneTap first_row{0, static_cast<std::int64_t>(k), band.h.planes[k].first};
      for (std::size_t kw = 0; kw < taps.size(); ++kw) {
        micro::kernels<T>().split({planes + c * band.channel + band.offset(first_row, taps[kw]),
                                   to + c * channel + offset(first_row, static_cast<std::int64_t>(kw)), &one,
                                   1, band.w.count, band.rows_of(band.h.planes[k]), band.pitch,
                                   band.w.count});
      }
    }
  }
}

PairBand::PairBand(const PlaneBand& b)
    : band(b), pairs((b.rows + 1) / 2), channel(pairs * kParts * b.pitch) {}

std::vector<PlaneTap> PairBand::taps(const PlaneAxis& h) {
  std::vector<PlaneTap> all;
  for (const PlanePhase& phase : h.phases) all.insert(all.end(), phase.taps.begin(), phase.taps.end());
  std::sort(all.begin(), all.end(), [](const PlaneTap& a, const PlaneTap& b) { return a.shift < b.shift; });
  return all;
}

bool PairBand::is_worth_it(const PlaneAxis& h, const PlaneAxis& w, std::int64_t channels,
                           std::int64_t others) {
  constexpr std::int64_t kLeastDepth = 8, kLeastUses = 16, kLeastRows = 4;
  const std::vector<PlaneTap> all = taps(h);
  std::int64_t phases = 0, columns = 0;
  for (const PlanePhase& phase : h.phases) phases += phase.taps.empty() ? 0 : 1;
  for (const PlanePhase& phase : w.phases) columns += static_cast<std::int64_t>(phase.taps.size());
  return h.from_step == 1 && w.from_step == 1 && h.count >= kLeastRows && phases == 1 && all.size() == 3 &&
         all[1].shift == all[0].shift + 1 && all[2].shift == all[1].shift + 1 &&
         channels * columns >= kLeastDepth * w.to_step && others * columns >= kLeastUses;
}

template <class T>
void PairBand::load(const Tensor& from, std::int64_t n, std::int64_t first, std::int64_t channels,
                    std::int64_t row, T* to) const {
  const PlaneAxis &h = band.h, &w = band.w;
  const std::vector<T> outside(static_cast<std::size_t>(w.from));
  to += band.lead;
  for (std::int64_t c = 0; c < channels; ++c) {
    const T* image = from.data<T>() + (n * from.size(1) + first + c) * h.from * w.from;
    for (std::int64_t pair = 0; pair < pairs; ++pair, to += kParts * band.pitch) {
      const T* rows[4];
      for (std::int64_t k = 0; k < 4; ++k) {
        const std::int64_t at = row + 2 * pair + h.planes[0].first + k;
        rows[k] = at >= 0 && at < h.from ? image + at * w.from : outside.data();
      }
      micro::kernels<T>().pair_rows(rows, to, w.from, band.pitch);
    }
  }
}

template void PlaneBand::load<float>(const Tensor&, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                     float*) const;
template void PlaneBand::load<double>(const Tensor&, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                      double*) const;

template void DenseBand::load<float>(const float*, std::int64_t, float*) const;
template void DenseBand::load<double>(const double*, std::int64_t, double*) const;

template void PairBand::load<float>(const Tensor&, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                    float*) const;
template void PairBand::load<double>(const Tensor&, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                     double*) const;

template void PlaneBand::lines<float>(const Tensor&, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                      LineList&) const;
template void PlaneBand::lines<double>(const Tensor&, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                       LineList&) const;

}  // namespace tapedeck::cpu
