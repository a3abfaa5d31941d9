#include <tapedeck/nn/upsample.h>

namespace tapedeck::nn {

Upsample::Upsample(const Options& options) : options_(options) {
  const Size2 factor = options.scale_factor, size = options.size;
  const bool by_factor = factor.h >= 1 && factor.w >= 1 && size == Size2(0);
  const bool by_size = size.h >= 1 && size.w >= 1 && factor == Size2(0);
  check(by_factor || by_size, "Upsample: scale_factor ", factor.h, "x", factor.w, " and size ", size.h, "x",
        size.w, " are not legal; legal is one of them, of 1 or more");
  check(options.mode == Mode::bilinear || !options.align_corners,
        "Upsample: align_corners is for bilinear mode only");
}

Variable Upsample::forward(const Variable& x) {
  check(x.defined() && (x.rank() == 3 || x.rank() == 4), "Upsample: x has shape ",
        x.defined() ? to_string(x.shape()) : "undefined", "; legal are [n, c, h, w] and [c, h, w]");
  const Size2 factor = options_.scale_factor;
  const Size2 size = factor == Size2(0) ? options_.size : Size2(x.size(-2) * factor.h, x.size(-1) * factor.w);
  if (options_.mode == Mode::nearest) return upsample_nearest2d(x, size);
  return upsample_bilinear2d(x, size, options_.align_corners);
}

std::string Upsample::details() const {
  const bool by_size = options_.scale_factor == Size2(0);
  const Size2 size = by_size ? options_.size : options_.scale_factor;
  return concat(by_size ? "to " : "", size.h, "x", size.w,
                options_.mode == Mode::nearest ? ", nearest" : ", bilinear",
                options_.align_corners ? ", corners aligned" : "");
}

}  // namespace tapedeck::nn
