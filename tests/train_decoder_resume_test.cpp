// train_decoder --resume: a run that was broken, by whatever, goes on to the bits of an unbroken one.
#include <functional>

#include <gmock/gmock.h>

#include "sanitizers.h"
#include "train_decoder.h"

namespace tapedeck {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;
using namespace std::chrono_literals;

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
  EXPECT_THAT(content("broken/status.json"), HasSubstr("\"finished\": false"));
  expect_ok(run({"--resume", "broken", "--stop-at", "11", "--threads", "3"}));
  expect_ok(run({"--resume", "broken", "--threads", "1", "--workers", "0"}));
  expect_same_run("unbroken", "broken");
}

INSTANTIATE_TEST_SUITE_P(
    Variants, ResumedRun,
    testing::Values(Variant{"small", {}},
                    Variant{"dcgan_average_one_cycle",
                            {"--model", "dcgan", "--ema", "0.9", "--schedule", "one-cycle", "--unit-ball"}},
                    Variant{"float16", {"--precision", "float16"}},
                    Variant{"dropout_bce",
                            {"--model", "model.txt", "--loss", "bce", "--schedule", "constant"}}),
    [](const auto& instance) { return instance.param.name; });

/// Steps that take longer than interrupting them does.
const std::string kLong = std::to_string(test::kSanitized ? 80 : 400);

TEST_F(TrainDecoder, CtrlCLeavesACheckpointThatGoesOnToTheSameBits) {
  expect_ok(run(with({"--steps", kLong, "--out", "unbroken"})));
  const pid_t child = start(with({"--steps", kLong, "--out", "broken"}));
  wait_until(child, [&] { return content("broken/metrics.csv").size() > 100; });
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
  wait_until(child, [&] { return fs::exists(path("run/metrics.csv")); });
  std::this_thread::sleep_for(100ms);
  kill(child, SIGINT);
  std::this_thread::sleep_for(20ms);
  kill(child, SIGINT);
  const Ended ended = wait(child);
  EXPECT_TRUE(WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGINT) << ended.err;
}

TEST_F(TrainDecoder, AKilledRunGoesOnToTheSameBits) {
  expect_ok(run(with({"--steps", kLong, "--out", "unbroken"})));
  const std::string checkpoint = path("broken/checkpoint.safetensors");
  const auto written = [&] {
    return fs::exists(checkpoint) ? fs::last_write_time(checkpoint) : fs::file_time_type::min();
  };
  for (int i = 0; i < 8; ++i) {
    const auto before = written();
    const pid_t child = start(i > 0 ? std::vector<std::string>{"--resume", "broken"}
                                    : with({"--steps", kLong, "--out", "broken", "--checkpoint-every", "1"}));
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
  EXPECT_THAT(content("run/config.json"), HasSubstr("\"steps\": 8"));
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
  // A step that the machine holds up may be the last of its time, with the rate of its beginning: not each
  // time.
  double least = 1;
  for (const std::string out : {"steps", "again", "once more"}) {
    if (least < 1e-4) break;
    expect_ok(run(with({"--steps", "75", "--stop-at", "30", "--out", out})));
    EXPECT_GT(last_lr(out), 1e-3);
    expect_ok(run({"--resume", out, "--minutes", "0.1"}));
    least = last_lr(out);
  }
  EXPECT_LT(least, 1e-4);
  expect_ok(run(with({"--minutes", "0.02", "--stop-at", "4", "--out", "minutes"})));
  expect_ok(run({"--resume", "minutes", "--steps", "75", "--stop-at", "24"}));
  EXPECT_GT(last_lr("minutes"), 1e-3);
  expect_ok(run({"--resume", "minutes", "--steps", "75"}));
  EXPECT_LT(last_lr("minutes"), 1e-4);
}

TEST_F(TrainDecoder, ABrokenCheckpointIsNamed) {
  expect_ok(run(with({"--steps", "2", "--out", "run"})));
  const std::string whole = content("run/checkpoint.safetensors");
  std::ofstream(path("run/checkpoint.safetensors"), std::ios::binary) << whole.substr(0, whole.size() / 2);
  const std::string config = content("run/config.json");
  const Ended ended = run({"--resume", "run", "--steps", "9"});
  EXPECT_EQ(ended.exit_code(), 1);
  EXPECT_THAT(ended.err, AllOf(StartsWith("train_decoder: "), HasSubstr("run/checkpoint.safetensors")));
  EXPECT_EQ(content("run/config.json"), config);
}

TEST_F(TrainDecoder, AShortIntervalOfMetricsGoesOn) {
  expect_ok(run(with({"--steps", "14", "--out", "unbroken"})));
  expect_ok(run(with({"--steps", "14", "--out", "broken", "--stop-at", "4"})));
  EXPECT_THAT(metrics("broken"), HasSubstr("\n4,"));
  expect_ok(run({"--resume", "broken"}));
  EXPECT_THAT(metrics("broken"), testing::Not(HasSubstr("\n4,")));
  expect_same_run("unbroken", "broken");
}

TEST_F(TrainDecoder, TrainsOneRunAtATime) {
  const pid_t child = start(with({"--steps", "100000", "--out", "run"}));
  wait_until(child, [&] { return fs::exists(path("run/config.json")); });
  for (const char* flag : {"--resume", "--out"}) {
    const pid_t other =
        start_program({"/bin/sh", "-c", std::string(EXAMPLES "/train_decoder ") + flag + " run 2> other"});
    int status = 0;
    waitpid(other, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 1) << flag;
    EXPECT_EQ(content("other"), "train_decoder: run: another train_decoder is training this run\n") << flag;
  }
  const pid_t reader =
      start_program({"/bin/sh", "-c", EXAMPLES "/train_decoder --info --resume run 2> other"});
  int status = 0;
  waitpid(reader, &status, 0);
  EXPECT_EQ(status, 0) << content("other");
  kill(child, SIGINT);
  wait(child);
  expect_ok(run({"--resume", "run", "--stop-at", "1"}));  // the lock goes with its process
}

/// Something that ends a run with an error, and what undoes it.
struct Trouble {
  const char* name;
  std::function<void(const fs::path&)> make, mend;
  const char* message;

  friend void PrintTo(const Trouble& trouble, std::ostream* out) { *out << trouble.name; }
};

class RunInTrouble : public TrainDecoder, public testing::WithParamInterface<Trouble> {};

TEST_P(RunInTrouble, SavesWhatItLearned) {
  fs::create_directory(path("images"));
  for (int i = 0; i < 20; ++i) data::save_png(path(concat("images/", i, ".png")), rand({3, 9, 9}));
  const std::vector<std::string> flags = {"--data",
                                          "images",
                                          "--size",
                                          "8",
                                          "--batch",
                                          "4",
                                          "--latent",
                                          "6",
                                          "--steps",
                                          test::kSanitized ? "150" : "600",
                                          "--checkpoint-every",
                                          "0",
                                          "--workers",
                                          "0",
                                          "--quiet",
                                          "--log-every",
                                          "3",
                                          "--out"};
  auto unbroken = flags, broken = flags;
  unbroken.push_back("unbroken");
  broken.push_back("broken");
  expect_ok(run(unbroken));
  const pid_t child = start(broken);
  wait_until(child, [&] { return content("broken/metrics.csv").size() > 100; });
  GetParam().make(folder_.path());
  const Ended ended = wait(child);
  EXPECT_EQ(ended.exit_code(), 1);
  EXPECT_THAT(ended.err, AllOf(HasSubstr(GetParam().message), HasSubstr("; what was learned until step "),
                               HasSubstr(" is saved: train_decoder --resume broken goes on\n")));
  GetParam().mend(folder_.path());
  expect_ok(run({"--resume", "broken"}));
  expect_same_run("unbroken", "broken");
}

INSTANTIATE_TEST_SUITE_P(Troubles, RunInTrouble,
                         testing::Values(Trouble{"metrics_cannot_be_written",
                                                 [](const fs::path& folder) {
                                                   fs::rename(folder / "broken/metrics.csv", folder / "kept");
                                                   fs::create_directory(folder / "broken/metrics.csv");
                                                 },
                                                 [](const fs::path& folder) {
                                                   fs::remove(folder / "broken/metrics.csv");
                                                   fs::rename(folder / "kept", folder / "broken/metrics.csv");
                                                 },
                                                 "broken/metrics.csv: cannot be written"},
                                         Trouble{"an_image_is_gone",
                                                 [](const fs::path& folder) {
                                                   fs::rename(folder / "images/7.png", folder / "kept");
                                                 },
                                                 [](const fs::path& folder) {
                                                   fs::rename(folder / "kept", folder / "images/7.png");
                                                 },
                                                 "images/7.png: cannot open"}),
                         [](const auto& instance) { return instance.param.name; });

TEST_F(TrainDecoder, AnotherModelThanTheCheckpointsIsNamed) {
  std::ofstream(path("tiny.txt")) << "linear in=6 out=768\nunflatten shape=3x16x16\n";
  expect_ok(run(with({"--steps", "2", "--out", "run", "--model", "tiny.txt"})));
  // The run keeps its model, whatever becomes of the file.
  std::ofstream(path("tiny.txt")) << "linear in=6 out=768\nsigmoid\nunflatten shape=3x16x16\n";
  EXPECT_THAT(run({"--resume", "run", "--info"}).out, testing::Not(HasSubstr("sigmoid")));
  fs::copy(path("tiny.txt"), path("run/model.txt"), fs::copy_options::overwrite_existing);
  const Ended ended = run({"--resume", "run", "--steps", "9"});
  EXPECT_EQ(ended.exit_code(), 1);
  EXPECT_EQ(
      ended.err,
      "train_decoder: run/model.txt: is not the model of run/checkpoint.safetensors; put it back, or start "
      "a run of its own with --model run/model.txt\n");
}

TEST_F(TrainDecoder, GoesOnFromAnotherCurrentDirectory) {
  data::save_npy(path("images.npy"), rand({5, 3, 8, 8}));
  expect_ok(run({"--data", "images.npy", "--steps", "2", "--quiet", "--out", "run"}));
  const Ended ended =
      run_program({"/bin/sh", "-c", "cd / && " EXAMPLES "/train_decoder --steps 4 --resume " + path("run")});
  expect_ok(ended);
}

}  // namespace
}  // namespace tapedeck
