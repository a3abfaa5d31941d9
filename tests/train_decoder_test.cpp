// train_decoder as its users see it: a program with flags, files and signals.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <tapedeck/tapedeck.h>
#include <unistd.h>

namespace tapedeck {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;
using namespace std::chrono_literals;

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Ended {
  int status = 0;  // as waitpid() gives it
  std::string out, err;

  int exit_code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }
};

class TrainDecoder : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "train_decoder_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  pid_t start(std::vector<std::string> arguments, const char* program = TRAIN_DECODER) const {
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const std::string out = path("stdout"), err = path("stderr");
    const pid_t child = fork();
    if (child == 0) {
      if (!freopen(out.c_str(), "w", stdout) || !freopen(err.c_str(), "w", stderr)) _exit(120);
      if (chdir(folder_.c_str()) != 0) _exit(121);
      execv(argv[0], argv.data());
      _exit(122);
    }
    return child;
  }

  Ended wait(pid_t child) const {
    Ended ended;
    waitpid(child, &ended.status, 0);
    ended.out = content(path("stdout"));
    ended.err = content(path("stderr"));
    return ended;
  }

  Ended run(const std::vector<std::string>& arguments, const char* program = TRAIN_DECODER) const {
    return wait(start(arguments, program));
  }

  /// Waits until `ready()`. A test that waits longer than this takes has failed, and must not hang.
  template <class F>
  static void wait_until(pid_t child, F ready) {
    for (int i = 0; i < 20000 && !ready(); ++i) {
      siginfo_t info{};
      waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT);
      ASSERT_EQ(info.si_pid, 0) << "the program has ended";
      std::this_thread::sleep_for(2ms);
    }
    ASSERT_TRUE(ready());
  }

  /// A short run on few small images, which each test extends.
  static std::vector<std::string> with(std::vector<std::string> more) {
    std::vector<std::string> all = {"--data",      kData, "--latent", "6",         "--batch", "8",
                                    "--log-every", "3",   "--quiet",  "--code-lr", "0.05"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  void expect_ok(const Ended& ended) const { EXPECT_EQ(ended.exit_code(), 0) << ended.err << ended.out; }

  /// metrics.csv without what depends on the clock.
  std::string metrics(const std::string& run) const {
    std::istringstream file(content(folder_ / run / "metrics.csv"));
    std::string kept, line;
    while (std::getline(file, line)) {
      std::vector<std::string> fields;
      std::istringstream cells(line);
      for (std::string cell; std::getline(cells, cell, ',');) fields.push_back(cell);
      EXPECT_EQ(fields.size(), 8u) << line;
      fields.resize(8);
      kept += fields[0] + "," + fields[1] + "," + fields[3] + "," + fields[4] + "," + fields[5] + "," +
              fields[6] + "\n";
    }
    return kept;
  }

  void expect_same_run(const std::string& a, const std::string& b) const {
    const std::string left = content(folder_ / a / "checkpoint.safetensors"),
                      right = content(folder_ / b / "checkpoint.safetensors");
    EXPECT_GT(left.size(), 1000u);
    EXPECT_TRUE(left == right) << "the checkpoints differ";
    EXPECT_EQ(metrics(a), metrics(b));
  }

  static constexpr const char* kData = "sprites:count=30,size=16";
  fs::path folder_;
};

TEST_F(TrainDecoder, WritesTheFilesOfARun) {
  const Ended ended = run(with({"--steps", "9", "--out", "run"}));
  expect_ok(ended);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("mean PSNR over all 30 training images"), HasSubstr(" dB\n")));
  for (const char* name : {"config.json", "model.txt", "status.json"}) {
    EXPECT_GT(fs::file_size(folder_ / "run" / name), 10u) << name;
  }
  EXPECT_THAT(metrics("run"), StartsWith("step,epoch,loss,psnr,lr,code_lr\n3,"));
  EXPECT_EQ(data::load_image(path("run/reconstructions.png")).size(0), 3);
  EXPECT_EQ(data::load_image(path("run/interpolations.png")).size(0), 3);
  EXPECT_EQ(data::load_image(path("run/training.png")).shape(), (Shape{3, 600, 960}));
  EXPECT_THAT(content(folder_ / "run/status.json"), HasSubstr("\"finished\": true"));
  for (const auto& entry : fs::directory_iterator(folder_ / "run")) {
    EXPECT_NE(entry.path().extension(), ".tmp") << "a temporary file was left";
  }
}

TEST_F(TrainDecoder, NamesRunFoldersByDataAndModel) {
  expect_ok(run(with({"--steps", "1"})));
  expect_ok(run(with({"--steps", "1"})));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_ / "runs")) names.push_back(entry.path().filename());
  EXPECT_THAT(names, testing::UnorderedElementsAre(HasSubstr("-small-1"), HasSubstr("-small-2")));
}

TEST_F(TrainDecoder, LearnsAFewImages) {
  const Ended ended = run(with({"--epochs", "150", "--out", "run"}));
  expect_ok(ended);
  const std::size_t at = ended.out.find("averaged): ");
  ASSERT_NE(at, std::string::npos) << ended.out;
  EXPECT_GT(std::stod(ended.out.substr(at + 11)), 18.0) << ended.out;
}

struct Variant {
  const char* name;
  std::vector<std::string> flags;

  friend void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }
};

class ResumedRun : public TrainDecoder, public testing::WithParamInterface<Variant> {};

TEST_P(ResumedRun, HasTheBitsOfAnUnbrokenOne) {
  std::ofstream(path("model.txt")) << "linear in=6 out=256\nrelu\ndropout p=0.3\nunflatten shape=16x4x4\n"
                                      "upsample scale=2 mode=bilinear\n"
                                      "conv_transpose2d in=16 out=3 kernel=4 stride=2 padding=1\nsigmoid\n";
  std::vector<std::string> flags = GetParam().flags;
  flags.insert(flags.end(), {"--steps", "14", "--out"});
  auto unbroken = flags, broken = flags;
  unbroken.push_back("unbroken");
  broken.insert(broken.end(), {"broken", "--stop-at", "6"});
  expect_ok(run(with(unbroken)));
  const Ended stopped = run(with(broken));
  expect_ok(stopped);
  EXPECT_THAT(stopped.out, HasSubstr("stopped after step 6; train_decoder --resume broken goes on"));
  EXPECT_THAT(content(folder_ / "broken/status.json"), HasSubstr("\"finished\": false"));
  expect_ok(run({"--resume", "broken", "--stop-at", "11", "--threads", "3"}));
  expect_ok(run({"--resume", "broken", "--threads", "1", "--workers", "0"}));
  expect_same_run("unbroken", "broken");
}

INSTANTIATE_TEST_SUITE_P(
    Variants, ResumedRun,
    testing::Values(Variant{"small", {}},
                    Variant{"dcgan_average_one_cycle",
                            {"--model", "dcgan", "--ema", "0.9", "--schedule", "one-cycle", "--unit-ball"}},
                    Variant{"dropout_bce",
                            {"--model", "model.txt", "--loss", "bce", "--schedule", "constant"}}),
    [](const auto& instance) { return instance.param.name; });

TEST_F(TrainDecoder, CtrlCLeavesACheckpointThatGoesOnToTheSameBits) {
  expect_ok(run(with({"--steps", "400", "--out", "unbroken"})));
  const pid_t child = start(with({"--steps", "400", "--out", "broken"}));
  wait_until(child, [&] { return content(folder_ / "broken/metrics.csv").size() > 100; });
  kill(child, SIGINT);
  const Ended ended = wait(child);
  EXPECT_EQ(ended.exit_code(), 128 + SIGINT) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("train_decoder --resume broken goes on"));
  expect_ok(run({"--resume", "broken"}));
  expect_same_run("unbroken", "broken");
}

TEST_F(TrainDecoder, ASecondCtrlCAborts) {
  // One step of these takes far longer than the test waits.
  const pid_t child = start({"--data", "sprites:count=4000,size=64", "--batch", "4000", "--out", "run"});
  wait_until(child, [&] { return fs::exists(folder_ / "run/metrics.csv"); });
  std::this_thread::sleep_for(100ms);
  kill(child, SIGINT);
  std::this_thread::sleep_for(20ms);
  kill(child, SIGINT);
  const Ended ended = wait(child);
  EXPECT_TRUE(WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGINT) << ended.err;
}

TEST_F(TrainDecoder, AKilledRunGoesOnToTheSameBits) {
  expect_ok(run(with({"--steps", "400", "--out", "unbroken"})));
  const std::string checkpoint = path("broken/checkpoint.safetensors");
  const auto written = [&] {
    return fs::exists(checkpoint) ? fs::last_write_time(checkpoint) : fs::file_time_type::min();
  };
  for (int i = 0; i < 8; ++i) {
    const auto before = written();
    const pid_t child = start(i > 0 ? std::vector<std::string>{"--resume", "broken"}
                                    : with({"--steps", "400", "--out", "broken", "--checkpoint-every", "1"}));
    wait_until(child, [&] { return written() != before; });
    std::this_thread::sleep_for(std::chrono::microseconds(700 * i));  // somewhere in a later checkpoint
    kill(child, SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(wait(child).status)) << "the run ended before kill " << i;
    ASSERT_NO_THROW(data::load_safetensors(checkpoint)) << "after kill " << i;
  }
  expect_ok(run({"--resume", "broken"}));
  expect_same_run("unbroken", "broken");
}

TEST_F(TrainDecoder, ARunCanBeMadeLonger) {
  expect_ok(run(with({"--steps", "4", "--out", "run", "--schedule", "constant"})));
  expect_ok(run({"--resume", "run", "--steps", "8"}));
  expect_ok(run(with({"--steps", "8", "--out", "unbroken", "--schedule", "constant"})));
  expect_same_run("run", "unbroken");
  EXPECT_THAT(content(folder_ / "run/config.json"), HasSubstr("\"steps\": 8"));
}

TEST_F(TrainDecoder, ARunCanChangeItsKindOfLength) {
  // The learning rate ends at the foot of its cosine, whichever way its progress is counted.
  const auto last_lr = [&](const std::string& run) {
    const std::string text = metrics(run), line = text.substr(text.rfind('\n', text.size() - 2) + 1);
    std::vector<std::string> fields;
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) fields.push_back(cell);
    return std::stod(fields.at(4));
  };
  expect_ok(run(with({"--steps", "300", "--stop-at", "120", "--out", "steps"})));
  EXPECT_GT(last_lr("steps"), 1e-3);
  expect_ok(run({"--resume", "steps", "--minutes", "0.1"}));
  EXPECT_LT(last_lr("steps"), 1e-4);
  expect_ok(run(with({"--minutes", "0.02", "--stop-at", "4", "--out", "minutes"})));
  expect_ok(run({"--resume", "minutes", "--steps", "300", "--stop-at", "99"}));
  EXPECT_GT(last_lr("minutes"), 1e-3);
  expect_ok(run({"--resume", "minutes", "--steps", "300"}));
  EXPECT_LT(last_lr("minutes"), 1e-4);
}

TEST_F(TrainDecoder, MakesImagesOfAnySize) {
  for (const Shape& shape :
       {Shape{5, 1, 1, 1}, Shape{5, 3, 7, 30}, Shape{5, 2, 13, 9}, Shape{5, 5, 33, 64}}) {
    data::save_npy(path("images.npy"), rand(shape));
    for (const char* model : {"small", "dcgan"}) {
      fs::remove_all(folder_ / "run");
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

TEST_F(TrainDecoder, InfoTrainsNothing) {
  const Ended ended = run(with({"--info"}));
  expect_ok(ended);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("30 images [3,16,16]"), HasSubstr("conv_transpose2d in="),
                               HasSubstr("[3,16,16]")));
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
}

TEST_F(TrainDecoder, HelpNamesEveryFlag) {
  const Ended ended = run({"--help"});
  expect_ok(ended);
  for (const char* flag :
       {"--data",         "--model",      "--latent",  "--batch",   "--loss",    "--lr",
        "--code-lr",      "--schedule",   "--ema",     "--seed",    "--epochs",  "--steps",
        "--minutes",      "--device",     "--threads", "--workers", "--out",     "--checkpoint-every",
        "--sample-every", "--log-every",  "--quiet",   "--resume",  "--stop-at", "--info",
        "--unit-ball",    "--code-stddev"}) {
    EXPECT_THAT(ended.out, HasSubstr(std::string(flag) + " ")) << flag;
  }
}

TEST_F(TrainDecoder, WhatIsWrongGetsOneClearLine) {
  std::ofstream(path("text.png")) << "no picture";
  std::ofstream(path("bad.txt")) << "linear in=6 out=10\nrelo\n";
  std::ofstream(path("wrong.txt")) << "linear in=6 out=10\n";
  fs::create_directory(folder_ / "empty");
  fs::create_directory(folder_ / "images");
  data::save_png(path("images/a.png"), rand({3, 20, 20}));
  const std::string png = content(path("images/a.png"));
  std::ofstream(path("images/b.png"), std::ios::binary) << png.substr(0, png.size() / 2);
  std::ofstream(path("file")) << "";
  fs::create_directory(folder_ / "run");
  std::ofstream(path("run/config.json")) << "{\"batch\": tru";

  struct Case {
    std::vector<std::string> arguments;
    int status;
    std::string error;
  };
  const std::vector<Case> cases = {
      {{"--latnet", "3"}, 2, "--latnet"},
      {{"--latent", "x"}, 2, "--latent"},
      {{"--latent", "0"}, 2, "--latent: 0 is not legal; legal are numbers from 1 to 65536"},
      {{"--lr", "nan"}, 2, "--lr: nan is not legal"},
      {{"--steps", "3", "--epochs", "2"}, 2, "--epochs excludes --steps"},
      {{"--loss", "l7"}, 2, "--loss"},
      {{"--checkpoint-every", "soon"}, 2, "interval soon is not legal"},
      {{"--data", "missing.npy"}, 1, "missing.npy"},
      {{"--data", "text.png"}, 1, "text.png"},
      {{"--data", "empty"}, 1, "empty"},
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
  for (const Case& c : cases) {
    const Ended ended = run(c.arguments);
    SCOPED_TRACE(testing::PrintToString(c.arguments));
    EXPECT_EQ(ended.exit_code(), c.status) << ended.err;
    EXPECT_THAT(ended.err, AllOf(StartsWith("train_decoder: "), HasSubstr(c.error), EndsWith("\n")));
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
  EXPECT_FALSE(fs::exists(folder_ / "runs")) << "an error must not leave a run folder";
}

TEST_F(TrainDecoder, InferDecoderReadsItsCheckpoints) {
  for (const char* average : {"0", "0.9"}) {
    const std::string checkpoint = std::string("run") + average + "/checkpoint.safetensors";
    expect_ok(run(with({"--steps", "3", "--out", std::string("run") + average, "--ema", average})));
    expect_ok(run({checkpoint, "random", "20", "random.png"}, INFER_DECODER));
    expect_ok(run({checkpoint, "between", "0", "29", "between.png"}, INFER_DECODER));
    // Two rows and one row of ten 16 x 16 images with 2 pixels around each.
    EXPECT_EQ(data::load_image(path("random.png")).shape(), (Shape{3, 38, 182}));
    EXPECT_EQ(data::load_image(path("between.png")).shape(), (Shape{3, 20, 182}));
    const Ended wrong = run({checkpoint, "between", "0", "30"}, INFER_DECODER);
    EXPECT_EQ(wrong.exit_code(), 1);
    EXPECT_EQ(wrong.err, "infer_decoder: image 30: legal are 0 to 29\n");
  }
}

TEST_F(TrainDecoder, ABrokenCheckpointIsNamed) {
  expect_ok(run(with({"--steps", "2", "--out", "run"})));
  const std::string whole = content(path("run/checkpoint.safetensors"));
  std::ofstream(path("run/checkpoint.safetensors"), std::ios::binary) << whole.substr(0, whole.size() / 2);
  const std::string config = content(path("run/config.json"));
  const Ended ended = run({"--resume", "run", "--steps", "9"});
  EXPECT_EQ(ended.exit_code(), 1);
  EXPECT_THAT(ended.err, AllOf(StartsWith("train_decoder: "), HasSubstr("run/checkpoint.safetensors")));
  EXPECT_EQ(content(path("run/config.json")), config);
}

}  // namespace
}  // namespace tapedeck
