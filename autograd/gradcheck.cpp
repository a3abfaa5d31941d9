#include <tapedeck/autograd/gradcheck.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <tapedeck/autograd/tape.h>
#include <tapedeck/core/random.h>
#include <tapedeck/ops/arithmetic.h>

namespace tapedeck {

namespace {

using Function = std::function<Variable(const Variables&)>;
using Values = std::vector<double>;

Values values_of(const Variable& x) {
  return x.tensor().to_vector<double>();
}

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

Variable random_like(const Variable& x, Generator& generator) {
  return randn(x.shape(), x.tensor().options(), generator);
}

/// The position of element `i`, in row-major order: "[1,0,2]".
std::string position(const Shape& shape, std::size_t i) {
  Shape at = shape;
  auto rest = static_cast<std::int64_t>(i);
  for (int d = shape.rank() - 1; d >= 0; --d) {
    at = at.with(d, rest % shape[d]);
    rest /= shape[d];
  }
  return to_string(at);
}

class Checker {
 public:
  Checker(const char* name, const Function& f, const Variables& inputs, const GradcheckOptions& options)
      : name_(name), f_(f), inputs_(inputs), options_(options) {
    for (std::size_t k = 0; k < inputs_.size(); ++k) {
      if (!inputs_[k].requires_grad()) continue;
      check(inputs_[k].dtype() == DType::float64, name_, ": input ", k, " is ", inputs_[k].dtype(),
            "; legal is float64");
      checked_.push_back(k);
    }
    check(!checked_.empty(), name_, ": no input requires a gradient");
  }

  void check_gradients() {
    const Variable y = f_(inputs_);
    check(y.dtype() == DType::float64, name_, ": f's result is ", y.dtype(), "; legal is float64");
    check(same_bits(values_of(y), values_of(f_(inputs_))), name_, ": two runs of f differ");
    Generator generator(options_.seed);
    cotangent_ = random_like(y, generator);
    analytic_ = gradients(y);
    const std::vector<Values> again = gradients(y);
    for (std::size_t c = 0; c < checked_.size(); ++c) {
      check(same_bits(analytic_[c], again[c]), name_, ": two runs of the gradient for input ", checked_[c],
            " differ");
      compare(checked_[c], "analytic", analytic_[c], "numeric", numeric(c));
    }
  }

  /// The gradient for each input must be the same when no other input requires one.
  void check_masks() {
    for (std::size_t c = 0; c < checked_.size(); ++c) {
      compare(checked_[c], "with the other inputs constant", gradient_alone(checked_[c]), "among them",
              analytic_[c]);
    }
  }

 private:
  std::vector<Values> gradients(const Variable& unrecorded) {
    Variables xs;
    for (std::size_t k : checked_) xs.push_back(inputs_[k]);
    Tape tape;
    const Variable y = f_(inputs_);
    check(y.requires_grad(), name_, ": f's result does not require a gradient, but its inputs do");
    const Values recorded = values_of(y), plain = values_of(unrecorded);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      if (close(recorded[i], plain[i])) continue;
      throw Error(concat(name_, ": element ", i, " at ", position(y.shape(), i), " of f's result is ",
                         recorded[i], " when recorded but ", plain[i], " when not"));
    }
    std::vector<Values> values;
    for (const Variable& g : tape.gradient(y, xs, {.gradient = cotangent_})) values.push_back(values_of(g));
    return values;
  }

  Values gradient_alone(std::size_t k) {
    Variables inputs = inputs_;
    for (Variable& input : inputs) {
      if (input.requires_grad() && input.identity() != inputs_[k].identity()) input = input.detach();
    }
    Tape tape;
    const Variable y = f_(inputs);
    if (!y.requires_grad()) return Values(static_cast<std::size_t>(inputs_[k].count()), 0.0);
    return values_of(tape.gradient(y, {inputs_[k]}, {.gradient = cotangent_})[0]);
  }

  /// The elements of an input of so many that are moved.
  std::vector<std::int64_t> moved_elements(std::int64_t count) {
    Generator generator(options_.seed + 2);
    const std::int64_t some = options_.elements > 0 ? std::min(options_.elements, count) : count;
    return randperm(count, generator).slice(0, some).to_vector<std::int64_t>();
  }

  /// The slopes of moved elements among the gradient of the others.
  Values numeric(std::size_t c) {
    const std::size_t k = checked_[c];
    const Tensor& x = inputs_[k].tensor();
    const Tensor original = x.clone();
    struct Restore {
      const Tensor &x, &original;
      ~Restore() { x.copy_(original); }
    } const restore{x, original};
    Values moved = values_of(inputs_[k]), slopes = analytic_[c];
    const Values v = values_of(cotangent_);
    for (const std::int64_t number : moved_elements(x.count())) {
      const auto place = static_cast<std::size_t>(number);
      double& element = moved[place];
      const double middle = element;
      const auto at = [&](double value) {
        element = value;
        x.copy_(Tensor::from(moved, x.shape()));
        return values_of(f_(inputs_));
      };
      const Values above = at(middle + options_.step), below = at(middle - options_.step);
      double difference = 0;
      for (std::size_t i = 0; i < v.size(); ++i) difference += v[i] * (above[i] - below[i]);
      slopes[place] = difference / ((middle + options_.step) - (middle - options_.step));
      element = middle;
    }
    return slopes;
  }

  bool close(double value, double expected) const {
    return std::abs(value - expected) <= options_.atol + options_.rtol * std::abs(expected);
  }

  void compare(std::size_t k, const char* what, const Values& a, const char* other, const Values& b) const {
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (close(a[i], b[i])) continue;
      throw Error(concat(name_, ": the gradient for input ", k, " ", inputs_[k].shape(), ", element ", i,
                         " at ", position(inputs_[k].shape(), i), ", is ", a[i], " (", what, ") but ", b[i],
                         " (", other, ")"));
    }
  }

  const char* name_;
  const Function& f_;
  const Variables& inputs_;
  const GradcheckOptions& options_;
  std::vector<std::size_t> checked_;
  Variable cotangent_;
  std::vector<Values> analytic_;
};

}  // namespace

void gradcheck(const Function& f, const Variables& inputs, const GradcheckOptions& options) {
  const NoTape alone;
  Checker checker("gradcheck", f, inputs, options);
  checker.check_gradients();
  checker.check_masks();
}

void gradgradcheck(const Function& f, const Variables& inputs, const GradcheckOptions& options) {
  const NoTape alone;
  Generator generator(options.seed + 1);
  Variables us;  // undefined where no gradient is wanted
  for (const Variable& input : inputs) {
    us.push_back(input.requires_grad() ? random_like(input, generator) : Variable());
  }
  Variables with_cotangent = inputs;
  with_cotangent.push_back(Variable::parameter(random_like(f(inputs), generator).tensor()));
  const auto contracted_gradient = [&](const Variables& given) {
    const Variables xs(given.begin(), given.end() - 1);
    Variables wanted;
    for (std::size_t k = 0; k < xs.size(); ++k) {
      if (us[k].defined()) wanted.push_back(xs[k]);
    }
    Variables gradients;
    {
      Tape tape;
      gradients = tape.gradient(f(xs), wanted, {.gradient = given.back()});
    }
    Variable total;
    auto gradient = gradients.begin();
    for (const Variable& u : us) {
      if (!u.defined()) continue;
      const Variable part = sum_to(*gradient++ * u, {});
      total = total.defined() ? total + part : part;
    }
    return total;
  };
  Checker("gradgradcheck", contracted_gradient, with_cotangent, options).check_gradients();
}

}  // namespace tapedeck
