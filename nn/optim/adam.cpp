#include <tapedeck/nn/optim/adam.h>

namespace tapedeck::optim {

namespace {

std::vector<std::string> slots(bool amsgrad) {
  if (amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  return {"exp_avg", "exp_avg_sq"};
}

}  // namespace

Adam::Adam(const char* kind, const std::vector<ParamGroup>& groups, const Options& options, bool decoupled)
    : Optimizer(kind, groups, {{}, options.lr, options.betas[0], options.weight_decay},
                slots(options.amsgrad)),
      options_(options),
      decoupled_(decoupled) {
  for (const Group& group : this->groups()) {
    check(group.momentum < 1, kind, ": beta1 ", group.momentum, " is not legal; legal is [0, 1)");
  }
  check(options.betas[1] >= 0 && options.betas[1] < 1, kind, ": beta2 ", options.betas[1],
        " is not legal; legal is [0, 1)");
  check(options.eps >= 0, kind, ": eps ", options.eps, " is not legal; legal is 0 or more");
}

void Adam::update(const Group& group, const OptimizerBatch& batch) const {
  adam_step(batch,
            {group.lr, group.momentum, options_.betas[1], options_.eps, group.weight_decay, decoupled_});
}

}  // namespace tapedeck::optim
