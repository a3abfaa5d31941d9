#include <tapedeck/core/memory.h>

#include <algorithm>
#include <cstdint>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/tapedeck.h>
#include <nlohmann/json.hpp>

namespace tapedeck {
namespace {

using ::testing::HasSubstr;

TEST(Memory, CountsTensors) {
  const MemoryStats before = memory_stats();
  {
    const Tensor x = Tensor::empty({1000});
    EXPECT_EQ(memory_stats().requested, before.requested + 4000);
    EXPECT_EQ(memory_stats().allocations, before.allocations + 1);
    EXPECT_THAT(memory_snapshot(), HasSubstr("\"requested\": 4000, \"state\": \"in use\""));
  }
  EXPECT_EQ(memory_stats().requested, before.requested);
  EXPECT_GE(memory_stats().peak_in_use, before.in_use + 4000);
  reset_peak_memory_stats();
  EXPECT_EQ(memory_stats().peak_in_use, before.in_use);
}

TEST(Memory, TensorsAreAligned) {
  for (std::int64_t count : {1, 3, 17, 1000, 1000003}) {
    const Tensor x = Tensor::empty({count}, {.dtype = DType::uint8});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.raw()) % 64, 0u);
  }
}

TEST(Memory, EmptyingTheCacheGivesEverythingBack) {
  { const Tensor x = Tensor::empty({3000000}); }
  empty_cache();
  EXPECT_EQ(memory_stats().reserved, 0u);
  const Tensor y = Tensor::full({5}, 3);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(5, 3.f));
}

TEST(Memory, TheLimitHolds) {
  empty_cache();
  set_memory_limit(Device{}, 1 << 20);
  try {
    (void)Tensor::empty({1 << 20});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cpu allocator: out of memory: requested 4.00 MiB"));
  }
  EXPECT_NO_THROW((void)Tensor::empty({1 << 10}));
  set_memory_limit(Device{}, ~std::size_t{0});
  EXPECT_NO_THROW((void)Tensor::empty({1 << 20}));
}

TEST(Memory, RefusesADeviceThatIsNotThere) {
  try {
    (void)memory_stats({DeviceType::cuda, 99});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cuda:99"));
  }
}

/// The tag of an op in a kind of module.
MemoryTag tag_of(const std::string& op, const std::string& module) {
  for (const MemoryTag& tag : memory_by_tag()) {
    if (tag.op == op && tag.module == module) return tag;
  }
  return {};
}

TEST(Memory, IsCountedByOpAndModule) {
  nn::Sequential model(nn::Linear({.in_features = 4, .out_features = 1000}), nn::Tanh());
  {
    Tape tape;
    const Variable y = model(Tensor::ones({100, 4}));
    EXPECT_GE(tag_of("linear", "Linear").peak_in_use, 400000u);
    EXPECT_GE(tag_of("tanh", "Tanh").in_use, 400000u);
    EXPECT_EQ(tag_of("linear", "Linear").in_use, 0u);
    tape.backward(sum(y));
  }
  EXPECT_GE(tag_of("linear", "Linear").in_use, 16000u);  // the weight's gradient
  EXPECT_EQ(tag_of("tanh", "Tanh").in_use, 0u);
  EXPECT_GE(tag_of("tanh", "Tanh").peak_in_use, 400000u);
  EXPECT_GE(tag_of("tanh", "Tanh").allocations, 1u);
  reset_peak_memory_stats();
  EXPECT_EQ(tag_of("tanh", "Tanh").peak_in_use, 0u);
  const std::vector<MemoryTag> tags = memory_by_tag();
  EXPECT_TRUE(std::is_sorted(tags.begin(), tags.end(),
                             [](const auto& a, const auto& b) { return a.in_use > b.in_use; }));
  std::size_t total = 0;
  for (const MemoryTag& tag : tags) total += tag.in_use;
  EXPECT_EQ(total, memory_stats().in_use);
}

TEST(Memory, OfTwoModulesAtOnceIsCountedAsTheFirsts) {
  nn::Sequential model(nn::Linear({.in_features = 4, .out_features = 900}), nn::LeakyReLU());
  const auto allocations = [](const char* op, const char* module) { return tag_of(op, module).allocations; };
  const std::uint64_t linear = allocations("linear", "Linear"),
                      leaky = allocations("leaky_relu", "LeakyReLU");
  const Variable y = model(Tensor::ones({100, 4}));
  EXPECT_GT(allocations("linear", "Linear"), linear);
  EXPECT_GE(tag_of("linear", "Linear").in_use, 360000u);
  EXPECT_EQ(allocations("leaky_relu", "LeakyReLU"), leaky);
}

TEST(Memory, AnErrorNamesWhatWasWantedAndTheLargest) {
  empty_cache();
  const Variable x = Tensor::ones({1 << 22});
  const Variable y = exp(x);
  set_memory_limit(Device{}, memory_stats().reserved + (1 << 20));
  try {
    const Variable wide = cast(x, DType::float64);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("requested 32.00 MiB of cast [4194304], in use"));
    EXPECT_THAT(error.what(), HasSubstr("; largest in use: 16.00 MiB"));
    EXPECT_THAT(error.what(), HasSubstr("16.00 MiB of exp [4194304]"));
  }
  set_memory_limit(Device{}, ~std::size_t{0});
  EXPECT_EQ(cast(x, DType::float64).dtype(), DType::float64);
}

TEST(Memory, RemembersAHistory) {
  const Variable x = Tensor::ones({1000});
  record_memory_history(Device{}, true);
  { const Variable y = exp(x + 1.0); }
  count_memory_step();
  { const Tensor z = Tensor::empty({3, 5}); }
  record_memory_history(Device{}, false);
  { const Tensor z = Tensor::empty({77, 5}); }
  const std::string snapshot = memory_snapshot();
  const auto json = nlohmann::json::parse(snapshot);
  const std::int64_t first_step = json["history"][0][4];
  std::map<std::uint64_t, std::int64_t> in_use;  // by address
  std::string ops;
  for (const auto& event : json["history"]) {
    const std::int64_t bytes = event[2];
    if (bytes > 0) {
      EXPECT_TRUE(in_use.emplace(event[1], bytes).second);
      const std::string op = json["tags"][event[3].get<std::size_t>()]["op"];
      if (event[5] == "[1000]" && !op.empty()) ops += op + " ";
    } else {
      EXPECT_EQ(in_use[event[1]], -bytes);
      in_use.erase(event[1]);
    }
    if (event[5] == "[3,5]") {
      EXPECT_EQ(event[4], first_step + 1);
    }
    EXPECT_NE(event[5], "[77,5]");
  }
  EXPECT_EQ(ops, "affine exp ");
  std::int64_t sum = 0;
  for (const auto& [address, bytes] : in_use) sum += bytes;
  EXPECT_EQ(sum, json["in_use"]);
  const std::string page = memory_page({snapshot, snapshot});
  EXPECT_THAT(page, HasSubstr("const pools = [" + snapshot + ",\n" + snapshot + ",\n];"));
  EXPECT_EQ(page.find("http"), std::string::npos);  // it needs nothing from elsewhere
}

TEST(Memory, FormatsSizes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::size_t{5} << 30), "5.00 GiB");
  EXPECT_EQ(format_bytes(~std::size_t{0}), "16.00 EiB");
}

}  // namespace
}  // namespace tapedeck
