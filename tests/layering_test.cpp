// The direction of dependence, read from the sources: nn -> autograd -> ops -> core, never back; no public
// header includes a third party; one place knows whether CUDA is built in.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

const std::map<std::string, int> kRanks{{"core", 0}, {"ops", 1}, {"autograd", 2}, {"nn", 3}};

/// What is wrong with one file; `path` is relative to the top of the tree.
std::vector<std::string> problems(const fs::path& path, const std::string& text) {
  static const std::regex include(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  static const std::regex standard("[a-z_0-9]+");  // <vector>
  static const std::regex condition(R"(^\s*#\s*(if|ifdef|ifndef|elif)\b.*\bTAPEDECK_CUDA\b)");
  std::vector<std::string> found;
  const int rank = kRanks.at(path.begin()->string());
  const bool header = path.extension() == ".h";
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const auto report = [&](const std::string& what) {
      found.push_back(path.string() + ":" + std::to_string(number) + ": " + what);
    };
    if (line.find('#') == std::string::npos) continue;  // regular expressions take their time
    std::smatch match;
    if (std::regex_search(line, condition) && path != "core/backend.h") {
      report("TAPEDECK_CUDA is asked for outside of core/backend.h");
    }
    if (!std::regex_search(line, match, include)) continue;
    const std::string name = match[2];
    if (match[1] == "\"") {
      report("\"" + name + "\" is not included as <tapedeck/...>");
    } else if (name.starts_with("tapedeck/")) {
      const fs::path target = fs::path(name).lexically_relative("tapedeck");
      const auto folder = kRanks.find(target.begin()->string());
      if (folder == kRanks.end()) {
        report(name + " is for users of the library");
      } else if (folder->second > rank) {
        report(path.begin()->string() + " includes " + name + ", which is above it");
      }
    } else if (header && !std::regex_match(name, standard)) {
      report("a header includes <" + name + ">, which is no part of the standard library");
    }
  }
  return found;
}

TEST(Layering, HoldsInEveryFile) {
  const fs::path top = fs::path(TAPEDECK_TEST_DATA) / ".." / "..";
  int files = 0;
  for (const auto& [folder, rank] : kRanks) {
    for (const auto& entry : fs::recursive_directory_iterator(top.lexically_normal() / folder)) {
      const fs::path extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      EXPECT_THAT(problems(entry.path().lexically_relative(top.lexically_normal()), text.str()), IsEmpty());
      ++files;
    }
  }
  EXPECT_GT(files, 80);
}

TEST(Layering, FindsWhatIsWrong) {
  EXPECT_THAT(problems("core/a.cpp", "#include <vector>\n#include <tapedeck/ops/x.h>\n"),
              ElementsAre("core/a.cpp:2: core includes tapedeck/ops/x.h, which is above it"));
  EXPECT_THAT(problems("ops/a.cpp", "#include <tapedeck/autograd/tape.h>"),
              ElementsAre(HasSubstr("above it")));
  EXPECT_THAT(problems("autograd/a.h", "  #  include <tapedeck/nn/module.h>"),
              ElementsAre(HasSubstr("above it")));
  EXPECT_THAT(problems("nn/a.h", "#include <tapedeck/tapedeck.h>"), ElementsAre(HasSubstr("for users")));
  EXPECT_THAT(problems("nn/a.h", "#include <Eigen/Core>"), ElementsAre(HasSubstr("no part of the standard")));
  EXPECT_THAT(problems("nn/data/a.h", "#include <png.h>"), ElementsAre(HasSubstr("no part of the standard")));
  EXPECT_THAT(problems("nn/a.cpp", "#include \"module.h\""), ElementsAre(HasSubstr("is not included as")));
  EXPECT_THAT(problems("ops/a.cpp", "#if defined(TAPEDECK_CUDA)"), ElementsAre(HasSubstr("TAPEDECK_CUDA")));
  EXPECT_THAT(problems("ops/a.cu", "#ifdef TAPEDECK_CUDA"), ElementsAre(HasSubstr("TAPEDECK_CUDA")));
  EXPECT_THAT(problems("core/backend.h", "#if defined(TAPEDECK_CUDA)"), IsEmpty());
  EXPECT_THAT(problems("nn/a.cpp", "#include <png.h>\n#include <tapedeck/core/tensor.h>\n"), IsEmpty());
  EXPECT_THAT(problems("autograd/a.h", "#include <vector>\n#include <tapedeck/ops/x.h>\n"), IsEmpty());
}

}  // namespace
