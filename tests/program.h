// Programs as their users see them: flags, files, signals, an exit status.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files.h"

namespace tapedeck {

/// Where the examples are: TAPEDECK_EXAMPLES, or where they were built.
inline std::string examples_folder() {
  const char* set = std::getenv("TAPEDECK_EXAMPLES");
  return set != nullptr ? set : EXAMPLES;
}

struct Ended {
  int status = 0;  // as waitpid() gives it
  std::string out, err;

  int exit_code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }
};

/// Runs programs in a folder of their own.
class ProgramTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string content(const std::string& name) const { return read_text(path(name)); }

  /// `command`: the program's path, then its arguments.
  pid_t start_program(std::vector<std::string> command) const {
    std::vector<char*> argv;
    for (std::string& argument : command) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const std::string out = path("stdout"), err = path("stderr");
    const pid_t child = fork();
    if (child == 0) {
      if (!freopen(out.c_str(), "w", stdout) || !freopen(err.c_str(), "w", stderr)) _exit(120);
      if (chdir(folder_.path().c_str()) != 0) _exit(121);
      execv(argv[0], argv.data());
      _exit(122);
    }
    return child;
  }

  Ended wait(pid_t child) const {
    Ended ended;
    waitpid(child, &ended.status, 0);
    ended.out = content("stdout");
    ended.err = content("stderr");
    return ended;
  }

  Ended run_program(const std::vector<std::string>& command) const { return wait(start_program(command)); }

  /// Waits until `ready()`. A test that waits longer than this takes has failed, and must not hang.
  template <class F>
  static void wait_until(pid_t child, F ready) {
    for (int i = 0; i < 20000 && !ready(); ++i) {
      siginfo_t info{};
      waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT);
      ASSERT_EQ(info.si_pid, 0) << "the program has ended";
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ASSERT_TRUE(ready());
  }

  static void expect_ok(const Ended& ended) { EXPECT_EQ(ended.exit_code(), 0) << ended.err << ended.out; }

  TemporaryFolder folder_;
};

}  // namespace tapedeck
