// train_decoder: what a run writes and learns; and infer_decoder, which reads it.
#include <set>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "sanitizers.h"
#include "train_decoder.h"

namespace tapedeck {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

constexpr const char* kInfer = EXAMPLES "/infer_decoder";

TEST_F(TrainDecoder, WritesTheFilesOfARun) {
  const Ended ended = run(with({"--steps", "9", "--out", "run"}));
  expect_ok(ended);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("mean PSNR over all 30 training images"), HasSubstr(" dB\n")));
  for (const char* name : {"config.json", "model.txt", "status.json"}) {
    EXPECT_GT(content(std::string("run/") + name).size(), 10u) << name;
  }
  EXPECT_THAT(metrics("run"), StartsWith("step,epoch,loss,psnr,lr,code_lr\n3,"));
  EXPECT_EQ(data::load_image(path("run/reconstructions.png")).size(0), 3);
  EXPECT_EQ(data::load_image(path("run/interpolations.png")).size(0), 3);
  EXPECT_EQ(data::load_image(path("run/training.png")).shape(), (Shape{3, 600, 960}));
  EXPECT_THAT(content("run/status.json"), HasSubstr("\"finished\": true"));
  for (const auto& entry : fs::directory_iterator(path("run"))) {
    EXPECT_NE(entry.path().extension(), ".tmp") << "a temporary file was left";
  }
}

TEST_F(TrainDecoder, NamesRunFoldersByDataAndModel) {
  expect_ok(run(with({"--steps", "1"})));
  expect_ok(run(with({"--steps", "1"})));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path("runs"))) names.push_back(entry.path().filename());
  EXPECT_THAT(names, testing::UnorderedElementsAre(HasSubstr("-small-1"), HasSubstr("-small-2")));
}

TEST_F(TrainDecoder, LearnsAFewImages) {
  if (test::kSanitized) GTEST_SKIP() << "about values only";
  const Ended ended = run(with({"--epochs", "150", "--out", "run"}));
  expect_ok(ended);
  const std::size_t at = ended.out.find("averaged): ");
  ASSERT_NE(at, std::string::npos) << ended.out;
  EXPECT_GT(std::stod(ended.out.substr(at + 11)), 18.0) << ended.out;
}

TEST_F(TrainDecoder, MakesImagesOfAnySize) {
  for (const Shape& shape :
       {Shape{5, 1, 1, 1}, Shape{5, 3, 7, 30}, Shape{5, 2, 13, 9}, Shape{5, 5, 33, 64}}) {
    data::save_npy(path("images.npy"), rand(shape));
    for (const char* model : {"small", "dcgan"}) {
      fs::remove_all(path("run"));
      SCOPED_TRACE(concat(shape, " ", model));
      expect_ok(run({"--data", "images.npy", "--model", model, "--steps", "2", "--batch", "3", "--quiet",
                     "--out", "run"}));
    }
  }
}

TEST_F(TrainDecoder, EveryLossTrains) {
  for (const char* loss : {"mse", "l1", "bce", "mse+ssim"}) {
    SCOPED_TRACE(loss);
    expect_ok(run(with({"--steps", "2", "--loss", loss})));
  }
}

TEST_F(TrainDecoder, EveryPrecisionTrains) {
  const auto trained = [&](const char* precision) {
    const std::string out = std::string("run-") + precision;
    expect_ok(run(with({"--epochs", "12", "--precision", precision, "--out", out})));
    EXPECT_THAT(content(out + "/config.json"), HasSubstr(concat("\"precision\": \"", precision, "\"")));
    const std::string rows = metrics(out);
    const std::string last = rows.substr(rows.rfind('\n', rows.size() - 2) + 1);
    return std::stod(last.substr(last.find(',', last.find(',') + 1) + 1));  // step, epoch, loss
  };
  const double exact = trained("highest");
  EXPECT_EQ(trained("high"), exact);  // a CPU has nothing less exact
  for (const char* half : {"bfloat16", "float16"}) {
    const double loss = trained(half);
    EXPECT_NE(loss, exact) << half;
    EXPECT_NEAR(loss, exact, 0.1 * exact) << half;
  }
}

TEST_F(TrainDecoder, TellsWhatHeldItsMemory) {
  for (const char* file : {"memory.json", "memory.html"}) {
    expect_ok(run(with({"--steps", "5", "--memory-snapshot", file})));
  }
  const auto pools = nlohmann::json::parse(content("memory.json"));
  ASSERT_EQ(pools.size(), 1u);
  const auto& cpu = pools[0];
  EXPECT_EQ(cpu["device"], "cpu");
  std::set<std::string> ops;
  std::set<std::uint64_t> steps;
  for (const auto& event : cpu["history"]) {
    const auto& tag = cpu["tags"][event[3].get<std::size_t>()];
    if (tag["module"] == "ConvTranspose2d") ops.insert(tag["op"]);
    steps.insert(event[4].get<std::uint64_t>());
  }
  EXPECT_THAT(ops, testing::IsSupersetOf({"conv_transpose2d", "conv2d", "conv_transpose2d_weight_grad"}));
  EXPECT_THAT(steps, testing::ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(content("memory.html"), AllOf(StartsWith("<!doctype html>"), HasSubstr("\"device\": \"cpu\"")));
}

TEST_F(TrainDecoder, InfoTrainsNothing) {
  const Ended ended = run(with({"--info"}));
  expect_ok(ended);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("30 images [3,16,16]"), HasSubstr("conv_transpose2d in="),
                               HasSubstr("[3,16,16]")));
  EXPECT_FALSE(fs::exists(path("runs")));
}

TEST_F(TrainDecoder, InferDecoderReadsItsCheckpoints) {
  for (const char* average : {"0", "0.9"}) {
    const std::string checkpoint = std::string("run") + average + "/checkpoint.safetensors";
    expect_ok(run(with({"--steps", "3", "--out", std::string("run") + average, "--ema", average})));
    expect_ok(run({checkpoint, "random", "20", "random.png"}, kInfer));
    expect_ok(run({checkpoint, "between", "0", "29", "between.png"}, kInfer));
    // Two rows and one row of ten 16 x 16 images with 2 pixels around each.
    EXPECT_EQ(data::load_image(path("random.png")).shape(), (Shape{3, 38, 182}));
    EXPECT_EQ(data::load_image(path("between.png")).shape(), (Shape{3, 20, 182}));
    EXPECT_EQ(run({checkpoint, "between", "0", "30"}, kInfer).err,
              "infer_decoder: image \"30\" is not legal; legal are whole numbers from 0 to 29\n");
    EXPECT_THAT(run({checkpoint, "between", "0", "2z"}, kInfer).err,
                StartsWith("infer_decoder: image \"2z\" is"));
    const Ended wrong = run({checkpoint, "random", "x"}, kInfer);
    EXPECT_EQ(wrong.exit_code(), 1);
    EXPECT_EQ(wrong.err,
              "infer_decoder: count \"x\" is not legal; legal are whole numbers from 1 to 10000\n");
  }
}

TEST_F(TrainDecoder, ClipsGradients) {
  const auto trained = [&](const char* clip) {
    expect_ok(run(with({"--steps", "9", "--clip", clip, "--out", std::string("run") + clip})));
    return metrics(std::string("run") + clip);
  };
  const std::string free = trained("0");
  EXPECT_EQ(trained("1e6"), free);   // no gradient is that large
  EXPECT_NE(trained("1e-8"), free);  // as small as what Adam adds to their size
}

TEST_F(TrainDecoder, AShortRunHasALineOfMetrics) {
  expect_ok(run(with({"--steps", "2", "--out", "run"})));  // of 3 that make a line
  EXPECT_THAT(metrics("run"), StartsWith("step,epoch,loss,psnr,lr,code_lr\n2,"));
}

TEST_F(TrainDecoder, AFullDiskUnderStdoutIsAnError) {
  for (const char* program : {EXAMPLES "/train_decoder --info", EXAMPLES "/train_decoder --help",
                              EXAMPLES "/train_decoder --data sprites:count=4,size=8 --steps 1 --quiet"}) {
    const Ended ended = run_program({"/bin/sh", "-c", std::string(program) + " > /dev/full"});
    EXPECT_EQ(ended.exit_code(), 1) << program;
    EXPECT_EQ(ended.err, "train_decoder: stdout cannot be written\n") << program;
  }
}

TEST_F(TrainDecoder, AnAverageOfABatchNormalisedDecoderIsAsGoodAsItsWeights) {
  if (test::kSanitized) GTEST_SKIP() << "about values only";
  // What the average decodes to takes its running statistics from training.
  const auto last_psnr = [&](const char* ema) {
    const Ended ended = run(with({"--model", "dcgan", "--epochs", "40", "--ema", ema}));
    expect_ok(ended);
    return std::stod(ended.out.substr(ended.out.find("averaged): ") + 11));
  };
  const double last = last_psnr("0"), averaged = last_psnr("0.9");
  EXPECT_GT(last, 15);
  EXPECT_GT(averaged, last - 0.5);
}

}  // namespace
}  // namespace tapedeck
