#include <tapedeck/core/file.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tapedeck {

namespace {

/// A descriptor that is closed at the end of its scope.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

[[noreturn]] void fail(std::string_view path, std::string_view what) {
  throw Error(concat(path, ": ", what, ": ", std::strerror(errno)));
}

std::string folder_of(const std::string& path) {
  const auto slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

/// Whether `fd` is still what `path` names.
bool is_at(int fd, const std::string& path) {
  struct stat mine {
  }, there{};
  return ::fstat(fd, &mine) == 0 && ::stat(path.c_str(), &there) == 0 && mine.st_dev == there.st_dev &&
         mine.st_ino == there.st_ino;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail(path, "cannot open");
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail(path, "cannot read");
  check(S_ISREG(status.st_mode), path, ": is not a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // nothing to map
  void* map = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (map == MAP_FAILED) fail(path, "cannot map");
  ::madvise(map, size, MADV_SEQUENTIAL);
  bytes_ = {static_cast<const std::byte*>(map), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  struct stat status {};
  check(::stat(path_.c_str(), &status) != 0 || S_ISREG(status.st_mode), path_,
        ": exists and is not a regular file");
  for (;;) {
    Descriptor file{::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)};
    if (file.fd < 0) fail(path_, "cannot write");
    // A file system without locks only loses the protection from a second writer.
    while (::flock(file.fd, LOCK_EX) != 0 && errno == EINTR) {
    }
    if (!is_at(file.fd, temporary_)) continue;  // the writer that held the lock has renamed it
    if (::ftruncate(file.fd, 0) != 0) fail(path_, "cannot write");
    file_ = std::exchange(file.fd, -1);
    return;
  }
}

AtomicFile::~AtomicFile() {
  if (file_ < 0) return;
  ::unlink(temporary_.c_str());  // before the lock goes
  ::close(file_);
}

void AtomicFile::write(Bytes bytes) {
  check(file_ >= 0, path_, ": written to after commit");
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, "cannot write");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  check(file_ >= 0, path_, ": committed twice");
  if (::fsync(file_) != 0) fail(path_, "cannot write");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "cannot replace");
  ::close(std::exchange(file_, -1));
  const Descriptor folder{::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.fd >= 0) ::fsync(folder.fd);  // so that the new name survives a power cut
}

void write_atomically(const std::string& path, Bytes bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_atomically(const std::string& path, std::string_view text) {
  write_atomically(path, std::as_bytes(std::span(text)));
}

}  // namespace tapedeck
