#include <tapedeck/nn/data/image.h>

/// Any bytes give an image or an Error, under any options; the last byte picks those.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size == 0) return 0;
  constexpr std::int64_t kChannels[] = {0, 1, 3, 0};
  const unsigned char pick = data[size - 1];
  try {
    (void)tapedeck::data::decode_image(
        std::as_bytes(std::span(data, size)), "memory",
        {.channels = kChannels[pick % 4], .max_pixels = 1 << 16, .needed_side = pick / 4 % 4});
  } catch (const tapedeck::Error&) {
  }
  return 0;
}
