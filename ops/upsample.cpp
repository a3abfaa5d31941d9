#include <tapedeck/ops/upsample.h>

#include <tapedeck/ops/resample.h>
#include <tapedeck/ops/shape.h>

namespace tapedeck {

namespace {

Variable upsample(const char* op, const Variable& x, Size2 size, Resampling kind) {
  check_images(op, x);
  check(size.h >= 1 && size.w >= 1, op, ": size {", size.h, ",", size.w, "}; legal is 1 or more");
  return resample(op, x, {kind, x.size(-2), size.h}, {kind, x.size(-1), size.w});
}

}  // namespace

Variable upsample_nearest2d(const Variable& x, Size2 size) {
  return upsample("upsample_nearest2d", x, size, Resampling::nearest);
}

Variable upsample_bilinear2d(const Variable& x, Size2 size, bool align_corners) {
  return upsample("upsample_bilinear2d", x, size, align_corners ? Resampling::corners : Resampling::linear);
}

Variable pixel_shuffle(const Variable& x, std::int64_t r) {
  if (x.rank() == 3) return squeeze(pixel_shuffle(unsqueeze(x, 0), r), 0);
  check(x.rank() == 4, "pixel_shuffle: x has shape ", x.shape(), "; legal is [n,c,h,w] or [c,h,w]");
  check(r >= 1 && x.size(1) % (r * r) == 0, "pixel_shuffle: upscale_factor ", r, " for the ", x.size(1),
        " channels of x ", x.shape(), "; legal is 1 or more, with a square that divides the channels");
  const std::int64_t n = x.size(0), c = x.size(1) / (r * r), h = x.size(2), w = x.size(3);
  const Variable y = permute(reshape(x, {n, c, r, r, h, w}), {0, 1, 4, 2, 5, 3});
  return to_layout(reshape(y, {n, c, h * r, w * r}), x.tensor().layout());
}

Variable pixel_unshuffle(const Variable& x, std::int64_t r) {
  if (x.rank() == 3) return squeeze(pixel_unshuffle(unsqueeze(x, 0), r), 0);
  check(x.rank() == 4, "pixel_unshuffle: x has shape ", x.shape(), "; legal is [n,c,h,w] or [c,h,w]");
  check(r >= 1 && x.size(2) % r == 0 && x.size(3) % r == 0, "pixel_unshuffle: downscale_factor ", r,
        " for x ", x.shape(), "; legal is a divisor of both image sizes");
  const std::int64_t n = x.size(0), c = x.size(1), h = x.size(2) / r, w = x.size(3) / r;
  const Variable y = permute(reshape(x, {n, c, h, r, w, r}), {0, 1, 3, 5, 2, 4});
  return to_layout(reshape(y, {n, c * r * r, h, w}), x.tensor().layout());
}

}  // namespace tapedeck
