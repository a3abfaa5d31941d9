#include <tapedeck/nn/warning.h>

#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

namespace tapedeck {

namespace {

struct Warnings {
  std::mutex mutex;
  WarningHandler handler = [](const std::string& text) {
    std::fprintf(stderr, "tapedeck: warning: %s\n", text.c_str());
  };
  std::set<std::string> said;
};

Warnings& warnings() {
  static Warnings instance;
  return instance;
}

}  // namespace

WarningHandler set_warning_handler(WarningHandler handler) {
  std::lock_guard lock(warnings().mutex);
  return std::exchange(warnings().handler, std::move(handler));
}

void warn_once(const std::string& text) {
  WarningHandler handler;
  {
    std::lock_guard lock(warnings().mutex);
    if (!warnings().said.insert(text).second) return;
    handler = warnings().handler;
  }
  if (handler) handler(text);
}

}  // namespace tapedeck
