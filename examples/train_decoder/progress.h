// What the user sees while training: a bar on a terminal, a line now and then in a log.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace train_decoder {

struct Progress {
  std::int64_t step = 0;      // of this run, counted from its first start
  double fraction = 0;        // done, in [0, 1]
  double loss = 0, psnr = 0;  // recent means; psnr in dB
  double images_per_second = 0;
  double seconds_left = 0;
};

/// "  42% |########        | step 420  loss 0.01234  21.3 dB  3210 images/s  1:23 left", cut or filled
/// with the bar to `columns`; 0 columns: no bar.
std::string progress_line(const Progress& progress, int columns);

/// "1:05", "2:03:04".
std::string duration(double seconds);

class ProgressDisplay {
 public:
  /// Writes to stderr; nothing when `quiet`.
  explicit ProgressDisplay(bool quiet);
  ~ProgressDisplay();
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;

  /// Redraws the bar at most 10 times a second, or writes a line at most every 5 seconds; at once when
  /// `final`.
  void show(const Progress& progress, bool final = false);
  /// Ends the bar's line, so that other text can follow.
  void end_line();

 private:
  using Clock = std::chrono::steady_clock;
  bool quiet_, terminal_;
  bool open_line_ = false;
  Clock::time_point next_{};
};

}  // namespace train_decoder
