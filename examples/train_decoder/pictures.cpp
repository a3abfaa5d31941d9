#include "pictures.h"

#include <algorithm>

#include "chart.h"

namespace train_decoder {

using namespace tapedeck;

namespace {

constexpr std::int64_t kPairs = 32, kPairColumns = 8;
constexpr std::int64_t kRows = 8, kSteps = 10;  // of interpolations
constexpr std::int64_t kShownSide = 64;         // smaller images are shown enlarged

/// `count` image numbers, evenly from the whole of the data.
std::vector<std::int64_t> spread(std::int64_t size, std::int64_t count) {
  count = std::min(size, count);
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(i * size / count);
  return numbers;
}

/// Images [n,c,h,w] as a PNG can show them: grey or RGB, and not too small.
Tensor shown(const Tensor& images) {
  NoTape no_tape;
  Variable x = images;
  if (x.size(1) == 2 || x.size(1) > 3) x = slice(x, 1, 0, x.size(1) == 2 ? 1 : 3);
  const std::int64_t scale = std::max<std::int64_t>(1, kShownSide / std::max(x.size(2), x.size(3)));
  if (scale > 1) x = upsample_nearest2d(x, {x.size(2) * scale, x.size(3) * scale});
  return x.tensor();
}

Tensor reconstructions(Trainer& trainer) {
  NoTape no_tape;
  const auto numbers = spread(trainer.dataset().size(), kPairs);
  Variables originals;
  for (const std::int64_t i : numbers) originals.emplace_back(trainer.dataset().get(i));
  const Tensor left = shown(stack(originals, 0).tensor()),
               right = shown(trainer.decode(trainer.codes(numbers)));
  Variables pairs;
  for (std::int64_t i = 0; i < left.size(0); ++i) {
    const Variable pair = cat({left.slice(i, i + 1), right.slice(i, i + 1)}, 0);
    pairs.emplace_back(data::make_grid(pair.tensor(), {.columns = 2, .padding = 1, .value = 1}));
  }
  return data::make_grid(stack(pairs, 0).tensor(), {.columns = kPairColumns, .padding = 4, .value = 1});
}

Tensor interpolations(Trainer& trainer) {
  NoTape no_tape;
  const auto ends = spread(trainer.dataset().size(), kRows + 1);
  Variables codes;
  for (std::size_t row = 0; row + 1 < ends.size(); ++row) {
    const Variable from = trainer.codes({ends[row]}), to = trainer.codes({ends[row + 1]});
    for (std::int64_t i = 0; i < kSteps; ++i) {
      const double t = static_cast<double>(i) / (kSteps - 1);
      codes.push_back(from * (1 - t) + to * t);
    }
  }
  if (codes.empty()) codes.emplace_back(trainer.codes(ends));  // of a single image
  return data::make_grid(shown(trainer.decode(cat(codes, 0).tensor())),
                         {.columns = kSteps, .padding = 2, .value = 1});
}

}  // namespace

void write_pictures(Trainer& trainer, const Metrics& metrics, const RunFolder& folder) {
  data::save_png(folder.file("reconstructions.png"), reconstructions(trainer));
  data::save_png(folder.file("interpolations.png"), interpolations(trainer));
  std::vector<std::int64_t> steps;
  Series loss{.title = "loss", .logarithmic = true}, quality{.title = "PSNR in dB"};
  for (const MetricsRow& row : metrics.rows()) {
    steps.push_back(row.step);
    loss.values.push_back(row.loss);
    quality.values.push_back(row.psnr);
  }
  data::save_png(folder.file("training.png"), draw_chart(steps, {loss, quality}));
}

}  // namespace train_decoder
