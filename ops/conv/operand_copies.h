// Copies of operands in the forms that kernels read, kept for calls that read the same tensors: both
// gradients of a layer read its result's gradient.
#pragma once

#include <memory>
#include <vector>

#include <tapedeck/core/tensor.h>

namespace tapedeck {

/// Of tensors of so many elements a sample tells the largest magnitude, where they are copied
/// (ops/largest.cuh).
inline constexpr std::int64_t kLeastSampled = 1 << 22;

/// What a copy is of its tensor: `parts` numbers of `bytes` of each element, or none but their largest
/// magnitude; channels in `groups`; of an axis of rows all or some phases, as `rows` says; and in how many
/// neighbouring columns parts lie together.
struct OperandForm {
  int parts = 0, bytes = 0, groups = 0;
  unsigned rows = 0;
  int fold = 1;
  friend bool operator==(const OperandForm&, const OperandForm&) = default;
};

/// Which operand a map of the family and the weight's gradient of the same geometry will both read: what a
/// tape makes of y's gradient is y for both gradients of conv_transpose2d, and x for those of conv2d.
enum class ReadByBoth { none, x, y };

/// While one lives, its thread keeps the copies that kernels make of operands, and uses them again. Nobody
/// may write these operands meanwhile.
class OperandCopies {
 public:
  explicit OperandCopies(ReadByBoth both = ReadByBoth::none) : outer_(current_), both_(both) {
    current_ = this;
  }
  ~OperandCopies() { current_ = outer_; }
  OperandCopies(const OperandCopies&) = delete;
  OperandCopies& operator=(const OperandCopies&) = delete;

  /// What a map makes of this operand serves the weight's gradient, too.
  static ReadByBoth read_by_both() { return current_ != nullptr ? current_->both_ : ReadByBoth::none; }
  static bool serve_both() { return read_by_both() != ReadByBoth::none; }

  /// The bytes of a kept copy, or nothing.
  static std::shared_ptr<void> find(const Tensor& source, const OperandForm& form) {
    if (current_ != nullptr) {
      for (const Copy& c : current_->copies_)
        if (c.form == form && c.source.read() == source.read() && c.source.dtype() == source.dtype() &&
            c.source.layout() == source.layout() && c.source.shape() == source.shape())
          return c.bytes;
    }
    return nullptr;
  }
  /// Keeps a copy, and its source so that its place in memory does not become another tensor's.
  static void keep(const Tensor& source, const OperandForm& form, const std::shared_ptr<void>& bytes) {
    if (current_ != nullptr) current_->copies_.push_back({source, form, bytes});
  }

 private:
  struct Copy {
    Tensor source;
    OperandForm form;
    std::shared_ptr<void> bytes;
  };

  static inline thread_local OperandCopies* current_ = nullptr;
  OperandCopies* outer_;
  ReadByBoth both_;
  std::vector<Copy> copies_;
};

}  // namespace tapedeck
