#include <tapedeck/nn/data/safetensors.h>

/// Any bytes give tensors or an Error.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  try {
    tapedeck::data::Metadata metadata;
    (void)tapedeck::data::decode_safetensors(std::as_bytes(std::span(data, size)), "memory", &metadata);
  } catch (const tapedeck::Error&) {
  }
  return 0;
}
