#include <tapedeck/ops/conv/gpu_terms.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include <tapedeck/ops/conv/gpu_estimate_factors.h>

namespace tapedeck::conv_estimate {

double microseconds(ConvAlgorithm algorithm, const ConvCall& c, const Terms& terms) {
  const auto index =
      std::find(std::begin(kEstimated), std::end(kEstimated), algorithm) - std::begin(kEstimated);
  const Terms& factors =
      kFactors[c.layout == Layout::nhwc][static_cast<int>(c.pass)][precision_index(c.operands)][index];
  if (factors == Terms{} || terms == Terms{}) return std::numeric_limits<double>::infinity();
  return std::inner_product(terms.begin(), terms.end(), factors.begin(), 0.0);
}

}  // namespace tapedeck::conv_estimate
