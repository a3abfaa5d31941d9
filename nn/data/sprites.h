// Sprites: a procedural dataset, so that a fresh machine has data. One shape on black, made of known
// factors: shape, hue, scale, rotation and position.
#pragma once

#include <cstdint>
#include <string>

#include <tapedeck/nn/data/dataset.h>

namespace tapedeck::data {

enum class SpriteShape : std::uint8_t { square, ellipse, triangle, heart };
inline constexpr int kSpriteShapes = 4;
inline constexpr std::int64_t kMaxSpriteSize = 4096, kMaxSprites = 1'000'000'000;

/// "square" and so on.
std::string to_string(SpriteShape shape);

struct SpriteFactors {
  SpriteShape shape = SpriteShape::square;
  double hue = 0;       ///< [0,1): red, yellow, green, cyan, blue, magenta, and round
  double scale = 1;     ///< [0.5,1]: the radius of the circle around the shape, in 0.35 of the picture's side
  double rotation = 0;  ///< [0, 2 pi), clockwise
  double x = 0, y = 0;  ///< [-1,1]: how far the circle is from the middle to the right and the lower edge
};

/// The picture of `factors`: float32 [3,size,size], with smooth edges. Throws Error unless 1 <= size <=
/// kMaxSpriteSize.
Tensor render_sprite(const SpriteFactors& factors, std::int64_t size);

struct SpritesOptions {
  std::int64_t count = 2000;
  std::int64_t size = 32;  ///< pixels a side
  std::uint64_t seed = 0;
};

/// Sprites with random factors. Element i depends on (seed, size, i) only; its label is its shape.
class Sprites final : public Dataset {
 public:
  /// Throws Error unless 0 <= count <= kMaxSprites and 1 <= size <= kMaxSpriteSize.
  explicit Sprites(const SpritesOptions& options = {});

  std::int64_t size() const override { return options_.count; }
  Shape image_shape() const override { return {3, options_.size, options_.size}; }
  void read(std::int64_t i, std::span<float> out) const override;
  std::optional<std::int64_t> label(std::int64_t i) const override;

  SpriteFactors factors(std::int64_t i) const;

 private:
  SpritesOptions options_;
};

}  // namespace tapedeck::data
