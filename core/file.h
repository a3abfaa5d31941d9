// Files: bytes to read, and files that are written whole or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <tapedeck/core/error.h>

namespace tapedeck {

using Bytes = std::span<const std::byte>;

/// The bytes of a regular file, mapped into memory while the object lives.
class MappedFile {
 public:
  /// Throws Error when `path` cannot be opened or is not a regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  Bytes bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

/// A file that replaces `path` in one step, on commit(). Until then what is written goes to
/// `<path>.tmp` beside it, so a process that is killed leaves the old file as it was; the next one to
/// write that path reuses and removes the leftover. Writers of one path wait for each other.
class AtomicFile {
 public:
  /// Throws Error when the folder cannot be written or `path` exists and is not a regular file.
  explicit AtomicFile(std::string path);
  /// Removes what was written, unless it was committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(Bytes bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Waits until the bytes are on the disk, then renames. Throws Error if either fails.
  void commit();

 private:
  std::string path_, temporary_;
  int file_ = -1;
};

/// Writes a whole file by AtomicFile.
void write_atomically(const std::string& path, Bytes bytes);
void write_atomically(const std::string& path, std::string_view text);

namespace detail {
/// Runs `f`; an Error that leaves it gets `context` and ": " in front.
template <class F>
decltype(auto) naming(std::string_view context, F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw Error(concat(context, ": ", error.what()));
  }
}
}  // namespace detail

}  // namespace tapedeck
