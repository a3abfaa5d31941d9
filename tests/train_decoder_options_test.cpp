// What train_decoder takes, and what it says to the rest.
#include <gmock/gmock.h>

#include <tapedeck/core/backend.h>

#include "../examples/train_decoder/interrupt.h"
#include "../examples/train_decoder/options.h"
#include "train_decoder.h"

namespace tapedeck {
namespace {

using train_decoder::Options;
using train_decoder::options_from_json;
using train_decoder::to_json;

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

TEST_F(TrainDecoder, WhatIsWrongGetsOneClearLine) {
  std::ofstream(path("text.png")) << "no picture";
  std::ofstream(path("bad.txt")) << "linear in=6 out=10\nrelo\n";
  std::ofstream(path("wrong.txt")) << "linear in=6 out=10\n";
  fs::create_directory(path("empty"));
  fs::create_directory(path("images"));
  data::save_png(path("images/a.png"), rand({3, 20, 20}));
  const std::string png = content("images/a.png");
  std::ofstream(path("images/b.png"), std::ios::binary) << png.substr(0, png.size() / 2);
  data::save_npy(path("none.npy"), rand({0, 3, 8, 8}));
  data::save_npy(path("flat.npy"), rand({2, 3, 0, 8}));
  Tensor large = rand({2, 3, 8, 8});
  large.data<float>()[3 * 8 * 8 + 5] = 1.5f;
  data::save_npy(path("large.npy"), large);
  std::ofstream(path("file")) << "";
  fs::create_directory(path("run"));
  std::ofstream(path("run/config.json")) << "{\"batch\": tru";

  struct Case {
    std::vector<std::string> arguments;
    int status;
    std::string error;
  };
  const std::vector<Case> cases = {
      {{"--latnet", "3"}, 2, "--latnet"},
      {{"--latent", "x"}, 2, "--latent"},
      {{"--latent", "0"}, 2, "--latent: 0 is not legal; legal are whole numbers from 1 to 65536"},
      {{"--latent", "6.5"}, 2, "--latent: 6.5 is not legal; legal are whole numbers"},
      {{"--lr", "1", "--lr", "2"}, 2, "--lr is given 2 times"},
      {{"--out", ""}, 2, "--out: an empty name is not legal"},
      {{"--resume", ""}, 2, "--resume: an empty name is not legal"},
      {{"--size", ""}, 2, "--size: an empty size is not legal"},
      {{"--lr", "nan"}, 2, "--lr: nan is not legal"},
      {{"--steps", "3", "--epochs", "2"}, 2, "--epochs excludes --steps"},
      {{"--loss", "l7"}, 2, "--loss"},
      {{"--precision", "half"}, 2, "--precision: half not in {highest,high,bfloat16,float16}"},
      {{"--memory-snapshot", "m.txt"},
       2,
       "--memory-snapshot: m.txt is not legal; legal are names that end in"},
      {{"--checkpoint-every", "soon"}, 2, "interval soon is not legal"},
      {{"--data", "missing.npy"}, 1, "missing.npy"},
      {{"--data", "text.png"}, 1, "text.png"},
      {{"--data", ""}, 1, "\"\" is no file or folder"},
      {{"--data", "empty"},
       1,
       "empty: there are no .png, .jpg or .jpeg files in this folder or its subfolders"},
      {{"--data", "none.npy"}, 1, "--data none.npy: has 0 images [3,8,8], which leaves nothing to learn"},
      {{"--data", "flat.npy"}, 1, "--data flat.npy: has 2 images [3,0,8], which leaves nothing to learn"},
      {{"--data", "large.npy"}, 1, "large.npy: image 1 has the value 1.5; legal are 0 to 1"},
      {{"--data", "sprites:count=0"}, 1, "--data sprites:count=0: has 0 images"},
      {{"--data", "sprites:size=100000"}, 1, "sprites: size 100000 is not legal; legal is 1 to 4096"},
      {{"--data", "sprites:count=99999999999"}, 1, "legal is 0 to 1000000000"},
      {{"--data", "images", "--steps", "2"}, 1, "b.png"},
      {{"--model", "missing.txt"},
       1,
       "--model missing.txt: neither small nor dcgan, and there is no such file"},
      {{"--model", "bad.txt"}, 1, "bad.txt:2: layer \"relo\" is unknown"},
      {{"--model", "wrong.txt", "--latent", "6"}, 1, "makes [1,10] of codes [1,6]"},
      {{"--model", "wrong.txt", "--latent", "7"}, 1, "wrong.txt:1: linear"},
      {{"--device", "cuda"}, 1, "cuda"},
      {{"--device", "tpu"}, 1, "tpu"},
      {{"--out", "file"}, 1, "--out file: "},
      {{"--out", "images"}, 1, "--out images: this folder is not empty"},
      {{"--out", "run"}, 1, "continue it with --resume run"},
      {{"--resume", "nowhere"}, 1, "nowhere is not a run folder"},
      {{"--resume", "run"}, 1, "run/config.json: not a run's configuration"},
      {{"--resume", "run", "--out", "other"}, 2, "--out"},
  };
  if (!has_cuda_backend()) {
    const std::string plain = "--device cuda: this build of train_decoder has no CUDA; legal is cpu";
    EXPECT_THAT(run({"--device", "cuda"}).err, HasSubstr(plain));
  }
  for (const Case& c : cases) {
    const Ended ended = run(c.arguments);
    SCOPED_TRACE(testing::PrintToString(c.arguments));
    EXPECT_EQ(ended.exit_code(), c.status) << ended.err;
    EXPECT_THAT(ended.err, AllOf(StartsWith("train_decoder: "), HasSubstr(c.error), EndsWith("\n")));
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
  EXPECT_FALSE(fs::exists(path("runs"))) << "an error must not leave a run folder";
}

TEST(TrainDecoderHelp, NamesEveryFlagLayerAndFormOfData) {
  const char* const arguments[] = {"train_decoder", "--help"};
  std::string help;
  try {
    train_decoder::parse_options(2, arguments);
  } catch (const train_decoder::ParserExit& exit) {
    help = exit.text;
  }
  const std::vector<std::string> flags = train_decoder::flags();
  EXPECT_GT(flags.size(), 25u);
  for (const std::string& flag : flags) EXPECT_THAT(help, HasSubstr("\n  " + flag + " "));
  for (const std::string& layer : nn::layer_names()) {
    const std::string keys = nn::layer_keys(layer);
    EXPECT_THAT(help, testing::ContainsRegex("\n  " + layer + (keys.empty() ? "" : " +" + keys) + "\n"));
  }
  EXPECT_THAT(help, AllOf(HasSubstr("sprites:count=2000,size=32,seed=0"), HasSubstr("TAPEDECK_NUM_THREADS")));
}

TEST(TrainDecoderOptions, AGpuHasMoreWorkers) {
  const auto workers = [](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "train_decoder");
    return train_decoder::parse_options(static_cast<int>(arguments.size()), arguments.data()).workers;
  };
  EXPECT_EQ(workers({}), 1);
  EXPECT_EQ(workers({"--device", "cuda"}), 4);
  EXPECT_EQ(workers({"--workers", "0", "--device", "cuda:1"}), 0);
}

TEST(TrainDecoderConfig, ComesBack) {
  Options options;
  options.data = "a \"b\" = c";
  options.size = "48x64";
  options.lr = 0.1 + 0.2;  // which no short text names
  options.unit_ball = true;
  options.epochs = 7;
  options.schedule = "one-cycle";
  options.checkpoint_every = "0";
  options.seed = 9'000'000'000'000'000;
  const Options back = options_from_json(to_json(options), "config.json");
  EXPECT_EQ(to_json(back), to_json(options));
  EXPECT_EQ(back.lr, options.lr);
}

TEST(TrainDecoderConfig, IsCheckedAsTheFlagsAre) {
  struct Case {
    const char *key, *value, *error;
  };
  const std::string text = to_json({});
  for (const Case& c : std::initializer_list<Case>{
           {"batch", "0", "batch: 0 is not legal; legal are whole numbers from 1 to 1000000000"},
           {"batch", "2.5", "batch: 2.5 is not legal"},
           {"batch", "true", "batch: true is not legal; legal is a number"},
           {"log_every", "0", "log_every: 0 is not legal"},
           {"epochs", "0", "epochs: 0 is not legal"},
           {"steps", "-1", "steps: -1 is not legal"},
           {"threads", "-1", "threads: -1 is not legal; legal are whole numbers from 0 to 1024"},
           {"lr", "-0.1", "lr: -0.1 is not legal"},
           {"lr", "null", "lr: null is not legal"},
           {"loss", "\"l7\"", "loss: l7 not in {mse,l1,bce,mse+ssim}"},
           {"loss", "\"BCE\"", "loss: BCE not in"},
           {"schedule", "\"linear\"", "schedule: linear not in"},
           {"checkpoint_every", "\"soon\"", "checkpoint_every: interval soon is not legal"},
           {"model", "7", "model: 7 is not legal; legal is a string"},
           {"data", "\"\"", "data: "},
           {"size", "\"4x\"", "size: 4x is not legal"},
           {"unit_ball", "1", "unit_ball: 1 is not legal; legal is a boolean"}}) {
    std::string changed = text;
    const std::size_t at = changed.find(concat("\"", c.key, "\": ")) + std::string(c.key).size() + 4;
    changed.replace(at, changed.find_first_of(",\n", at) - at, c.value);
    const std::string error = message_of<Error>([&] { options_from_json(changed, "run/config.json"); });
    EXPECT_THAT(error, StartsWith(std::string("run/config.json: ") + c.error));
  }
  EXPECT_EQ(message_of<Error>([&] { options_from_json("{}", "x"); }), "x: batch is missing");
  EXPECT_THAT(message_of<Error>([&] { options_from_json("[1]", "x"); }), HasSubstr("not a JSON object"));
  for (const char* key : {"resume", "help", "info", "memory_snapshot"}) {
    const std::string more = concat("{\"", key, "\": \"run\",") + text.substr(1);
    EXPECT_EQ(message_of<Error>([&] { options_from_json(more, "x"); }), concat("x: ", key, " is unknown"));
  }
}

TEST_F(TrainDecoder, AChangedConfigurationIsNamed) {
  expect_ok(run(with({"--steps", "2", "--out", "run"})));
  std::string text = content("run/config.json");
  const std::size_t at = text.find("\"batch\": 8");
  ASSERT_NE(at, std::string::npos);
  write_text(path("run/config.json"), text.replace(at, 10, "\"batch\": 0"));
  const Ended ended = run({"--resume", "run", "--steps", "9"});
  EXPECT_EQ(ended.exit_code(), 1);
  EXPECT_THAT(ended.err, StartsWith("train_decoder: run/config.json: batch: 0 is not legal; legal are"));
}

TEST(InterruptGuard, LeavesErrnoAlone) {
  const int err = dup(STDERR_FILENO);
  close(STDERR_FILENO);  // so that the handler's write() fails
  int after = 0;
  {
    const train_decoder::InterruptGuard guard;
    errno = ERANGE;
    raise(SIGTERM);
    after = errno;
    EXPECT_EQ(train_decoder::InterruptGuard::signal_received(), SIGTERM);
  }
  dup2(err, STDERR_FILENO);
  close(err);
  EXPECT_EQ(after, ERANGE);
}

}  // namespace
}  // namespace tapedeck
