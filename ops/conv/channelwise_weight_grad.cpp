// The weight gradient of narrow groups: lanes are the channels of y of all groups, and for each of them the
// channels of x that it meets are copied side by side.
//
//   sums[kh,f,kw,lane] = sum over n, ih, iw of x[n,ih,iw,(f,lane)] * y[n,oh,ow,lane]
//   w[(g,f),t,kh,kw] = sums[kh,f,kw,g*group_co + t]
//
// The taps of a row of the kernel are summed together, in segments of iw in which the same ones count, so
// that an element of x is loaded once for all of them. Work is split over (kh, f, panel of lanes); each sum
// is added up by one thread, in the order n, ih, iw.
#include <algorithm>

#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/pixels.h>
#include <tapedeck/ops/micro/scratch.h>

namespace tapedeck::cpu {

namespace {

constexpr std::int64_t kBlockBytes = 8 << 20;  // of copied images

/// Adds the products of images [0, images) to the sums.
template <class T>
void add(const ConvTranspose2dGeometry& g, const std::vector<Segment>& segments, const Pixels<T>& x,
         const Pixels<T>& y, std::int64_t images, std::int64_t width, T* sums) {
  const auto& kernels = micro::kernels<T>();
  const std::int64_t read = g.group_ci(), vectors = width / kernels.lanes;
  const std::int64_t panels = (vectors + kernels.max_vectors - 1) / kernels.max_vectors;
  const double flops =
      g.flops() * static_cast<double>(images) / static_cast<double>(g.n * g.h.kernel * read * panels);
  parallel_for(
      g.h.kernel * read * panels, 1 + static_cast<std::int64_t>(2e5 / (flops + 1)),
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t n = 0; n < images; ++n) {
          for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t panel = i % panels, f = i / panels % read, kh = i / panels / read;
            const std::int64_t first = vectors * panel / panels, last = vectors * (panel + 1) / panels;
            const std::int64_t lane = first * kernels.lanes;
            const std::int64_t ih = g.h.input_begin(kh), rows = g.h.input_end(kh) - ih;
            if (rows == 0) continue;
            for (const Segment& s : segments) {
              if (s.slots == 0) continue;
              kernels.product_sums(
                  {y.data + n * y.image_step + g.h.output(ih, kh) * y.h_step + s.from * y.w_step + lane,
                   x.data + n * x.image_step + ih * x.h_step + s.to * x.w_step + f * width + lane,
                   {1, rows, s.count},
                   {0, g.h.stride * y.h_step, g.w.stride * y.w_step},
                   {0, x.h_step, x.w_step},
                   sums + ((kh * read + f) * g.w.kernel + s.slot) * width + lane,
                   width,
                   s.slots,
                   last - first,
                   g.w.dilation * y.w_step});
            }
          }
        }
      });
}

}  // namespace

template <class T>
void channelwise_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                             const Tensor& w) {
  const std::int64_t lanes = micro::kernels<T>().lanes, read = g.group_ci();
  const std::int64_t width = (g.co + lanes - 1) / lanes * lanes;
  const std::int64_t x_image = g.h.in * g.w.in * read * width, y_image = g.h.out * g.w.out * width;
  const bool whole = g.co % lanes == 0;
  const bool x_in_place = whole && x.layout() == Layout::nhwc && read * g.group_co() == 1;
  const bool y_in_place = whole && y.layout() == Layout::nhwc;
  const std::int64_t copied = (x_in_place ? 0 : x_image) + (y_in_place ? 0 : y_image);
  const std::int64_t block =
      copied == 0 ? g.n : std::clamp<std::int64_t>(kBlockBytes / (copied * sizeof(T)), 1, g.n);
  const Scratch<T> x_copy(x_in_place ? 0 : block * x_image), y_copy(y_in_place ? 0 : block * y_image);
  const Scratch<T> sums(g.h.kernel * read * g.w.kernel * width);
  std::fill_n(sums.data(), g.h.kernel * read * g.w.kernel * width, T(0));
  const std::vector<Segment> segments = plain_plan(g.w).segments;

  for (std::int64_t begin = 0; begin < g.n; begin += block) {
    const std::int64_t images = std::min(block, g.n - begin);
    Pixels<T> from{x_copy.data(), x_image, g.w.in * read * width, read * width};
    Pixels<T> to{y_copy.data(), y_image, g.w.out * width, width};
    if (x_in_place) {
      from.data = x.data<T>() + begin * x_image;
    } else if (read * g.group_co() == 1) {
      copy_pixels(x, begin, begin + images, from, width, x_copy.data());
    } else {
      copy_for_lanes(x, begin, begin + images, from, read, g.group_co(), read * width, x_copy.data());
    }
    if (y_in_place) {
      to.data = y.data<T>() + begin * y_image;
    } else {
      copy_pixels(y, begin, begin + images, to, width, y_copy.data());
    }
    add(g, segments, from, to, images, width, sums.data());
  }

  T* out = w.data<T>();
  for (std::int64_t i = 0; i < w.count(); ++i) {
    const std::int64_t kw = i % g.w.kernel, kh = i / g.w.kernel % g.h.kernel, c = i / g.w.kernel / g.h.kernel;
    const std::int64_t t = c % g.group_co(), f = c / g.group_co() % read, group = c / g.group_co() / read;
    out[i] = sums.data()[((kh * read + f) * g.w.kernel + kw) * width + group * g.group_co() + t];
  }
}

template void channelwise_weight_grad<float>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                             const Tensor&);
template void channelwise_weight_grad<double>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                              const Tensor&);

}  // namespace tapedeck::cpu
