#include <tapedeck/nn/module.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tapedeck/autograd/tape.h>
#include <tapedeck/ops/arithmetic.h>

#include "errors.h"

namespace tapedeck::nn {
namespace {

using ::testing::ElementsAre;

/// y = x * scale + offset, counting its calls.
struct Scale final : Module {
  explicit Scale(double value) : scale(register_parameter("scale", Tensor::full({2}, value))) {}
  Variable forward(const Variable& x) override { return x * scale + offset; }
  const char* kind() const override { return "Scale"; }
  std::string details() const override { return "of two"; }

  Variable scale;
  Variable offset = register_buffer("offset", Tensor::zeros({2}));
  Variable count = register_buffer("count", Tensor::zeros({}, {.dtype = DType::int64}));
};

struct Nest final : Module {
  Scale first = register_module("first", Scale(2));
  Sequential rest = register_module("rest", Sequential(Scale(3), Scale(5)));
  Variable bias = register_parameter("bias", Tensor::ones({2}));
  Variable forward(const Variable& x) override { return rest(first(x)) + bias; }
  const char* kind() const override { return "Nest"; }
};

std::vector<std::string> names(const auto& list) {
  std::vector<std::string> result;
  for (const auto& [name, value] : list) result.push_back(name);
  return result;
}

TEST(Module, NamesParametersAndBuffersByPath) {
  Nest nest;
  EXPECT_THAT(names(nest.named_parameters()),
              ElementsAre("bias", "first.scale", "rest.0.scale", "rest.1.scale"));
  EXPECT_THAT(names(nest.named_buffers()), ElementsAre("first.offset", "first.count", "rest.0.offset",
                                                       "rest.0.count", "rest.1.offset", "rest.1.count"));
  EXPECT_THAT(names(nest.state_dict()),
              ElementsAre("bias", "first.scale", "first.offset", "first.count", "rest.0.scale",
                          "rest.0.offset", "rest.0.count", "rest.1.scale", "rest.1.offset", "rest.1.count"));
  EXPECT_EQ(nest.parameter_count(), 8);
}

TEST(Module, ComputesWithItsChildren) {
  Nest nest;
  EXPECT_THAT(nest(Tensor::from<float>({1, 2}, {2})).tensor().to_vector<float>(), ElementsAre(31, 61));
}

TEST(Module, CopiesShareEverything) {
  Nest nest;
  Nest copy = nest;
  copy.eval();
  EXPECT_FALSE(nest.is_training());
  EXPECT_FALSE(nest.rest[1].is_training());
  nest.first.scale.set_tensor(Tensor::zeros({2}));
  EXPECT_THAT(copy(Tensor::ones({2})).tensor().to_vector<float>(), ElementsAre(1, 1));
}

TEST(Module, ASharedParameterComesOnce) {
  Scale tied(2);
  Sequential twice(tied, tied);
  EXPECT_THAT(names(twice.named_parameters()), ElementsAre("0.scale"));
  EXPECT_EQ(twice.parameter_count(), 2);
  EXPECT_EQ(twice.state_dict().size(), 6u);  // as in PyTorch
}

TEST(Module, LoadsAStateAndNamesEveryMisfit) {
  Nest from, to;
  from.first.scale.tensor().fill_(7);
  from.first.count.tensor().fill_(3);
  to.load_state_dict(from.state_dict());
  EXPECT_EQ(to.first.scale.tensor().to_vector<float>()[0], 7);
  EXPECT_EQ(to.first.count.item(), 3);
  EXPECT_FALSE(to.first.scale.tensor().shares_storage(from.first.scale.tensor()));

  StateDict wrong = from.state_dict();
  wrong[0].second = Tensor::ones({5});
  wrong[1].first = "firt.scale";
  wrong[2].second.fill_(9);
  expect_error(
      [&] { to.load_state_dict(wrong); },
      "load_state_dict: the state does not fit; bias has shape [5] but the module's has [2]; first.scale "
      "is missing; firt.scale is unknown");
  EXPECT_EQ(to.first.offset.tensor().to_vector<float>()[0], 0);
}

TEST(Module, LoadsOtherDtypes) {
  Scale to(1);
  to.load_state_dict({{"scale", Tensor::full({2}, 0.5, {.dtype = DType::float64})},
                      {"offset", Tensor::zeros({2})},
                      {"count", Tensor::ones({}, {.dtype = DType::int64})}});
  EXPECT_EQ(to.scale.dtype(), DType::float32);
  EXPECT_EQ(to.scale.tensor().to_vector<float>()[1], 0.5f);
}

TEST(Module, ConvertsFloatingStateWithItsGradients) {
  Nest nest;
  nest.bias.set_grad(Tensor::ones({2}));
  nest.to(DType::float64);
  EXPECT_EQ(nest.bias.dtype(), DType::float64);
  EXPECT_EQ(nest.bias.grad().dtype(), DType::float64);
  EXPECT_EQ(nest.first.offset.dtype(), DType::float64);
  EXPECT_EQ(nest.first.count.dtype(), DType::int64);
  expect_error([&] { nest.to(DType::int64); }, "to: dtype int64 is not legal");
}

TEST(Module, FreezesAndZeroesGradients) {
  Nest nest;
  const auto backward = [&] {
    Tape tape;
    tape.backward(sum_to(nest(Tensor::ones({2})), {}));
  };
  nest.first.set_requires_grad(false);
  backward();
  EXPECT_FALSE(nest.first.scale.grad().defined());
  EXPECT_TRUE(nest.bias.grad().defined());
  nest.zero_grad();
  EXPECT_FALSE(nest.bias.grad().defined());
  nest.first.set_requires_grad(true);
  backward();
  EXPECT_TRUE(nest.first.scale.grad().defined());
}

TEST(Module, HooksSeeAndReplace) {
  Nest nest;
  std::vector<std::string> seen;
  nest.rest.register_forward_pre_hook([&](const Module& m, const Variable&) { seen.push_back(m.kind()); });
  nest.first.register_forward_hook([&](const Module& m, const Variable& x, const Variable& y) {
    seen.push_back(concat(m.kind(), " ", x.shape(), " ", y.shape()));
    return y * 0.0;
  });
  EXPECT_THAT(nest(Tensor::ones({2})).tensor().to_vector<float>(), ElementsAre(1, 1));
  EXPECT_THAT(seen, ElementsAre("Scale [2] [2]", "Sequential"));
  nest.first.clear_hooks();
  EXPECT_THAT(nest(Tensor::ones({2})).tensor().to_vector<float>(), ElementsAre(31, 31));
}

TEST(Module, AHookThatAddsAndClearsHooksChangesTheNextCall) {
  Nest nest;
  std::vector<std::string> seen;
  const auto pre_hook = [&](const std::string& name) {
    return [&seen, name](const Module&, const Variable&) { seen.push_back(name); };
  };
  nest.register_forward_pre_hook([&](const Module&, const Variable&) {
    for (int i = 0; i < 20; ++i) nest.register_forward_pre_hook(pre_hook("added"));  // moves the list
    seen.push_back("first");
  });
  nest.register_forward_hook(
      [&, text = std::string(100, 'x')](const Module&, const Variable&, const Variable&) {
        nest.clear_hooks();  // with this one, which goes on
        seen.push_back(text);
        return Variable();
      });
  nest.register_forward_hook([&](const Module&, const Variable&, const Variable&) {
    seen.push_back("last");
    return Variable();
  });
  nest(Tensor::ones({2}));
  EXPECT_THAT(seen, ElementsAre("first", std::string(100, 'x'), "last"));
  nest(Tensor::ones({2}));
  EXPECT_EQ(seen.size(), 3u);
}

TEST(Module, ApplyVisitsChildrenFirst) {
  Nest nest;
  std::vector<std::string> kinds;
  nest.apply([&](Module& m) {
    kinds.push_back(m.kind());
    if (auto* scale = dynamic_cast<Scale*>(&m)) scale->scale.tensor().fill_(0);
  });
  EXPECT_THAT(kinds, ElementsAre("Scale", "Scale", "Scale", "Sequential", "Nest"));
  EXPECT_THAT(nest(Tensor::ones({2})).tensor().to_vector<float>(), ElementsAre(1, 1));
}

TEST(Module, PrintsItsTree) {
  EXPECT_EQ(to_string(Nest()),
            "Nest                    bias [2]   2\n"
            "  first: Scale(of two)  scale [2]  2\n"
            "  rest: Sequential\n"
            "    0: Scale(of two)    scale [2]  2\n"
            "    1: Scale(of two)    scale [2]  2\n"
            "parameters                         8\n");
}

TEST(Module, RejectsIllegalNamesAndCalls) {
  struct Twice final : Module {
    Twice() {
      register_parameter("a", Tensor::zeros({1}));
      register_buffer("a", Tensor::zeros({1}));
    }
  };
  struct Dotted final : Module {
    Dotted() { register_parameter("a.b", Tensor::zeros({1})); }
  };
  expect_error([] { Twice(); }, "module: name \"a\" is taken");
  expect_error([] { Dotted(); }, "module: name \"a.b\" is not legal");
  Module none;
  expect_error([&] { none(Tensor::ones({1})); }, "Module: forward with one argument is not defined");
}

TEST(Sequential, GrowsAndTakesModulesByPointer) {
  Sequential net;
  net.push_back(Scale(2));
  net.push_back(std::make_shared<Scale>(4));
  EXPECT_EQ(net.size(), 2u);
  EXPECT_STREQ(net[1].kind(), "Scale");
  EXPECT_THAT(net(Tensor::ones({2})).tensor().to_vector<float>(), ElementsAre(8, 8));
  EXPECT_THROW(net[2], std::out_of_range);
}

}  // namespace
}  // namespace tapedeck::nn
