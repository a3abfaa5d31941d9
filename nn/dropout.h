// Dropout as a module.
#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/nn/module.h>

namespace tapedeck::nn {

/// In training mode each element is zeroed with probability p and the others are scaled by 1/(1 - p); in
/// evaluation mode y = x. The numbers are the thread's default generator's, or those of a generator that
/// outlives the module.
class Dropout final : public Module {
 public:
  struct Options {
    double p = 0.5;  ///< in [0, 1]
  };
  Dropout() : Dropout(Options{}) {}
  explicit Dropout(const Options& options);
  Dropout(const Options& options, Generator& generator);
  Variable forward(const Variable& x) override;
  const char* kind() const override { return "Dropout"; }
  std::string details() const override { return concat("p ", options_.p); }

 private:
  Options options_;
  Generator* generator_ = nullptr;
};

}  // namespace tapedeck::nn
