// Where tests find and leave files.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace tapedeck {

/// A committed file of tests/data/files.
inline std::string test_file(const std::string& name) {
  return std::string(TAPEDECK_TEST_DATA) + "/files/" + name;
}

/// A folder that is empty at first and goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = ::testing::TempDir() + "tapedeck-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(std::string_view name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The shared data folder: TAPEDECK_DATA, or ../shared/data beside the sources; empty if there is none.
inline std::string shared_data() {
  const char* set = std::getenv("TAPEDECK_DATA");
  for (const std::filesystem::path& path :
       {std::filesystem::path(set != nullptr ? set : ""),
        std::filesystem::path(TAPEDECK_TEST_DATA "/../../../shared/data")}) {
    if (!path.empty() && std::filesystem::is_directory(path)) return path.string();
  }
  return "";
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_text(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// The text of the exception that `f` throws; "no exception" if it throws none.
template <class Exception, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no exception";
}

}  // namespace tapedeck
