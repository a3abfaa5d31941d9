#include <tapedeck/nn/data/sprites.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <tapedeck/core/random.h>

namespace tapedeck::data {

namespace {

constexpr double kRadius = 0.35;  // of the circle around a sprite of scale 1, in sides of the picture
constexpr double kPi = std::numbers::pi, kRoot2 = std::numbers::sqrt2, kRoot3 = std::numbers::sqrt3;

double norm(double u, double v) {
  return std::sqrt(u * u + v * v);
}

// The distance of (u, v) from the outline, negative inside, of shapes that the unit circle just
// encloses; v points up. Exact near edges, which is where it matters.

double square(double u, double v) {
  return std::max(std::abs(u), std::abs(v)) - 1 / kRoot2;
}

double ellipse(double u, double v) {
  constexpr double kNarrow = 0.55;
  const double level = norm(u, v / kNarrow), slope = norm(u, v / (kNarrow * kNarrow));
  return slope > 0 ? (level - 1) * level / slope : -kNarrow;  // to first order
}

double triangle(double u, double v) {
  return std::max(-v, (v + kRoot3 * std::abs(u)) / 2) - 0.5;
}

/// A square on its corner with a circle over each of its upper sides; q is half of half its diagonal.
double heart(double u, double v) {
  constexpr double q = (3 - kRoot2) / 4, middle = 2 * q - 1;
  const double diamond = (std::abs(u) + std::abs(v - middle)) / kRoot2 - kRoot2 * q;
  const double lobe = norm(std::abs(u) - q, v - middle - q) - kRoot2 * q;
  return std::min(diamond, lobe);
}

double distance(SpriteShape shape, double u, double v) {
  switch (shape) {
    case SpriteShape::square:
      return square(u, v);
    case SpriteShape::ellipse:
      return ellipse(u, v);
    case SpriteShape::triangle:
      return triangle(u, v);
    case SpriteShape::heart:
      break;
  }
  return heart(u, v);
}

/// Red, green and blue of a hue, a little paled.
std::array<double, 3> colour_of(double hue) {
  std::array<double, 3> colour{};
  for (std::size_t k = 0; k < 3; ++k) {
    const double turn = std::fmod(6 * hue + 6 - 2 * static_cast<double>(k), 6.0);  // from this primary
    colour[k] = 0.2 + 0.8 * std::clamp(2 - std::min(turn, 6 - turn), 0.0, 1.0);
  }
  return colour;
}

/// [0,1), of 32 bits.
double unit(std::uint32_t word) {
  return word * 0x1p-32;
}

void render(const SpriteFactors& factors, std::int64_t size, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0f);
  const double half = static_cast<double>(size) / 2, radius = 2 * half * kRadius * factors.scale;
  const double cx = half + factors.x * (half - radius), cy = half + factors.y * (half - radius);
  const double sine = std::sin(factors.rotation), cosine = std::cos(factors.rotation);
  const std::array<double, 3> colour = colour_of(factors.hue);
  const auto area = static_cast<std::size_t>(size * size);
  for (std::int64_t y = 0; y < size; ++y) {
    for (std::int64_t x = 0; x < size; ++x) {
      const double dx = (static_cast<double>(x) + 0.5 - cx) / radius;
      const double dy = (static_cast<double>(y) + 0.5 - cy) / radius;
      const double pixels =
          radius * distance(factors.shape, dx * cosine + dy * sine, dx * sine - dy * cosine);
      const double coverage = std::clamp(0.5 - pixels, 0.0, 1.0);
      if (coverage == 0) continue;
      for (std::size_t k = 0; k < 3; ++k) {
        out[k * area + static_cast<std::size_t>(y * size + x)] = static_cast<float>(coverage * colour[k]);
      }
    }
  }
}

}  // namespace

std::string to_string(SpriteShape shape) {
  constexpr const char* kNames[] = {"square", "ellipse", "triangle", "heart"};
  return kNames[static_cast<int>(shape)];
}

Tensor render_sprite(const SpriteFactors& factors, std::int64_t size) {
  check(size >= 1 && size <= kMaxSpriteSize, "render_sprite: size ", size, " is not legal; legal is 1 to ",
        kMaxSpriteSize);
  Tensor image = Tensor::empty({3, size, size});
  render(factors, size, {image.data<float>(), static_cast<std::size_t>(image.count())});
  return image;
}

Sprites::Sprites(const SpritesOptions& options) : options_(options) {
  check(options.count >= 0 && options.count <= kMaxSprites, "sprites: count ", options.count,
        " is not legal; legal is 0 to ", kMaxSprites);
  check(options.size >= 1 && options.size <= kMaxSpriteSize, "sprites: size ", options.size,
        " is not legal; legal is 1 to ", kMaxSpriteSize);
}

SpriteFactors Sprites::factors(std::int64_t i) const {
  constexpr std::uint64_t kStream = 0x7370726974650000u;  // apart from draws of the same seed elsewhere
  const auto counter = static_cast<std::uint64_t>(i);
  const Philox a = Philox::at(options_.seed, counter, kStream),
               b = Philox::at(options_.seed, counter, kStream + 1);
  SpriteFactors factors;
  factors.shape = static_cast<SpriteShape>(a.words[0] % kSpriteShapes);
  factors.hue = unit(a.words[1]);
  factors.scale = 0.5 + 0.5 * unit(a.words[2]);
  factors.rotation = 2 * kPi * unit(a.words[3]);
  factors.x = 2 * unit(b.words[0]) - 1;
  factors.y = 2 * unit(b.words[1]) - 1;
  return factors;
}

void Sprites::read(std::int64_t i, std::span<float> out) const {
  render(factors(i), options_.size, out);
}

std::optional<std::int64_t> Sprites::label(std::int64_t i) const {
  return static_cast<std::int64_t>(factors(i).shape);
}

}  // namespace tapedeck::data
