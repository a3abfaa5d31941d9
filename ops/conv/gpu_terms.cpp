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
  const int precision = c.operands.element_bytes == 2 ? 2 : c.operands.parts == 3 ? 0 : 1;
  const Terms& factors = kFactors[c.layout == Layout::nhwc][static_cast<int>(c.pass)][precision][index];
  if (factors == Terms{} || terms == Terms{}) return std::numeric_limits<double>::infinity();
  return std::inner_product(terms.begin(), terms.end(), factors.begin(), 0.0);
}

}  // namespace tapedeck::conv_estimate
