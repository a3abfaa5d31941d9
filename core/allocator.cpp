#include <tapedeck/core/allocator.h>

#include <cstdlib>

#include <tapedeck/core/error.h>

namespace tapedeck {

namespace {
class HostAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes, Stream) override {
    if (bytes == 0) return nullptr;
    void* pointer = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    check(pointer != nullptr, "cpu allocator: out of memory for ", bytes, " bytes");
    return pointer;
  }
  void deallocate(void* pointer, std::size_t, Stream) noexcept override { std::free(pointer); }

 private:
  static constexpr std::size_t kAlignment = 64;
};
}  // namespace

Allocator& cpu_allocator() {
  static HostAllocator* allocator = new HostAllocator;  // outlives every static tensor
  return *allocator;
}

}  // namespace tapedeck
