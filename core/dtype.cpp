#include <tapedeck/core/dtype.h>

namespace tapedeck {

namespace {
constexpr DType kAll[] = {DType::float64, DType::float32, DType::bfloat16,
                          DType::float16, DType::int64,   DType::uint8};
}

std::string to_string(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return "float64";
    case DType::float32:
      return "float32";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float16:
      return "float16";
    case DType::int64:
      return "int64";
    case DType::uint8:
      return "uint8";
  }
  return "unknown";
}

DType parse_dtype(std::string_view name) {
  for (DType dtype : kAll) {
    if (name == to_string(dtype)) return dtype;
  }
  throw Error(
      concat("dtype: \"", name, "\" is not one of float64, float32, bfloat16, float16, int64, uint8"));
}

}  // namespace tapedeck
