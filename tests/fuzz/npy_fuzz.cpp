#include <tapedeck/nn/data/npy.h>

/// Any bytes give a tensor or an Error.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  try {
    (void)tapedeck::data::decode_npy(std::as_bytes(std::span(data, size)));
  } catch (const tapedeck::Error&) {
  }
  return 0;
}
