// Warnings: what is legal but probably not meant.
#pragma once

#include <functional>
#include <string>

namespace tapedeck {

using WarningHandler = std::function<void(const std::string& text)>;

/// Replaces what is done with a warning and returns what was done before. By default it is a line on stderr;
/// an empty handler drops warnings.
WarningHandler set_warning_handler(WarningHandler handler);

/// Hands `text` to the handler, the first time that the process says it.
void warn_once(const std::string& text);

}  // namespace tapedeck
