#include <tapedeck/core/error.h>

#include <charconv>

namespace tapedeck::detail {

namespace {
template <class T>
void append_number(std::string& text, T value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  text.append(buffer, end);
}
}  // namespace

void append(std::string& text, std::string_view value) {
  text += value;
}
void append(std::string& text, double value) {
  append_number(text, value);
}
void append(std::string& text, long long value) {
  append_number(text, value);
}
void append(std::string& text, unsigned long long value) {
  append_number(text, value);
}

}  // namespace tapedeck::detail
