// Upsampling as modules. See ops/upsample.h for what they compute.
#pragma once

#include <tapedeck/nn/module.h>
#include <tapedeck/ops/upsample.h>

namespace tapedeck::nn {

/// Images [n, c, h, w] or [c, h, w] enlarged.
class Upsample final : public Module {
 public:
  enum class Mode { nearest, bilinear };
  struct Options {
    Size2 scale_factor = 0;  ///< either this
    Size2 size = 0;          ///< or this
    Mode mode = Mode::nearest;
    bool align_corners = false;  ///< bilinear only
  };
  explicit Upsample(const Options& options);
  Variable forward(const Variable& x) override;
  const char* kind() const override { return "Upsample"; }
  std::string details() const override;

 private:
  Options options_;
};

/// [n, c * r * r, h, w] to [n, c, h * r, w * r].
class PixelShuffle final : public Module {
 public:
  struct Options {
    std::int64_t upscale_factor = 1;
  };
  explicit PixelShuffle(const Options& options) : options_(options) {}
  Variable forward(const Variable& x) override { return pixel_shuffle(x, options_.upscale_factor); }
  const char* kind() const override { return "PixelShuffle"; }
  std::string details() const override { return std::to_string(options_.upscale_factor); }

 private:
  Options options_;
};

/// [n, c, h * r, w * r] to [n, c * r * r, h, w].
class PixelUnshuffle final : public Module {
 public:
  struct Options {
    std::int64_t downscale_factor = 1;
  };
  explicit PixelUnshuffle(const Options& options) : options_(options) {}
  Variable forward(const Variable& x) override { return pixel_unshuffle(x, options_.downscale_factor); }
  const char* kind() const override { return "PixelUnshuffle"; }
  std::string details() const override { return std::to_string(options_.downscale_factor); }

 private:
  Options options_;
};

}  // namespace tapedeck::nn
