// Ctrl-C: the first asks for a clean end, the second ends the program at once.
#pragma once

namespace train_decoder {

/// Watches SIGINT and SIGTERM until the scope ends. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// The signal that came, or 0.
  static int signal_received();
};

}  // namespace train_decoder
