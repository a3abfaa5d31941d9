// How much of a long test runs under sanitizers.
#pragma once

namespace tapedeck::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

/// What the numbers of cases in long tests are divided by: sanitizers look for accesses and overflows, for
/// which fewer do, and a case takes five to twenty times as long there. A number that has no divisor in
/// common with those of paths, layouts and types, so that every eleventh combination of them has all of each.
inline constexpr int kFewer = kSanitized ? 11 : 1;

}  // namespace tapedeck::test
