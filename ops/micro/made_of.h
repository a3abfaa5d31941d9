// What CPU kernels make of weights before they multiply, kept with the weights while these stay as they are.
//
// Nothing is kept at the first use after a change, so that training, which changes weights in each step and
// uses them once in it, pays nothing. At the second it is, with a fingerprint of all elements. From then on
// these are read and their fingerprint is compared, which costs a part of making it anew: who writes through
// a pointer that was asked for before need not say so.
//
// It takes memory of the device's default allocator for each direction, until the weights change or go: 1 to
// 2.5 times theirs, and more where channels are fewer than a vector has. Where the CPU has a memory limit
// (set_memory_limit()) nothing is kept, and what was before goes when its weights are used next. Weights that
// are converted or laid out anew for a call (16-bit types, nhwc) keep it for that call, if at all.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <tapedeck/ops/micro/kernels.h>
#include <tapedeck/ops/micro/scratch.h>

namespace tapedeck::cpu {

enum class Maker : std::uint8_t { windows, winograd, planes, in_place };

/// Who makes it, and all that it depends on besides the elements.
struct MadeKey {
  Maker maker;
  std::vector<std::int64_t> sizes;
  const void* kernels = nullptr;   // set by made_of()
  const void* elements = nullptr;  // the same: of slices of a storage

  friend bool operator==(const MadeKey&, const MadeKey&) = default;
};

namespace detail {
/// An undefined tensor at the first use, and under a memory limit.
Tensor kept(const Tensor& w, const MadeKey& key, const std::function<Tensor()>& make);
}  // namespace detail

/// What make() returns, a Scratch<T>, or what it returned for the same elements and key before. Any thread
/// may call it. What is kept, a few of each storage, dies with the storage.
template <class T, class Make>
Scratch<T> made_of(const Tensor& w, MadeKey key, const Make& make) {
  key.kernels = &micro::kernels<T>();
  key.elements = w.read();
  const Tensor kept = detail::kept(w, key, [&] { return make().tensor(); });
  return kept.defined() ? Scratch<T>(kept) : make();
}

}  // namespace tapedeck::cpu
