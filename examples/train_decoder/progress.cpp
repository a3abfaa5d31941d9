#include "progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <sys/ioctl.h>
#include <unistd.h>

namespace train_decoder {

namespace {

int terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string duration(double seconds) {
  const long total = std::lround(std::clamp(seconds, 0.0, 3.6e8));
  char text[32];
  if (total < 3600) {
    std::snprintf(text, sizeof text, "%ld:%02ld", total / 60, total % 60);
  } else {
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", total / 3600, total / 60 % 60, total % 60);
  }
  return text;
}

std::string progress_line(const Progress& p, int columns) {
  char text[160];
  std::snprintf(text, sizeof text, "step %lld  loss %.5f  %.2f dB  %.0f images/s  %s left",
                static_cast<long long>(p.step), p.loss, p.psnr, p.images_per_second,
                duration(p.seconds_left).c_str());
  const double fraction = std::clamp(p.fraction, 0.0, 1.0);
  char percent[8];
  std::snprintf(percent, sizeof percent, "%3d%%", static_cast<int>(fraction * 100));
  std::string line = percent;
  if (columns <= 0) return line + "  " + text;

  // The bar takes what the text leaves of the line; a narrow terminal gets the text alone, cut.
  const int width =
      std::min(40, columns - 1 - static_cast<int>(line.size() + std::char_traits<char>::length(text)) - 5);
  if (width >= 5) {
    const int done = static_cast<int>(fraction * width);
    line += " |" + std::string(static_cast<std::size_t>(done), '#') +
            std::string(static_cast<std::size_t>(width - done), ' ') + "|";
  }
  line += std::string("  ") + text;
  return line.substr(0, static_cast<std::size_t>(columns - 1));
}

ProgressDisplay::ProgressDisplay(bool quiet) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressDisplay::~ProgressDisplay() {
  end_line();
}

void ProgressDisplay::show(const Progress& progress, bool final) {
  const auto now = Clock::now();
  if (quiet_ || (now < next_ && !final)) return;
  if (terminal_) {
    next_ = now + std::chrono::milliseconds(100);
    std::fprintf(stderr, "\r%s\033[K", progress_line(progress, terminal_columns()).c_str());
    open_line_ = true;
  } else {
    next_ = now + std::chrono::seconds(5);
    std::fprintf(stderr, "%s\n", progress_line(progress, 0).c_str());
  }
  std::fflush(stderr);
}

void ProgressDisplay::end_line() {
  if (open_line_) std::fputc('\n', stderr);
  open_line_ = false;
}

}  // namespace train_decoder
