// Adam and AdamW.
#pragma once

#include <array>

#include <tapedeck/nn/optim/optimizer.h>

namespace tapedeck::optim {

/// Adam (Kingma and Ba, 2015), as torch.optim.Adam: weight decay is added to the gradient.
class Adam : public Optimizer {
 public:
  struct Options {
    double lr = 1e-3;
    std::array<double, 2> betas = {0.9, 0.999};  ///< each in [0, 1)
    double eps = 1e-8;
    double weight_decay = 0;
    bool amsgrad = false;  ///< divide by the largest second moment so far (Reddi et al., 2018)
  };
  Adam(const std::vector<ParamGroup>& groups, const Options& options)
      : Adam("Adam", groups, options, false) {}
  Adam(const Variables& parameters, const Options& options) : Adam({ParamGroup{parameters}}, options) {}

 protected:
  Adam(const char* kind, const std::vector<ParamGroup>& groups, const Options& options, bool decoupled);

 private:
  void update(const Group& group, const OptimizerBatch& batch) const override;
  Options options_;
  bool decoupled_;
};

/// Adam whose weight decay shrinks the parameter itself (Loshchilov and Hutter, 2019), as
/// torch.optim.AdamW.
class AdamW final : public Adam {
 public:
  struct Options {
    double lr = 1e-3;
    std::array<double, 2> betas = {0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 1e-2;
    bool amsgrad = false;
  };
  AdamW(const std::vector<ParamGroup>& groups, const Options& options)
      : Adam("AdamW", groups, {options.lr, options.betas, options.eps, options.weight_decay, options.amsgrad},
             true) {}
  AdamW(const Variables& parameters, const Options& options) : AdamW({ParamGroup{parameters}}, options) {}
};

}  // namespace tapedeck::optim
