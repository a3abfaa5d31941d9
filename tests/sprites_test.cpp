#include <tapedeck/nn/data/sprites.h>

#include <cmath>
#include <numbers>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "files.h"

namespace tapedeck::data {
namespace {

using ::testing::HasSubstr;

/// Whether (u, v), v up, is inside a shape of circumradius 1; written from the shapes' definitions.
bool inside(SpriteShape shape, double u, double v) {
  const double pi = std::numbers::pi;
  switch (shape) {
    case SpriteShape::square:
      return std::abs(u) < std::sqrt(0.5) && std::abs(v) < std::sqrt(0.5);
    case SpriteShape::ellipse:
      return u * u + v * v / (0.55 * 0.55) < 1;
    case SpriteShape::triangle: {
      for (int k = 0; k < 3; ++k) {  // corners at 90, 210 and 330 degrees: left of each edge
        const double a = pi / 2 + 2 * pi * k / 3, b = a + 2 * pi / 3;
        const double ex = std::cos(b) - std::cos(a), ey = std::sin(b) - std::sin(a);
        if (ex * (v - std::sin(a)) - ey * (u - std::cos(a)) < 0) return false;
      }
      return true;
    }
    case SpriteShape::heart:
      break;
  }
  // A diamond of half diagonal d = 2q with circles of radius sqrt(2) q on the middles of its upper sides;
  // its lower corner is at -1, and its lobes reach the unit circle.
  const double q = 0.25 * (3 - std::sqrt(2.0)), middle = 2 * q - 1;
  if (std::abs(u) + std::abs(v - middle) < 2 * q) return true;
  return std::hypot(std::abs(u) - q, v - (middle + q)) < std::sqrt(2.0) * q;
}

TEST(RenderSprite, CoversTheShapeAtItsPlace) {
  constexpr int kSize = 24, kFine = 16;
  for (int shape = 0; shape < kSpriteShapes; ++shape) {
    const SpriteFactors factors{static_cast<SpriteShape>(shape), 0.0, 0.8, 0.7, 0.4, -0.6};
    const Tensor image = render_sprite(factors, kSize);
    ASSERT_EQ(image.shape(), (Shape{3, kSize, kSize}));
    const double radius = 0.35 * 0.8 * kSize, cx = 12 + 0.4 * (12 - radius), cy = 12 - 0.6 * (12 - radius);
    double worst = 0, total = 0;
    for (int y = 0; y < kSize; ++y) {
      for (int x = 0; x < kSize; ++x) {
        double covered = 0;
        for (int i = 0; i < kFine * kFine; ++i) {
          const double px = x + (i % kFine + 0.5) / kFine - cx, py = y + (i / kFine + 0.5) / kFine - cy;
          // Turned clockwise by 0.7: turn back, then v up.
          const double u = px * std::cos(0.7) + py * std::sin(0.7),
                       down = py * std::cos(0.7) - px * std::sin(0.7);
          covered += inside(factors.shape, u / radius, -down / radius);
        }
        covered /= kFine * kFine;
        const double got = image.data<float>()[y * kSize + x];  // red is 1 for hue 0
        worst = std::max(worst, std::abs(got - covered));
        total += got - covered;
      }
    }
    EXPECT_LT(worst, 0.3) << to_string(factors.shape);  // at sharp corners, where the edge is no line
    EXPECT_LT(std::abs(total), 1.5) << to_string(factors.shape);
  }
}

TEST(RenderSprite, TouchesTheEdgesAndNoMore) {
  for (int shape = 0; shape < kSpriteShapes; ++shape) {
    for (const double sign : {-1.0, 1.0}) {
      const Tensor image = render_sprite({static_cast<SpriteShape>(shape), 0, 1, 1.1, sign, sign}, 32);
      double sum = 0;
      for (const float value : image.slice(0, 1).to_vector<float>()) sum += value;
      EXPECT_GT(sum, 0.35 * 0.35 * 32 * 32);  // the smallest shape has 1.299 radii squared
    }
  }
}

TEST(RenderSprite, HuesGoRoundTheCircle) {
  const std::array<float, 3> expected[] = {{1, 0.2f, 0.2f}, {1, 1, 0.2f},    {0.2f, 1, 0.2f},
                                           {0.2f, 1, 1},    {0.2f, 0.2f, 1}, {1, 0.2f, 1}};
  for (int k = 0; k < 6; ++k) {
    const Tensor image = render_sprite({.hue = k / 6.0}, 17);
    for (int c = 0; c < 3; ++c) {
      EXPECT_NEAR(image.data<float>()[c * 289 + 8 * 17 + 8], expected[k][static_cast<std::size_t>(c)], 1e-6)
          << k;
    }
  }
}

TEST(Sprites, DependOnSeedAndIndexOnly) {
  const Sprites a({.count = 10, .seed = 4}), more({.count = 1000, .seed = 4}),
      other({.count = 10, .seed = 5});
  for (std::int64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(a.get(i).to_vector<float>(), more.get(i).to_vector<float>());
    EXPECT_NE(a.get(i).to_vector<float>(), other.get(i).to_vector<float>());
    EXPECT_EQ(a.get(i).to_vector<float>(), render_sprite(a.factors(i), 32).to_vector<float>());
    EXPECT_EQ(a.label(i), static_cast<int>(a.factors(i).shape));
  }
}

TEST(Sprites, FactorsFillTheirRanges) {
  const std::int64_t n = 4000;
  const Sprites sprites({.count = n, .seed = 1});
  double low[5], high[5], sum[5] = {};
  std::fill(std::begin(low), std::end(low), 1e9), std::fill(std::begin(high), std::end(high), -1e9);
  int shapes[kSpriteShapes] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    const SpriteFactors f = sprites.factors(i);
    ++shapes[static_cast<int>(f.shape)];
    const double values[] = {f.hue, f.scale, f.rotation / (2 * std::numbers::pi), f.x, f.y};
    for (int k = 0; k < 5; ++k) {
      low[k] = std::min(low[k], values[k]), high[k] = std::max(high[k], values[k]), sum[k] += values[k];
    }
  }
  const double from[] = {0, 0.5, 0, -1, -1}, to[] = {1, 1, 1, 1, 1};
  for (int k = 0; k < 5; ++k) {
    const double range = to[k] - from[k];
    EXPECT_GE(low[k], from[k]);
    EXPECT_LE(high[k], to[k]);
    EXPECT_LT(low[k], from[k] + 0.01 * range);
    EXPECT_GT(high[k], to[k] - 0.01 * range);
    EXPECT_NEAR(sum[k] / n, (from[k] + to[k]) / 2, 0.03 * range);
  }
  for (const int count : shapes) EXPECT_NEAR(count, n / 4, 150);
}

TEST(Sprites, FactorsAreIndependent) {
  const std::int64_t n = 4000;
  const Sprites sprites({.count = n, .seed = 2});
  constexpr std::size_t kFactors = 6;
  double sum[kFactors] = {}, product[kFactors][kFactors] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    const SpriteFactors f = sprites.factors(i);
    const double values[kFactors] = {static_cast<double>(f.shape), f.hue, f.scale, f.rotation, f.x, f.y};
    for (std::size_t a = 0; a < kFactors; ++a) {
      sum[a] += values[a];
      for (std::size_t b = 0; b < kFactors; ++b) product[a][b] += values[a] * values[b];
    }
  }
  const auto covariance = [&](std::size_t a, std::size_t b) {
    return product[a][b] / n - (sum[a] / n) * (sum[b] / n);
  };
  for (std::size_t a = 0; a < kFactors; ++a) {
    for (std::size_t b = 0; b < a; ++b) {  // 5 sigma of 4000 draws is 0.08
      EXPECT_LT(std::abs(covariance(a, b)), 0.08 * std::sqrt(covariance(a, a) * covariance(b, b))) << a << b;
    }
  }
}

TEST(Sprites, CheckTheirOptions) {
  EXPECT_THAT(message_of<Error>([] { Sprites({.count = -1}); }), HasSubstr("sprites: count -1 is not legal"));
  EXPECT_THAT(message_of<Error>([] { Sprites({.size = 0}); }), HasSubstr("sprites: size 0 is not legal"));
}

}  // namespace
}  // namespace tapedeck::data
