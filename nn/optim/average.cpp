#include <tapedeck/nn/optim/average.h>

#include <algorithm>
#include <map>

#include <tapedeck/core/captured_step.h>
#include <tapedeck/ops/optimizer_step.h>

namespace tapedeck::optim {

ExponentialMovingAverage::ExponentialMovingAverage(Variables parameters, const Options& options)
    : parameters_(std::move(parameters)), options_(options) {
  check(options.decay >= 0 && options.decay <= 1, "ExponentialMovingAverage: decay ", options.decay,
        " is not legal; legal is [0, 1]");
  for (const Variable& parameter : parameters_) {
    const Tensor& p = parameter.tensor();
    averages_.push_back(size_of(p.dtype()) == 2 ? p.to(DType::float32) : p.clone());
  }
}

void ExponentialMovingAverage::update() {
  check(!swapped_, "ExponentialMovingAverage: the averages are swapped in");
  if (parameters_.empty()) return;
  const auto next_decay = [this] {
    ++updates_;
    const auto t = static_cast<double>(updates_);
    return options_.warmup ? std::min(options_.decay, (1 + t) / (10 + t)) : options_.decay;
  };
  Tensors values;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    values.push_back(parameters_[i].tensor());
    averages_[i] = averages_[i].to(values[i].layout());  // which a module may have changed
  }
  const Tensor live = replayed_number(averages_[0].device(), next_decay);
  update_averages(averages_, values, live.defined() ? options_.decay : next_decay(), live);
}

ExponentialMovingAverage::Scope::Scope(ExponentialMovingAverage& average) : average_(average) {
  check(!average.swapped_, "ExponentialMovingAverage: the averages are swapped in already");
  Tensors copies;
  for (std::size_t i = 0; i < average.parameters_.size(); ++i) {
    const Tensor& p = average.parameters_[i].tensor();
    held_.push_back(p);
    copies.push_back(Tensor::empty_like(p));
    copies.back().copy_(average.averages_[i]);
  }
  for (std::size_t i = 0; i < copies.size(); ++i) average.parameters_[i].set_tensor(copies[i]);
  average.swapped_ = true;
}

ExponentialMovingAverage::Scope::~Scope() {
  for (std::size_t i = 0; i < held_.size(); ++i) average_.parameters_[i].set_tensor(held_[i]);
  average_.swapped_ = false;
}

nn::StateDict ExponentialMovingAverage::state_dict() const {
  nn::StateDict state = {{"updates", Tensor::from<std::int64_t>({updates_}, {})}};
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    state.emplace_back(concat("average.", i), averages_[i]);
  }
  return state;
}

void ExponentialMovingAverage::load_state_dict(const nn::StateDict& state) {
  const std::map<std::string, Tensor> given(state.begin(), state.end());
  std::string problems;
  for (const auto& [name, own] : state_dict()) {
    const auto found = given.find(name);
    if (found == given.end() || !found->second.defined()) {
      problems += concat("; ", name, " is missing");
    } else if (found->second.shape() != own.shape()) {
      problems += concat("; ", name, " has shape ", found->second.shape(), "; legal is ", own.shape());
    }
  }
  if (given.size() > averages_.size() + 1) problems += "; there are more names than averages";
  check(problems.empty(), "ExponentialMovingAverage: the state does not fit", problems);
  updates_ = given.at("updates").to_vector<std::int64_t>()[0];
  for (std::size_t i = 0; i < averages_.size(); ++i) averages_[i].copy_(given.at(concat("average.", i)));
}

}  // namespace tapedeck::optim
