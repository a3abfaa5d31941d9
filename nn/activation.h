// Activation functions as modules. See ops/activation.h and ops/softmax.h for the formulas.
#pragma once

#include <tapedeck/nn/module.h>
#include <tapedeck/ops/activation.h>
#include <tapedeck/ops/softmax.h>

namespace tapedeck::nn {

class ReLU final : public Module {
 public:
  Variable forward(const Variable& x) override { return relu(x); }
  std::optional<double> negative_slope() const override { return 0; }
  const char* kind() const override { return "ReLU"; }
};

class LeakyReLU final : public Module {
 public:
  struct Options {
    double negative_slope = 0.01;
  };
  LeakyReLU() : LeakyReLU(Options{}) {}
  explicit LeakyReLU(const Options& options) : options_(options) {}
  Variable forward(const Variable& x) override { return leaky_relu(x, options_.negative_slope); }
  std::optional<double> negative_slope() const override { return options_.negative_slope; }
  const char* kind() const override { return "LeakyReLU"; }
  std::string details() const override { return concat("slope ", options_.negative_slope); }

 private:
  Options options_;
};

class ELU final : public Module {
 public:
  struct Options {
    double alpha = 1;
  };
  ELU() : ELU(Options{}) {}
  explicit ELU(const Options& options) : options_(options) {}
  Variable forward(const Variable& x) override { return elu(x, options_.alpha); }
  const char* kind() const override { return "ELU"; }
  std::string details() const override { return concat("alpha ", options_.alpha); }

 private:
  Options options_;
};

class GELU final : public Module {
 public:
  struct Options {
    Gelu approximate = Gelu::exact;
  };
  GELU() : GELU(Options{}) {}
  explicit GELU(const Options& options) : options_(options) {}
  Variable forward(const Variable& x) override { return gelu(x, options_.approximate); }
  const char* kind() const override { return "GELU"; }
  std::string details() const override { return options_.approximate == Gelu::tanh ? "tanh" : ""; }

 private:
  Options options_;
};

class SiLU final : public Module {
 public:
  Variable forward(const Variable& x) override { return silu(x); }
  const char* kind() const override { return "SiLU"; }
};

class Mish final : public Module {
 public:
  Variable forward(const Variable& x) override { return mish(x); }
  const char* kind() const override { return "Mish"; }
};

class Softplus final : public Module {
 public:
  struct Options {
    double beta = 1, threshold = 20;
  };
  Softplus() : Softplus(Options{}) {}
  explicit Softplus(const Options& options) : options_(options) {}
  Variable forward(const Variable& x) override { return softplus(x, options_.beta, options_.threshold); }
  const char* kind() const override { return "Softplus"; }
  std::string details() const override { return concat("beta ", options_.beta); }

 private:
  Options options_;
};

class Tanh final : public Module {
 public:
  Variable forward(const Variable& x) override { return tanh(x); }
  const char* kind() const override { return "Tanh"; }
};

class Sigmoid final : public Module {
 public:
  Variable forward(const Variable& x) override { return sigmoid(x); }
  const char* kind() const override { return "Sigmoid"; }
};

class Hardtanh final : public Module {
 public:
  struct Options {
    double min_val = -1, max_val = 1;
  };
  Hardtanh() : Hardtanh(Options{}) {}
  explicit Hardtanh(const Options& options) : options_(options) {}
  Variable forward(const Variable& x) override { return hardtanh(x, options_.min_val, options_.max_val); }
  const char* kind() const override { return "Hardtanh"; }
  std::string details() const override { return concat(options_.min_val, " to ", options_.max_val); }

 private:
  Options options_;
};

class Softmax final : public Module {
 public:
  struct Options {
    int dim = 1;
  };
  Softmax() : Softmax(Options{}) {}
  explicit Softmax(const Options& options) : options_(options) {}
  Variable forward(const Variable& x) override { return softmax(x, options_.dim); }
  const char* kind() const override { return "Softmax"; }
  std::string details() const override { return concat("dimension ", options_.dim); }

 private:
  Options options_;
};

class LogSoftmax final : public Module {
 public:
  struct Options {
    int dim = 1;
  };
  LogSoftmax() : LogSoftmax(Options{}) {}
  explicit LogSoftmax(const Options& options) : options_(options) {}
  Variable forward(const Variable& x) override { return log_softmax(x, options_.dim); }
  const char* kind() const override { return "LogSoftmax"; }
  std::string details() const override { return concat("dimension ", options_.dim); }

 private:
  Options options_;
};

}  // namespace tapedeck::nn
