// What the tests of train_decoder share.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <tapedeck/tapedeck.h>

#include "program.h"

namespace tapedeck {

class TrainDecoder : public ProgramTest {
 protected:
  pid_t start(std::vector<std::string> arguments,
              const std::string& program = examples_folder() + "/train_decoder") const {
    arguments.insert(arguments.begin(), program);
    return start_program(arguments);
  }
  Ended run(const std::vector<std::string>& arguments,
            const std::string& program = examples_folder() + "/train_decoder") const {
    return wait(start(arguments, program));
  }

  /// A short run on few small images, which each test extends.
  static std::vector<std::string> with(std::vector<std::string> more) {
    std::vector<std::string> all = {"--data",      kData, "--latent", "6",         "--batch", "8",
                                    "--log-every", "3",   "--quiet",  "--code-lr", "0.05"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// metrics.csv without what depends on the clock.
  std::string metrics(const std::string& run) const {
    std::istringstream file(content(run + "/metrics.csv"));
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
    const std::string left = content(a + "/checkpoint.safetensors"),
                      right = content(b + "/checkpoint.safetensors");
    EXPECT_GT(left.size(), 1000u);
    EXPECT_TRUE(left == right) << "the checkpoints differ";
    EXPECT_EQ(metrics(a), metrics(b));
  }

  static constexpr const char* kData = "sprites:count=30,size=16";
};

}  // namespace tapedeck
