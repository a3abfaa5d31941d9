#include <tapedeck/nn/dropout.h>

#include <tapedeck/ops/dropout.h>

namespace tapedeck::nn {

Dropout::Dropout(const Options& options) : options_(options) {
  check(options.p >= 0 && options.p <= 1, "Dropout: p ", options.p, " is not legal; legal is [0, 1]");
}

Dropout::Dropout(const Options& options, Generator& generator) : Dropout(options) {
  generator_ = &generator;
}

Variable Dropout::forward(const Variable& x) {
  return dropout(x, options_.p, is_training(), generator_ != nullptr ? *generator_ : default_generator());
}

}  // namespace tapedeck::nn
