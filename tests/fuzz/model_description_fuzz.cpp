// Models as text: whatever the text, a model or an Error, and never more memory than allowed; and whatever
// the model, a run or an Error.
#include <cstdlib>

#include <tapedeck/nn/model_description.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tapedeck;
  constexpr std::int64_t kMost = 1 << 14;
  constexpr std::size_t kMostBytes = 1 << 15;  // few, so that no run takes long
  try {
    const auto description = nn::ModelDescription::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    const nn::Sequential model = description.build(kMost);
    if (model.parameter_count() > kMost) std::abort();
    for (const Shape& input : {Shape{1, 64}, Shape{1, 4, 8, 8}}) {
      try {
        for (const auto& row : description.trace(model, input, kMostBytes)) {
          if (row.output.count() > static_cast<std::int64_t>(kMostBytes / sizeof(float))) std::abort();
        }
      } catch (const Error&) {
      }
    }
  } catch (const Error&) {
  }
  return 0;
}
