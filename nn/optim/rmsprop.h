// RMSprop.
#pragma once

#include <tapedeck/nn/optim/optimizer.h>

namespace tapedeck::optim {

/// RMSprop (Hinton, 2012; the centered version is Graves, 2013), as torch.optim.RMSprop.
class RMSprop final : public Optimizer {
 public:
  struct Options {
    double lr = 1e-2;
    double alpha = 0.99;  ///< decay of the second moment, in [0, 1]
    double eps = 1e-8;
    double weight_decay = 0;
    double momentum = 0;
    bool centered = false;  ///< divide by the deviation instead of the root of the second moment
  };
  RMSprop(const std::vector<ParamGroup>& groups, const Options& options);
  RMSprop(const Variables& parameters, const Options& options) : RMSprop({ParamGroup{parameters}}, options) {}

 private:
  void update(const Group& group, const OptimizerBatch& batch) const override;
  Options options_;
};

}  // namespace tapedeck::optim
