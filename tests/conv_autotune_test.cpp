// The autotuner's policy and file, with made-up times: no GPU.
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <sstream>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/ops/conv/tiled.h>
#include <tapedeck/ops/conv/tuner.h>

#include "errors.h"
#include "files.h"

namespace tapedeck::test {
namespace {

using Algorithm = ConvAlgorithm;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Times in microseconds, the estimated choice's first; 0: the algorithm fails.
struct FakeTrial final : ConvTrial {
  explicit FakeTrial(std::vector<std::pair<ConvCandidate, double>> of) : times(std::move(of)) {}

  std::vector<ConvCandidate> candidates() override {
    std::vector<ConvCandidate> all;
    for (const auto& [candidate, time] : times) all.push_back(candidate);
    return all;
  }
  double seconds(const ConvCandidate& candidate, double best) override {
    const auto before = std::count(measured.begin(), measured.end(), candidate.algorithm);
    measured.push_back(candidate.algorithm);
    bests.push_back(best);
    std::this_thread::sleep_for(std::chrono::milliseconds(takes_ms));
    if (candidate.algorithm == lucky && before > 0) return 95e-6;
    check(candidate.algorithm != fails_again || before == 0, "out of memory");
    for (const auto& [c, time] : times)
      if (c == candidate && time > 0) return time * 1e-6;
    throw Error("out of memory");
  }
  bool matches(const ConvCandidate& candidate) override {
    compared.push_back(candidate.algorithm);
    check(candidate.algorithm != fails_when_compared, "out of memory");
    return candidate.algorithm != wrong;
  }

  std::vector<std::pair<ConvCandidate, double>> times;
  // The second time this takes 95 microseconds, and that fails.
  Algorithm lucky = Algorithm::automatic, fails_again = Algorithm::automatic;
  Algorithm wrong = Algorithm::automatic, fails_when_compared = Algorithm::automatic;
  int takes_ms = 0;
  std::vector<Algorithm> measured, compared;
  std::vector<double> bests;
};

ConvTranspose2dGeometry geometry(std::int64_t n = 8) {
  return conv_transpose2d_geometry(Tensor::empty({n, 4, 5, 6}), Tensor::empty({4, 3, 3, 2}), {},
                                   {.stride = {2, 3}, .padding = {1, 0}});
}

std::string question(const std::string& gpu = "NVIDIA H200", std::int64_t n = 8) {
  return conv_tuner_question(gpu, kConvPassNames[1], DType::float32, Precision::high, Layout::nchw,
                             Layout::nhwc, geometry(n));
}

const std::string kHead = "tapedeck conv choices 1\n",
                  kQuestion =
                      "NVIDIA H200\tinput_gradient\tfloat32\thigh\tnchw\tnhwc\t"
                      "8 4 3 1 5 9 3 2 1 1 6 17 2 3 0 1";

TEST(ConvAutotune, AsksForAllThatAnAlgorithmDependsOn) {
  EXPECT_EQ(question(), kQuestion);
  // Only float32 has a precision.
  EXPECT_THAT(conv_tuner_question("GPU", kConvPassNames[0], DType::bfloat16, Precision::high, Layout::nhwc,
                                  Layout::nchw, geometry()),
              testing::StartsWith("GPU\tforward\tbfloat16\thighest\tnhwc\tnchw\t"));
}

TEST(ConvAutotune, TakesTheFastestAndRemembersIt) {
  ConvTuner tuner({});
  FakeTrial trial(
      {{Algorithm::wgmma, 100}, {Algorithm::tensor, 120}, {Algorithm::strip, 60}, {Algorithm::direct, 70}});
  EXPECT_EQ(tuner.known(question()), std::nullopt);
  EXPECT_EQ(tuner.choose(question(), trial), Algorithm::strip);
  EXPECT_THAT(trial.measured, ElementsAre(Algorithm::wgmma, Algorithm::tensor, Algorithm::strip,
                                          Algorithm::direct, Algorithm::wgmma, Algorithm::strip));
  EXPECT_THAT(trial.bests, ElementsAre(testing::Gt(1e9), DoubleEq(100e-6), DoubleEq(100e-6), DoubleEq(60e-6),
                                       DoubleEq(60e-6), DoubleEq(60e-6)));
  EXPECT_THAT(trial.compared, ElementsAre(Algorithm::strip)) << "only what would be taken is compared";
  EXPECT_EQ(tuner.measurements(), 6);

  FakeTrial again({{Algorithm::wgmma, 1}, {Algorithm::tensor, 2}});
  EXPECT_EQ(tuner.choose(question(), again), Algorithm::strip);
  EXPECT_TRUE(again.measured.empty());
  const auto known = tuner.known(question());
  ASSERT_TRUE(known);
  EXPECT_EQ(known->candidate, Algorithm::strip);
  EXPECT_DOUBLE_EQ(known->microseconds, 60);
  EXPECT_DOUBLE_EQ(known->estimated, 100);
}

TEST(ConvAutotune, KeepsTheEstimatedChoiceOfNearlyEqualOnes) {
  ConvTuner tuner({});
  FakeTrial close({{Algorithm::wgmma, 100}, {Algorithm::tensor, 97.5}});
  EXPECT_EQ(tuner.choose(question(), close), Algorithm::wgmma);
  EXPECT_TRUE(close.compared.empty());
  EXPECT_DOUBLE_EQ(tuner.known(question())->microseconds, 100);
  FakeTrial faster({{Algorithm::wgmma, 100}, {Algorithm::tensor, 96.5}});
  EXPECT_EQ(tuner.choose(question("other"), faster), Algorithm::tensor);
}

TEST(ConvAutotune, IsNotTakenInByChance) {
  ConvTuner tuner({});
  FakeTrial trial({{Algorithm::wgmma, 100}, {Algorithm::tensor, 80}, {Algorithm::strip, 81}});
  trial.lucky = Algorithm::tensor;
  EXPECT_EQ(tuner.choose(question(), trial), Algorithm::strip);
  EXPECT_DOUBLE_EQ(tuner.known(question())->microseconds, 81);

  FakeTrial fails({{Algorithm::wgmma, 100}, {Algorithm::tensor, 80}, {Algorithm::strip, 81}});
  fails.fails_again = Algorithm::tensor;
  EXPECT_EQ(tuner.choose(question("other"), fails), Algorithm::strip);
  FakeTrial estimate_fails({{Algorithm::wgmma, 100}, {Algorithm::tensor, 80}});
  estimate_fails.fails_again = Algorithm::wgmma;
  EXPECT_EQ(tuner.choose(question("third"), estimate_fails), std::nullopt);
  EXPECT_EQ(tuner.known(question("third")), std::nullopt);
}

TEST(ConvAutotune, RejectsWhatIsWrongOrFails) {
  ConvTuner tuner({});
  FakeTrial trial({{Algorithm::wgmma, 100},
                   {Algorithm::tensor, 40},
                   {Algorithm::strip, 50},
                   {Algorithm::columns, 0},
                   {Algorithm::direct, 60},
                   {Algorithm::boxes, 70}});
  trial.wrong = Algorithm::tensor;
  trial.fails_when_compared = Algorithm::strip;
  EXPECT_EQ(tuner.choose(question(), trial), Algorithm::direct);
  EXPECT_THAT(trial.compared, ElementsAre(Algorithm::tensor, Algorithm::strip, Algorithm::direct));

  FakeTrial only_wrong({{Algorithm::wgmma, 100}, {Algorithm::tensor, 40}});
  only_wrong.wrong = Algorithm::tensor;
  EXPECT_EQ(tuner.choose(question("other"), only_wrong), Algorithm::wgmma);
  EXPECT_DOUBLE_EQ(tuner.known(question("other"))->microseconds, 100);

  // There is nothing to compare with.
  FakeTrial estimate_fails({{Algorithm::wgmma, 0}, {Algorithm::tensor, 40}});
  EXPECT_EQ(tuner.choose(question("third"), estimate_fails), std::nullopt);
  EXPECT_THAT(estimate_fails.measured, ElementsAre(Algorithm::wgmma));
  EXPECT_EQ(tuner.known(question("third")), std::nullopt);
}

TEST(ConvAutotune, DoesNotTryWhatIsAlone) {
  ConvTuner tuner({});
  FakeTrial alone({{Algorithm::depthwise, 100}});
  EXPECT_EQ(tuner.choose(question(), alone), std::nullopt);
  EXPECT_TRUE(alone.measured.empty());
}

TEST(ConvAutotune, EndsWithItsBudget) {
  const TemporaryFolder folder;
  ConvTuner tuner({.file = folder / "choices", .budget_seconds = 0.05});
  FakeTrial quick({{Algorithm::wgmma, 2}, {Algorithm::tensor, 1}});
  EXPECT_EQ(tuner.choose(question("first"), quick), Algorithm::tensor);
  FakeTrial slow({{Algorithm::wgmma, 2}, {Algorithm::tensor, 1}, {Algorithm::strip, 1}});
  slow.takes_ms = 60;
  EXPECT_EQ(tuner.choose(question("second"), slow), std::nullopt);
  EXPECT_THAT(slow.measured, ElementsAre(Algorithm::wgmma));
  FakeTrial late({{Algorithm::wgmma, 2}, {Algorithm::tensor, 1}});
  EXPECT_EQ(tuner.choose(question("third"), late), std::nullopt);
  EXPECT_TRUE(late.measured.empty());
  EXPECT_EQ(tuner.choose(question("first"), late), Algorithm::tensor) << "what is known stays";
  EXPECT_THAT(read_text(folder / "choices"), testing::Not(HasSubstr("second")));

  ConvTuner none({.budget_seconds = 0});
  EXPECT_EQ(none.choose(question(), late), std::nullopt);
  EXPECT_EQ(none.measurements(), 0);
}

TEST(ConvAutotune, WritesWhatPinnedChoicesRead) {
  const TemporaryFolder folder;
  const std::string path = folder / "choices";
  {
    ConvTuner tuner({.file = path});
    FakeTrial trial({{Algorithm::wgmma, 1234.5678}, {Algorithm::halves, 60.25}});
    EXPECT_EQ(tuner.choose(question(), trial), Algorithm::halves);
    EXPECT_EQ(tuner.known(question())->estimated, 1234.568) << "as the file will say";
  }
  EXPECT_EQ(read_text(path), kHead + kQuestion + "\thalves\t60.25\t1234.568\n");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));

  ConvTuner pinned({.file = path, .pinned = true});
  FakeTrial never({{Algorithm::wgmma, 2}, {Algorithm::tensor, 1}});
  EXPECT_EQ(pinned.choose(question(), never), Algorithm::halves);
  EXPECT_EQ(pinned.choose(question("another"), never), std::nullopt);
  EXPECT_TRUE(never.measured.empty());
  EXPECT_EQ(pinned.known(question())->microseconds, 60.25);
  EXPECT_EQ(read_text(path), kHead + kQuestion + "\thalves\t60.25\t1234.568\n");
}

// All that cu::conv_candidates() may return.
TEST(ConvAutotune, ReadsEachAlgorithmThatIsTried) {
  for (const Algorithm algorithm :
       {Algorithm::reference, Algorithm::matrix, Algorithm::columns, Algorithm::depthwise, Algorithm::direct,
        Algorithm::thin, Algorithm::strip, Algorithm::simt, Algorithm::tensor, Algorithm::wgmma,
        Algorithm::windows, Algorithm::boxes, Algorithm::halves, Algorithm::gathered, Algorithm::rows,
        Algorithm::channels_last}) {
    const TemporaryFolder folder;
    const std::string path = folder / "choices";
    {
      ConvTuner tuner({.file = path});
      FakeTrial trial(
          {{algorithm == Algorithm::wgmma ? Algorithm::tensor : Algorithm::wgmma, 2}, {algorithm, 1}});
      EXPECT_EQ(tuner.choose(question(), trial), algorithm);
    }
    ConvTuner pinned({.file = path, .pinned = true});
    FakeTrial never({});
    EXPECT_EQ(pinned.choose(question(), never), algorithm);
  }
}

TEST(ConvAutotune, TellsTilingsOfAnAlgorithmApart) {
  const TemporaryFolder folder;
  const std::string path = folder / "choices";
  const ConvCandidate tiled{Algorithm::halves, {1, 2, 0, 1, 5, 208, 1, 0, 12}},
      other{Algorithm::halves, {1, 2, 0, 1, 5, 192, 1, 0, 12}};
  {
    ConvTuner tuner({.file = path});
    FakeTrial trial({{Algorithm::halves, 10}, {other, 8}, {tiled, 5}});
    EXPECT_EQ(tuner.choose(question(), trial), tiled);
  }
  EXPECT_EQ(read_text(path), kHead + kQuestion + "\thalves 1.2.0.1.5.208.1.0.12\t5\t10\n");
  ConvTuner pinned({.file = path, .pinned = true});
  FakeTrial never({});
  EXPECT_EQ(pinned.choose(question(), never), tiled);
  EXPECT_NE(tiled.tiling.code(), other.tiling.code());
  EXPECT_NE(ConvTiling({1}).code(), ConvTiling({1, 0}).code());
  for (const char* text :
       {"", ".", "1.", ".1", "1..2", "x", "-1", "1000", "1.99999999999999999999", "1.2.3.4.5.6.7.8.9.10"})
    EXPECT_THAT(error_of([&] { (void)ConvTiling::parse(text); }),
                HasSubstr(concat("tiling \"", text, "\" is not legal; legal are up to 9 whole numbers")));
}

/// The layer of a question.
ConvTranspose2dGeometry parse_geometry(const std::string& field) {
  ConvTranspose2dGeometry g;
  std::istringstream text(field);
  text >> g.n >> g.ci >> g.co >> g.groups;
  for (ConvAxis* const a : {&g.h, &g.w})
    text >> a->in >> a->out >> a->kernel >> a->stride >> a->padding >> a->dilation;
  EXPECT_TRUE(text) << field;
  return g;
}

// Of the library's own choices: each names a tiling that its layer has.
TEST(ConvAutotune, ShippedChoicesExist) {
  using namespace conv_gemm;
  int tiled = 0;
  for (const auto& [question, choice] : shipped_choices()) {
    SCOPED_TRACE(question + " " + to_string(choice.candidate));
    EXPECT_EQ(shipped_choice(question)->candidate, choice.candidate);
    EXPECT_TRUE(has_shipped_choices(question.substr(0, question.find('\t'))));
    EXPECT_LT(choice.microseconds, choice.estimated) << "else the estimate will do";
    std::istringstream fields(question);
    std::vector<std::string> f;
    for (std::string field; std::getline(fields, field, '\t');) f.push_back(field);
    const ConvTranspose2dGeometry g = parse_geometry(f.at(6));
    if (!choice.candidate.tiling.exists()) continue;
    ++tiled;
    const Factors factors = f[2] != "float32" ? Factors{2, 1}
                            : f[3] == "high"  ? Factors{4, 1}
                                              : Factors{4, 3};
    const Layout layout = f[4] == "nhwc" ? Layout::nhwc : Layout::nchw;
    const ConvAlgorithmScope scope(choice.candidate);
    if (f[1] == "weight_gradient") {
      EXPECT_EQ(to_string(weight_grad_taken(g, layout, layout, factors)), to_string(choice.candidate));
    } else {
      const bool transposed = f[1] == "forward";
      const BoxResults results = box_results(layout, transposed ? g.w.out : g.w.in, factors.element_bytes, 0);
      EXPECT_EQ(to_string(map_taken(map_way(g, transposed, layout, results, factors))),
                to_string(choice.candidate));
    }
  }
  EXPECT_EQ(tiled > 0, !shipped_choices().empty());
  EXPECT_FALSE(has_shipped_choices("NVIDIA"));
}

TEST(ConvAutotune, KeepsLinesOfOtherGpusAndProcesses) {
  const TemporaryFolder folder;
  const std::string path = folder / "choices", of_a100 = question("NVIDIA A100") + "\ttensor\t5\t6\n";
  write_text(path, kHead + of_a100);
  ConvTuner one({.file = path}), two({.file = path});
  FakeTrial trial({{Algorithm::wgmma, 3}, {Algorithm::strip, 2}});
  EXPECT_EQ(one.choose(question(), trial), Algorithm::strip);
  EXPECT_EQ(two.choose(question("NVIDIA H200", 9), trial), Algorithm::strip);
  EXPECT_EQ(read_text(path),
            kHead + of_a100 + kQuestion + "\tstrip\t2\t3\n" + question("NVIDIA H200", 9) + "\tstrip\t2\t3\n");
  EXPECT_TRUE(two.known(question())) << "of the other, since the file was merged";
}

TEST(ConvAutotune, ThreadsMakeEachTrialOnce) {
  const TemporaryFolder folder;
  ConvTuner tuner({.file = folder / "choices"});
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (std::int64_t n = 1; n <= 5; ++n) {
        FakeTrial trial({{Algorithm::wgmma, 2}, {Algorithm::tensor, 1}});
        EXPECT_EQ(tuner.choose(question("GPU", n), trial), Algorithm::tensor);
        EXPECT_TRUE(tuner.known(question("GPU", n)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tuner.measurements(), 20);
}

TEST(ConvAutotune, NamesTheLineOfADamagedFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "choices", right = kQuestion + "\tstrip\t2\t3\n";
  const auto error = [&](const std::string& text, bool pinned = true) {
    write_text(path, text);
    return error_of([&] { ConvTuner({.file = path, .pinned = pinned}); });
  };
  /// With the first `from` of the right line made `to`.
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string line = right;
    return kHead + right + line.replace(line.find(from), from.size(), to);
  };
  EXPECT_EQ(error(kHead + right), "no error");
  EXPECT_EQ(error(kHead), "no error");
  const std::string file = concat("conv autotune: ", path);
  EXPECT_EQ(error(""), file + ": line 1 is \"\"; legal is \"tapedeck conv choices 1\"");
  EXPECT_EQ(error("tapedeck conv choices 2\n"),
            file + ": line 1 is \"tapedeck conv choices 2\"; legal is \"tapedeck conv choices 1\"");
  EXPECT_EQ(error(kHead + right.substr(0, right.size() - 1)),
            file + ": line 2 has no end; legal are whole lines");
  EXPECT_EQ(error(with("\t2\t3", "\t2")), file + ": line 3: has 9 fields between tabs; legal are 10");
  EXPECT_EQ(error(kHead + "\n"), file + ": line 2: has 1 fields between tabs; legal are 10");
  EXPECT_EQ(error(with("NVIDIA H200", "")), file + ": line 3: names no GPU");
  EXPECT_EQ(error(with("input_gradient", "backward")),
            file +
                ": line 3: pass \"backward\" is unknown; legal are forward, input_gradient and "
                "weight_gradient");
  EXPECT_THAT(error(with("float32", "int64")), HasSubstr("dtype \"int64\" is unknown; legal are float64, "));
  EXPECT_THAT(error(with("high", "low")), HasSubstr("\"low\" is unknown; legal are highest and high"));
  EXPECT_THAT(error(with("nhwc", "chwn")), HasSubstr("\"chwn\" is unknown; legal are nchw and nhwc"));
  EXPECT_THAT(error(with("8 4 3", "8 4")), HasSubstr("is not legal; legal are 16 whole numbers from 0"));
  EXPECT_THAT(error(with("8 4 3", "8 -4 3")), HasSubstr("legal are 16 whole numbers from 0"));
  EXPECT_THAT(error(with("strip", "fast"), false),
              HasSubstr(": line 3: algorithm \"fast\" is unknown; legal are reference, "));
  EXPECT_THAT(error(with("strip", "planes"), false),
              HasSubstr("\"planes\" is unknown; legal are reference, "));
  EXPECT_THAT(error(with("strip", "boxes 1.x")), HasSubstr(": line 3: tiling \"1.x\" is not legal; "));
  for (const char* time : {"\t0\t", "\t-2\t", "\t2x\t", "\tinf\t", "\t\t"})
    EXPECT_THAT(error(with("\t2\t", time)), HasSubstr("is no time; legal are microseconds above 0"));
}

TEST(ConvAutotune, WantsAFileToPinChoices) {
  const TemporaryFolder folder;
  const std::string path = folder / "choices";
  EXPECT_THAT(error_of([&] { ConvTuner({.file = path, .pinned = true}); }),
              HasSubstr(concat("conv autotune: ", path, ": cannot open")));
  EXPECT_EQ(error_of([&] { ConvTuner({.file = path}); }), "no error");
  EXPECT_EQ(error_of([&] { ConvTuner({.pinned = true}); }), "conv autotune: pinned choices need a file");
  EXPECT_EQ(error_of([&] { ConvTuner({.budget_seconds = -1}); }),
            "conv autotune: budget_seconds -1 is not legal; legal is 0 or more");
}

// A file that cannot be replaced fails one call; its choice is known then.
TEST(ConvAutotune, SaysWhenItCannotWrite) {
  const TemporaryFolder folder;
  ConvTuner tuner({.file = folder / "missing/choices"});
  FakeTrial trial({{Algorithm::wgmma, 2}, {Algorithm::tensor, 1}});
  EXPECT_THAT(error_of([&] { (void)tuner.choose(question(), trial); }), HasSubstr("cannot write"));
  EXPECT_EQ(tuner.choose(question(), trial), Algorithm::tensor);
}

TEST(ConvAutotune, IsSetForTheProcess) {
  const TemporaryFolder folder;
  const std::string path = folder / "choices";
  for (const char* name : {"TAPEDECK_CONV_AUTOTUNE", "TAPEDECK_CONV_AUTOTUNE_PINNED"}) ::unsetenv(name);
  set_conv_autotune(ConvAutotuneOptions{});
  const auto first = conv_tuner();
  const std::int64_t number = conv_tuner_number();
  ASSERT_NE(first, nullptr);
  EXPECT_NE(number, 0);
  EXPECT_NE(error_of([&] { set_conv_autotune(ConvAutotuneOptions{.file = path, .pinned = true}); }),
            "no error");
  EXPECT_EQ(conv_tuner(), first) << "what is not legal changes nothing";
  EXPECT_EQ(conv_tuner_number(), number);
  write_text(path, kHead);
  set_conv_autotune(ConvAutotuneOptions{.file = path, .pinned = true});
  EXPECT_NE(conv_tuner_number(), number);
  set_conv_autotune(std::nullopt);
  EXPECT_EQ(conv_tuner(), nullptr);
  EXPECT_EQ(conv_tuner_number(), 0);
}

/// Fails unless f holds in a process of its own, which has not asked the environment yet.
void expect_in_new_process(bool (*f)()) {
  EXPECT_EXIT(std::_Exit(f() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

TEST(ConvAutotuneDeathTest, ReadsTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  expect_in_new_process([] {
    ::setenv("TAPEDECK_CONV_AUTOTUNE", "", 1);
    return conv_tuner() == nullptr && conv_tuner_number() == 0;
  });
  expect_in_new_process([] {
    const TemporaryFolder folder;
    const std::string path = folder / "choices";
    ::setenv("TAPEDECK_CONV_AUTOTUNE", path.c_str(), 1);
    FakeTrial trial({{Algorithm::wgmma, 2}, {Algorithm::tensor, 1}});
    return conv_tuner()->choose(question(), trial) == Algorithm::tensor && std::filesystem::exists(path);
  });
  expect_in_new_process([] {
    const TemporaryFolder folder;
    const std::string path = folder / "choices";
    ::setenv("TAPEDECK_CONV_AUTOTUNE_PINNED", path.c_str(), 1);
    if (error_of([] { (void)conv_tuner_number(); }).find(": cannot open") == std::string::npos) return false;
    write_text(path, kHead);
    FakeTrial trial({{Algorithm::wgmma, 2}, {Algorithm::tensor, 1}});
    return !conv_tuner()->choose(question(), trial) && trial.measured.empty();
  });
}

}  // namespace
}  // namespace tapedeck::test
