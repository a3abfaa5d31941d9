// Stochastic gradient descent.
#pragma once

#include <tapedeck/nn/optim/optimizer.h>

namespace tapedeck::optim {

/// Stochastic gradient descent with momentum, as torch.optim.SGD.
class SGD final : public Optimizer {
 public:
  struct Options {
    double lr = 1e-3;
    double momentum = 0;
    double dampening = 0;
    double weight_decay = 0;
    bool nesterov = false;  ///< needs momentum and no dampening
  };
  SGD(const std::vector<ParamGroup>& groups, const Options& options);
  SGD(const Variables& parameters, const Options& options) : SGD({ParamGroup{parameters}}, options) {}

 private:
  void update(const Group& group, const OptimizerBatch& batch) const override;
  Options options_;
};

}  // namespace tapedeck::optim
