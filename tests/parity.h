// What PyTorch computed (tests/parity, made by make_parity.py), for tests that compare with it.
#pragma once

#include <tapedeck/nn/data/safetensors.h>
#include <tapedeck/tapedeck.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>

namespace tapedeck::test {

using TensorMap = std::map<std::string, Tensor>;

/// TAPEDECK_TEST_DATA in the environment says where the data are, if not where the test was built.
inline TensorMap read(const std::string& file) {
  const char* const there = std::getenv("TAPEDECK_TEST_DATA");
  const std::string folder = there != nullptr ? there : TAPEDECK_TEST_DATA;
  const auto state = data::load_safetensors(folder + "/../parity/" + file);
  return {state.begin(), state.end()};
}

/// max |a - b| / max |b|: relative to the tensor, so that sums that cancel do not count against it.
inline double relative_error(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  double worst = 0, scale = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) return INFINITY;
    worst = std::max(worst, std::abs(x[i] - y[i]));
    scale = std::max(scale, std::abs(y[i]));
  }
  return worst / std::max(scale, 1e-30);
}

}  // namespace tapedeck::test
