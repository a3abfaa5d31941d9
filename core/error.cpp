#include <tapedeck/core/error.h>

#include <charconv>
#include <cmath>
#include <locale>
#include <sstream>

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
/// The fewest digits, six or more, that make the same number. Not by std::to_chars, whose tables for doubles
/// alone take 100 KB of a program.
void append(std::string& text, double value) {
  for (int digits = 6; digits <= 17; ++digits) {
    std::stringstream stream;
    stream.imbue(std::locale::classic());
    stream.precision(digits);
    stream << value;
    const std::string number = stream.str();
    double read = 0;
    if (digits < 17 && std::isfinite(value) && !(stream >> read && read == value)) continue;
    text += number;
    return;
  }
}
void append(std::string& text, long long value) {
  append_number(text, value);
}
void append(std::string& text, unsigned long long value) {
  append_number(text, value);
}

}  // namespace tapedeck::detail
