#include "interrupt.h"

#include <cerrno>
#include <csignal>
#include <initializer_list>

#include <unistd.h>

namespace train_decoder {

namespace {

volatile std::sig_atomic_t received = 0;

// Only what is safe in a signal handler: a flag, write() and signal().
extern "C" void on_signal(int signal) {
  const int error = errno;  // what the signal interrupts may be about to read it
  received = signal;
  std::signal(signal, SIG_DFL);  // the next one ends the program
  constexpr char kText[] = "\ntrain_decoder: ending after this step with a checkpoint; again to abort\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kText, sizeof kText - 1);
  errno = error;
}

void install(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // a checkpoint that is being written is not cut short
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
  install(on_signal);
}

InterruptGuard::~InterruptGuard() {
  install(SIG_DFL);
}

int InterruptGuard::signal_received() {
  return received;
}

}  // namespace train_decoder
