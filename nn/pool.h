// Pooling as modules. See ops/pool.h for what they compute.
#pragma once

#include <tapedeck/nn/module.h>
#include <tapedeck/ops/pool.h>

namespace tapedeck::nn {

class MaxPool2d final : public Module {
 public:
  using Options = MaxPool2dOptions;
  explicit MaxPool2d(const Options& options) : options_(options) {}
  Variable forward(const Variable& x) override { return max_pool2d(x, options_); }
  const char* kind() const override { return "MaxPool2d"; }
  std::string details() const override {
    return concat("kernel ", options_.kernel_size.h, "x", options_.kernel_size.w);
  }

 private:
  Options options_;
};

class AvgPool2d final : public Module {
 public:
  using Options = AvgPool2dOptions;
  explicit AvgPool2d(const Options& options) : options_(options) {}
  Variable forward(const Variable& x) override { return avg_pool2d(x, options_); }
  const char* kind() const override { return "AvgPool2d"; }
  std::string details() const override {
    return concat("kernel ", options_.kernel_size.h, "x", options_.kernel_size.w);
  }

 private:
  Options options_;
};

class AdaptiveAvgPool2d final : public Module {
 public:
  struct Options {
    Size2 output_size = 1;
  };
  explicit AdaptiveAvgPool2d(const Options& options) : options_(options) {}
  Variable forward(const Variable& x) override { return adaptive_avg_pool2d(x, options_.output_size); }
  const char* kind() const override { return "AdaptiveAvgPool2d"; }
  std::string details() const override {
    return concat("to ", options_.output_size.h, "x", options_.output_size.w);
  }

 private:
  Options options_;
};

}  // namespace tapedeck::nn
