// Ranges for profilers, heard by one of our own; in builds with CUDA, on machines with and without a GPU.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include <tapedeck/tapedeck.h>

namespace {

std::vector<std::string> heard;

int push_range(const char* name) {
  heard.emplace_back(name);
  return 0;
}
int pop_range() {
  heard.emplace_back("/");
  return 0;
}

/// What NVTX calls, at its first range, to let a profiler put its functions in.
int initialize(NvtxGetExportTableFunc_t get_table) {
  const auto* table = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned size = 0;
  if (!table->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &size)) return 0;
  *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&push_range);
  *functions[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop_range);
  return 1;
}

}  // namespace

namespace tapedeck {
namespace {

TEST(CudaProfiler, HearsModulesAndOps) {
  InitializeInjectionNvtx2_fnptr = &initialize;  // before the first range: this program is its own profiler
  nn::Sequential model(nn::Linear({.in_features = 3, .out_features = 2}), nn::Tanh());
  optim::SGD sgd(model.parameters(), {.lr = 0.1});
  const Tensor x = Tensor::ones({4, 3});
  heard.clear();
  {
    Tape tape;
    tape.backward(sum(model(x)));
  }
  sgd.step();
  std::string all;
  for (const std::string& name : heard) all += name + " ";
  EXPECT_THAT(all, testing::StartsWith("Sequential Linear linear / / Tanh tanh / / / sum / backward "));
  EXPECT_THAT(all, testing::HasSubstr(" Tanh tanh "));
  EXPECT_THAT(all, testing::ContainsRegex(" backward .* Linear linear .* SGD "));
  EXPECT_EQ(std::count(heard.begin(), heard.end(), "/") * 2, std::ssize(heard));
}

TEST(CudaProfiler, HearsFusedPairsByTheirFirstAndTriesByNothing) {
  InitializeInjectionNvtx2_fnptr = &initialize;
  const auto said = [](nn::Sequential model) {
    heard.clear();
    model(Tensor::ones({4, 3}));
    std::string all;
    for (const std::string& name : heard) all += name + " ";
    return all;
  };
  EXPECT_EQ(said(nn::Sequential(nn::Linear({.in_features = 3, .out_features = 2}), nn::ReLU())),
            "Sequential Linear linear / / / ");
  EXPECT_EQ(said(nn::Sequential(nn::Tanh(), nn::ReLU())), "Sequential Tanh tanh / / ReLU relu / / / ");
}

}  // namespace
}  // namespace tapedeck
