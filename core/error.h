// Errors: one exception type, and the one way to raise it.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace tapedeck {

/// What every function of Tapedeck throws. The text names the op, the argument, its value and the
/// legal range, e.g. `conv_transpose2d: weight has 8 input channels but x has 16 (x [2,16,7,5], ...)`.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {
void append(std::string& text, std::string_view value);
void append(std::string& text, double value);
void append(std::string& text, long long value);
void append(std::string& text, unsigned long long value);

template <class T>
void append_any(std::string& text, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    append(text, std::string_view(value ? "true" : "false"));
  } else if constexpr (std::is_same_v<T, char>) {
    append(text, std::string_view(&value, 1));
  } else if constexpr (std::is_floating_point_v<T>) {
    append(text, static_cast<double>(value));
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    append(text, static_cast<long long>(value));
  } else if constexpr (std::is_integral_v<T>) {
    append(text, static_cast<unsigned long long>(value));
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    append(text, std::string_view(value));
  } else {
    append(text, std::string_view(to_string(value)));  // found by argument-dependent lookup
  }
}
}  // namespace detail

/// Joins its arguments into one string: text, numbers, and anything with a `to_string`.
template <class... Args>
std::string concat(const Args&... args) {
  std::string text;
  (detail::append_any(text, args), ...);
  return text;
}

/// Throws Error with the joined arguments unless `condition` holds.
template <class... Args>
void check(bool condition, const Args&... args) {
  if (!condition) [[unlikely]] {
    throw Error(concat(args...));
  }
}

}  // namespace tapedeck
