#include <tapedeck/nn/optim/rmsprop.h>

namespace tapedeck::optim {

namespace {

std::vector<std::string> slots(bool centered, const char* momentum_buffer) {
  if (centered) return {"square_avg", "grad_avg", momentum_buffer};
  return {"square_avg", momentum_buffer};
}

}  // namespace

RMSprop::RMSprop(const std::vector<ParamGroup>& groups, const Options& options)
    : Optimizer("RMSprop", groups, {{}, options.lr, options.momentum, options.weight_decay},
                slots(options.centered, kMomentumBuffer)),
      options_(options) {
  check(options.alpha >= 0 && options.alpha <= 1, "RMSprop: alpha ", options.alpha,
        " is not legal; legal is [0, 1]");
  check(options.eps >= 0, "RMSprop: eps ", options.eps, " is not legal; legal is 0 or more");
}

void RMSprop::update(const Group& group, const OptimizerBatch& batch) const {
  rmsprop_step(
      batch, {group.lr, options_.alpha, options_.eps, group.weight_decay, group.momentum, options_.centered});
}

}  // namespace tapedeck::optim
