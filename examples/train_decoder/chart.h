// The loss curve as a picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tapedeck/core/tensor.h>

namespace train_decoder {

struct Series {
  std::string title;
  bool logarithmic = false;         // values that are not positive are left out
  std::vector<double> values = {};  // one for each step; not finite ones are left out
};

/// Panels above each other, one a series, over a common axis of steps; float32 [3, h, w] in [0, 1].
tapedeck::Tensor draw_chart(const std::vector<std::int64_t>& steps, const std::vector<Series>& panels);

}  // namespace train_decoder
