#include <tapedeck/core/file.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/nn/data/image.h>
#include <tapedeck/nn/data/npy.h>
#include <tapedeck/nn/data/safetensors.h>

#include "files.h"

namespace tapedeck::data {
namespace {

using ::testing::HasSubstr;

TEST(AtomicFile, ReplacesOnCommit) {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  write_text(path, "old");
  {
    AtomicFile file(path);
    file.write("new ");
    file.write("text");
    EXPECT_EQ(read_text(path), "old");
    file.commit();
    EXPECT_EQ(read_text(path), "new text");
    EXPECT_THAT(message_of<Error>([&] { file.write("more"); }), HasSubstr("written to after commit"));
  }
  EXPECT_EQ(read_text(path), "new text");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(AtomicFile, AKilledProcessLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  write_text(path, "old");
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(path);
    file.write("half of the new te");
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_text(path), "old");
  write_atomically(path, std::string_view("new"));  // the leftover, longer than this, is in nobody's way
  EXPECT_EQ(read_text(path), "new");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(AtomicFile, WritersOfOnePathDoNotMix) {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  std::vector<std::thread> writers;
  for (int i = 0; i < 8; ++i) {
    writers.emplace_back([&, i] {
      for (int k = 0; k < 20; ++k) {
        AtomicFile file(path);
        for (int part = 0; part < 10; ++part) file.write(std::string(100, static_cast<char>('a' + i)));
        file.commit();
      }
    });
  }
  for (auto& writer : writers) writer.join();
  const std::string text = read_text(path);
  EXPECT_EQ(text, std::string(1000, text[0]));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(AtomicFile, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<Error>([&] { AtomicFile(folder.path().string()); }),
              HasSubstr("exists and is not a regular file"));
  EXPECT_THAT(message_of<Error>([] { AtomicFile("/dev/null"); }),
              HasSubstr("exists and is not a regular file"));
  EXPECT_EQ(message_of<Error>([] { AtomicFile("/nowhere/x"); }),
            "/nowhere/x: cannot write: No such file or directory");
}

TEST(AtomicFile, AFullDiskIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "x.tmp");
  EXPECT_THAT(message_of<Error>([&] {
                AtomicFile file(folder / "x");
                file.write("text");
                file.commit();
              }),
              HasSubstr("cannot write: "));
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
}

TEST(MappedFile, GivesTheBytes) {
  const TemporaryFolder folder;
  write_text(folder / "x", "bytes");
  write_text(folder / "empty", "");
  const MappedFile file(folder / "x");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()), "bytes");
  EXPECT_TRUE(MappedFile(folder / "empty").bytes().empty());
}

TEST(Save, NamesThePathOnce) {
  const std::string why = ": cannot write: No such file or directory";
  const Tensor image = Tensor::zeros({1, 2, 2});
  EXPECT_EQ(message_of<Error>([&] {
              save_safetensors("/nowhere/x", {{"a", image}});
            }),
            "save_safetensors: /nowhere/x" + why);
  EXPECT_EQ(message_of<Error>([&] { save_npy("/nowhere/x", image); }), "save_npy: /nowhere/x" + why);
  EXPECT_EQ(message_of<Error>([&] { save_png("/nowhere/x", image); }), "save_png: /nowhere/x" + why);
}

}  // namespace
}  // namespace tapedeck::data
