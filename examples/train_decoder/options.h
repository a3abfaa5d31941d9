// What the command line says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tapedeck/core/shape.h>

namespace train_decoder {

/// How often something is done: every so many steps, or whenever so much time has passed. Written
/// "500", "30s", "5m"; "0" is never.
struct Interval {
  std::int64_t steps = 0;
  double seconds = 0;
};

/// Throws tapedeck::Error for other texts.
Interval parse_interval(const std::string& text);

/// "64" or "48x64"; 0 for an empty text. Throws tapedeck::Error for others.
tapedeck::Size2 parse_size(const std::string& text);

struct Options {
  // What is trained.
  std::string data = "sprites";
  std::string size;  // "64" or "48x64"; empty: as the data is
  std::int64_t channels = 3;
  std::string model = "small";
  std::int64_t latent = 64;
  std::string device = "cpu";

  // How. The run ends after `steps`, or `minutes`, or else `epochs`: the first that is not 0.
  std::int64_t epochs = 60;
  std::int64_t steps = 0;
  double minutes = 0;
  std::int64_t batch = 64;
  std::string loss = "mse";
  double ssim_weight = 0.1;
  double lr = 2e-3;
  double code_lr = 0.1;
  std::string schedule = "cosine";
  std::string code_init = "auto";
  double code_stddev = 0.2;
  bool unit_ball = false;
  double clip = 0;
  double ema = 0;
  std::string precision = "highest";
  std::int64_t seed = 0;

  // The machine; nothing of this changes the result.
  int threads = 0;  // 0: the library's default
  int workers = 1;

  // What is written.
  std::string out;
  std::string checkpoint_every = "60s";
  std::string sample_every = "30s";
  std::int64_t log_every = 20;

  // One call of the program; not part of the configuration.
  std::string resume;
  std::int64_t stop_at = 0;
  std::string memory_snapshot;
  bool info = false;
  bool quiet = false;
};

/// How the parser ends the program: `text` for stdout when `code` is 0 (--help), else one
/// line for stderr.
struct ParserExit {
  int code;
  std::string text;
};

/// Reads the command line; with --resume, over the configuration of that run. Throws ParserExit, and
/// tapedeck::Error when the run to resume cannot be read.
Options parse_options(int argc, const char* const* argv);

/// The configuration as JSON, and back. Throws tapedeck::Error, naming `source` and the key, for a key that
/// is missing or unknown and for a value that its flag does not take.
std::string to_json(const Options& options);
Options options_from_json(const std::string& text, const std::string& source);

/// All flags but --help, such as "--data".
std::vector<std::string> flags();

}  // namespace train_decoder
