#include <tapedeck/nn/optim/sgd.h>

namespace tapedeck::optim {

SGD::SGD(const std::vector<ParamGroup>& groups, const Options& options)
    : Optimizer("SGD", groups, {{}, options.lr, options.momentum, options.weight_decay}, {kMomentumBuffer}),
      options_(options) {
  check(!options.nesterov || (options.momentum > 0 && options.dampening == 0), "SGD: momentum ",
        options.momentum, " and dampening ", options.dampening,
        " are not legal with nesterov; legal are momentum above 0 and dampening 0");
}

void SGD::update(const Group& group, const OptimizerBatch& batch) const {
  sgd_step(batch, {group.lr, group.momentum, options_.dampening, group.weight_decay, options_.nesterov});
}

}  // namespace tapedeck::optim
