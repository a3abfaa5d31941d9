// Models as text: whatever the text, a model or an Error, and never more memory than allowed.
#include <cstdlib>

#include <tapedeck/nn/model_description.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tapedeck;
  constexpr std::int64_t kMost = 1 << 14;
  try {
    const auto description = nn::ModelDescription::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (description.build(kMost).parameter_count() > kMost) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
