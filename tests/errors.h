// What functions throw.
#pragma once

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/core/error.h>

namespace tapedeck {

/// The text of the Error that `f` throws.
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// Fails unless `f` throws an Error with `text` in it.
template <class F>
void expect_error(const F& f, const std::string& text) {
  EXPECT_THAT(error_of(f), ::testing::HasSubstr(text));
}

}  // namespace tapedeck
