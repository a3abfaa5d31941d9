// What the tape refuses, and what it notices.
#include <tapedeck/tapedeck.h>

#include <cmath>
#include <functional>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "errors.h"

namespace tapedeck {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Variable leaf(std::initializer_list<double> values) {
  return Variable::parameter(Tensor::from(values, {static_cast<std::int64_t>(values.size())}));
}

TEST(Tape, AnomalyModeNamesTheOp) {
  set_anomaly_mode(true);
  const Variable x = leaf({0});
  try {
    (void)(x / x);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("div: forward made a NaN or Inf in result 0 of shape [1]"));
  }
  set_anomaly_mode(false);
}

TEST(Tape, AnomalyModeNamesTheOpThatFailsBackward) {
  struct Root final : Op {  // as if its derivative were forgotten at 0
    const char* name() const override { return "root"; }
    Tensors forward(OpContext& c, const Tensors& x) override {
      c.save_input(0);
      return {affine(x[0], 1, 0).tensor()};
    }
    Variables backward(const OpContext& c, const Variables& gy) override { return {gy[0] / c.input(0)}; }
  };
  const Variable x = leaf({1, 0, 4});
  Tape tape;
  const Variable y = sum_to(call<Root>({x}), {});
  set_anomaly_mode(true);
  EXPECT_THAT(error_of([&] { tape.backward(y); }), HasSubstr("div: forward made a NaN or Inf in result 0"));
  set_anomaly_mode(false);

  struct Lost final : Op {
    const char* name() const override { return "lost"; }
    Tensors forward(OpContext&, const Tensors& x) override { return {affine(x[0], 1, 0).tensor()}; }
    Variables backward(const OpContext&, const Variables& gy) override {
      return {Tensor::full(gy[0].shape(), std::nan(""), gy[0].tensor().options())};
    }
  };
  Tape another;
  const Variable z = sum_to(call<Lost>({x}), {});
  set_anomaly_mode(true);
  EXPECT_THAT(
      error_of([&] { another.backward(z); }),
      HasSubstr(
          "lost: backward made a NaN or Inf in result 0 of shape [3] from output gradients of shapes [3]"));
  set_anomaly_mode(false);
  EXPECT_FALSE(x.grad().defined());
}

TEST(Tape, AnErrorLeavesGradientsAndTheTapeUsable) {
  struct Failing final : Op {
    const char* name() const override { return "failing"; }
    Tensors forward(OpContext&, const Tensors& x) override { return {affine(x[0], 1, 0).tensor()}; }
    Variables backward(const OpContext&, const Variables&) override { throw Error("no way back"); }
  };
  const Variable x = leaf({2}), z = leaf({3});
  Tape tape;
  const Variable good = z * z;
  const Variable bad = call<Failing>({x}) * z;
  EXPECT_THAT(error_of([&] { tape.backward(bad); }), HasSubstr("no way back"));
  EXPECT_FALSE(x.grad().defined() || z.grad().defined());
  const Variable a = leaf({2}), b = leaf({3});
  b.register_hook([](const Variable&) -> Variable { throw Error("a hook fails"); });
  const Variable product = a * b;
  EXPECT_THAT(error_of([&] { tape.backward(product); }), HasSubstr("a hook fails"));
  EXPECT_FALSE(a.grad().defined() || b.grad().defined());
  const Variable later = good * 2.0;  // it still records
  tape.backward(later);
  EXPECT_DOUBLE_EQ(z.grad().item(), 12);
}

TEST(Tape, RefusesWhatItCannotWalk) {
  const Variable x = leaf({2}), wide = leaf({1, 2});
  Variable elsewhere;
  {
    Tape other;
    elsewhere = x * x;
  }
  Tape tape;
  const Variable y = wide * wide;
  EXPECT_THAT(error_of([&] { tape.backward(y); }),
              HasSubstr("y has shape [2], so its gradient must be given"));
  EXPECT_THAT(error_of([&] { tape.backward(y, {.gradient = Tensor::ones({3})}); }),
              HasSubstr("the gradient is float32 [3] but y is float64 [2]"));
  EXPECT_THAT(error_of([&] { tape.backward(elsewhere); }), HasSubstr("y was not recorded on this tape"));
  EXPECT_THAT(error_of([&] { tape.backward(y.detach()); }), HasSubstr("y does not require a gradient"));
  EXPECT_THAT(error_of([&] { (void)tape.gradient(y, {}); }), HasSubstr("gradient: xs is empty"));
  EXPECT_THAT(error_of([&] {
                (void)tape.gradient(y, {wide, y.detach()});
              }),
              HasSubstr("xs[1] does not require a gradient"));
  EXPECT_EQ(tape.gradient(y, {x}, {.gradient = Tensor::ones({2}, {.dtype = DType::float64})})[0].item(), 0);
}

TEST(Tape, NoticesWhatChangedBetweenForwardAndBackward) {
  const Tensor changed = Tensor::full({4}, 3, {.dtype = DType::float64});
  const Variable x = Variable::parameter(changed), w = Variable::parameter(changed.clone());
  const auto expect_noticed = [&](const std::function<void()>& change, const std::string& text) {
    Tape tape;
    const Variable y = sum(mul(w, x));
    change();
    EXPECT_THAT(error_of([&] { tape.backward(y); }), HasSubstr(text));
    EXPECT_FALSE(w.grad().defined());
  };
  const std::string in_place = "mul: input 1, float64 [4] on cpu, which backward reads, was changed in place";
  expect_noticed([&] { changed.fill_(4); }, in_place + " after forward: it is at version 2 and was at 1;");
  expect_noticed([&] { changed.copy_(w.tensor()); }, in_place);
  expect_noticed([&] { changed.slice(1, 2).fill_(0); }, in_place);  // a view of the same storage
  expect_noticed([&] { changed.reshape({2, 2}).copy_(Tensor::ones({2, 2})); }, in_place);
  expect_noticed([&] { normal_(changed, 0, 1); }, in_place);
  expect_noticed(
      [&] {
        changed.data<double>()[0] = 1;
        changed.bump_version();
      },
      in_place);
  expect_noticed([&] { x.set_tensor(changed.clone()); },
                 "mul: input 1, which backward reads, was replaced by");
  x.set_tensor(changed);

  const auto expect_step_noticed = [&](optim::Optimizer&& optimizer) {
    x.set_grad(Tensor::ones({4}, {.dtype = DType::float64}));
    expect_noticed([&] { optimizer.step(); }, in_place);
  };
  expect_step_noticed(optim::SGD({x}, {.lr = 0.1}));
  expect_step_noticed(optim::Adam({x}, {.lr = 0.1}));
  expect_step_noticed(optim::RMSprop({x}, {.lr = 0.1}));
}

TEST(Tape, NoticesAChangedResultAndAChangedSavedTensor) {
  const Variable x = leaf({0.5});
  {
    Tape tape;
    const Variable y = exp(x);
    y.tensor().fill_(7);
    EXPECT_THAT(error_of([&] { tape.backward(y); }), HasSubstr("exp: output 0, float64 [1] on cpu, which"));
  }
  struct Keeper final : Op {
    explicit Keeper(Tensor mask) : mask_(std::move(mask)) {}
    const char* name() const override { return "keeper"; }
    Tensors forward(OpContext& c, const Tensors& in) override {
      c.save(mask_);
      return {in[0].clone()};
    }
    Variables backward(const OpContext& c, const Variables& gy) override { return {gy[0] * c.saved(0)}; }
    Tensor mask_;
  };
  const Tensor mask = Tensor::ones({1}, {.dtype = DType::float64});
  Tape tape;
  const Variable y = call<Keeper>({x}, mask);
  mask.fill_(0);
  EXPECT_THAT(error_of([&] { tape.backward(y); }), HasSubstr("keeper: saved tensor 0, float64 [1] on cpu"));
}

TEST(Tape, WhatBackwardDoesNotReadMayChange) {
  const Variable x = leaf({1, 2}), w = leaf({3, 4}), frozen = leaf({5, 6});
  Tape tape;
  const Variable sum_of = x + w, product = x * frozen.detach();
  const Variable y = sum(sum_of) + sum(product);
  x.tensor().fill_(100);       // read by no backward: frozen wants no gradient
  sum_of.tensor().fill_(100);  // an addition keeps nothing
  tape.backward(y, {.retain = true});
  EXPECT_THAT(x.grad().tensor().to_vector<double>(), ElementsAre(6, 7));
  frozen.tensor().fill_(0);
  EXPECT_THAT(error_of([&] { tape.backward(y); }), HasSubstr("mul: input 1"));
}

TEST(Tape, RefusesGradientsThatDoNotFit) {
  enum class Wrong { shape, dtype, count };
  struct Misfit final : Op {
    explicit Misfit(Wrong wrong) : wrong_(wrong) {}
    const char* name() const override { return "misfit"; }
    Tensors forward(OpContext&, const Tensors& x) override { return {affine(x[0], 1, 0).tensor()}; }
    Variables backward(const OpContext&, const Variables& gy) override {
      if (wrong_ == Wrong::shape) return {sum_to(gy[0], {1})};
      if (wrong_ == Wrong::dtype) return {gy[0].tensor().to(DType::float32)};
      return {gy[0], gy[0]};
    }
    Wrong wrong_;
  };
  const auto error_with = [](Wrong wrong) {
    const Variable x = leaf({1, 2});
    Tape tape;
    const Variable y = call<Misfit>({x}, wrong);
    return error_of([&] { tape.backward(y, {.gradient = Tensor::ones({2}, {.dtype = DType::float64})}); });
  };
  EXPECT_THAT(error_with(Wrong::shape),
              HasSubstr("misfit: backward made a gradient float64 [1] for input 0, which is float64 [2]"));
  EXPECT_THAT(error_with(Wrong::dtype),
              HasSubstr("made a gradient float32 [2] for input 0, which is float64"));
  EXPECT_THAT(error_with(Wrong::count), HasSubstr("misfit: backward made 2 gradients for 1 inputs"));
}

TEST(Tape, AHookMustKeepTheGradientsShape) {
  const Variable x = Variable::parameter(Tensor::ones({2}));
  x.register_hook([](const Variable&) { return Variable(Tensor::ones({3})); });
  Tape tape;
  EXPECT_THROW(tape.backward(sum(x * x)), Error);
  EXPECT_THROW(x.set_grad(Tensor::ones({1})), Error);
}

}  // namespace
}  // namespace tapedeck
