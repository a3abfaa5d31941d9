#include <tapedeck/core/precision.h>

#include <atomic>

namespace tapedeck {

namespace {
std::atomic<Precision> policy = Precision::highest;
}

void set_float32_precision(Precision precision) {
  policy = precision;
}
Precision float32_precision() {
  return policy;
}

}  // namespace tapedeck
