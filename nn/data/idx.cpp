#include <tapedeck/nn/data/idx.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include <zlib.h>

#include <tapedeck/core/convert.h>

namespace tapedeck::data {

namespace {

/// Reads bytes in order, unpacking them when they are gzipped.
class Reader {
 public:
  explicit Reader(Bytes bytes) : in_(bytes) {
    gzipped_ = in_.size() >= 2 && in_[0] == std::byte{0x1f} && in_[1] == std::byte{0x8b};
    if (gzipped_) check(inflateInit2(&stream_, kGzip) == Z_OK, "cannot start zlib");
  }
  ~Reader() {
    if (gzipped_) inflateEnd(&stream_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// An upper bound of how many bytes are left: exact when not gzipped.
  std::uint64_t limit() const {
    return gzipped_ ? in_.size() * kDeflateRatio + kInflateBuffer : std::uint64_t{in_.size()};
  }
  bool gzipped() const { return gzipped_; }

  /// Fills `out`, or throws Error.
  void read(std::span<std::byte> out, std::string_view what) {
    const std::size_t got = gzipped_ ? inflate_some(out) : copy_some(out);
    check(got == out.size(), "truncated: the file ends in the ", what, ", after ", done_, " bytes",
          gzipped_ ? " unpacked" : "");
  }

  /// Throws Error unless everything was read.
  void finish() {
    const std::uint64_t end = done_;
    std::byte one{};
    check((gzipped_ ? inflate_some({&one, 1}) : in_.size()) == 0,
          "trailing bytes after the data, which end at ", end, gzipped_ ? " unpacked" : "");
    check(!gzipped_ || ended_, "truncated: the file ends in the checksum of the gzip data");
  }

 private:
  static constexpr int kGzip = 16 + MAX_WBITS;
  static constexpr std::uint64_t kDeflateRatio = 1032;      // the most that deflate can shrink
  static constexpr std::uint64_t kInflateBuffer = 1 << 16;  // what zlib may hold back

  std::size_t copy_some(std::span<std::byte> out) {
    const std::size_t count = std::min(out.size(), in_.size());
    std::copy_n(in_.begin(), count, out.begin());
    in_ = in_.subspan(count);
    done_ += count;
    return count;
  }

  std::size_t inflate_some(std::span<std::byte> out) {
    constexpr std::size_t kMost = std::numeric_limits<uInt>::max();
    std::size_t got = 0;
    while (got < out.size()) {
      if (ended_) {  // a gzip file may have several members
        if (in_.empty()) break;
        check(inflateReset(&stream_) == Z_OK, "cannot restart zlib");
        ended_ = false;
      }
      const auto room = static_cast<uInt>(std::min(out.size() - got, kMost));
      const auto fed = static_cast<uInt>(std::min(in_.size(), kMost));
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(in_.data()));
      stream_.avail_in = fed;
      stream_.next_out = reinterpret_cast<Bytef*>(out.data() + got);
      stream_.avail_out = room;
      const int code = inflate(&stream_, Z_NO_FLUSH);
      in_ = in_.subspan(fed - stream_.avail_in);
      got += room - stream_.avail_out;
      done_ += room - stream_.avail_out;
      ended_ = code == Z_STREAM_END;
      if (code == Z_BUF_ERROR) break;  // no more input
      check(code == Z_OK || code == Z_STREAM_END, "gzip data are broken after ", done_,
            " bytes unpacked: ", stream_.msg != nullptr ? stream_.msg : "unknown error");
    }
    return got;
  }

  Bytes in_;
  std::uint64_t done_ = 0;
  bool gzipped_ = false, ended_ = false;
  z_stream stream_{};
};

template <class T>
T from_big_endian(const std::byte* bytes) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  Bits bits = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) bits = (bits << 8) | static_cast<Bits>(bytes[i]);
  if constexpr (std::is_floating_point_v<T>) {
    return std::bit_cast<T>(bits);
  } else {
    return static_cast<T>(bits);
  }
}

/// The elements, stored as Stored, as a tensor of Result.
template <class Stored, class Result>
Tensor read_elements(Reader& reader, const Shape& shape) {
  const auto count = static_cast<std::uint64_t>(shape.count());
  std::uint64_t bytes = 0;
  const bool fits = !__builtin_mul_overflow(count, sizeof(Stored), &bytes);
  check(fits && bytes <= reader.limit(), "truncated: ", shape, " needs ", count, " elements of ",
        sizeof(Stored), " bytes, but the file has ", reader.gzipped() ? "room for at most " : "",
        reader.limit(), " bytes");
  Tensor out = Tensor::empty(shape, {.dtype = dtype_of<Result>});
  std::vector<std::byte> block(std::min<std::uint64_t>(bytes, std::uint64_t{1} << 16));
  for (std::uint64_t i = 0; i < count;) {
    const std::uint64_t n = std::min<std::uint64_t>(count - i, block.size() / sizeof(Stored));
    reader.read(std::span(block).first(n * sizeof(Stored)), "data");
    for (std::uint64_t k = 0; k < n; ++k, ++i) {
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): a number, not a character
      out.data<Result>()[i] = static_cast<Result>(from_big_endian<Stored>(block.data() + k * sizeof(Stored)));
    }
  }
  return out;
}

Tensor decode(Bytes bytes) {
  Reader reader(bytes);
  std::byte magic[4];
  reader.read(magic, "header");
  const auto type = std::to_integer<int>(magic[2]), rank = std::to_integer<int>(magic[3]);
  check(magic[0] == std::byte{0} && magic[1] == std::byte{0}, "not an IDX file: bytes 0 and 1 are ",
        std::to_integer<int>(magic[0]), " and ", std::to_integer<int>(magic[1]), "; legal is 0 and 0");
  check(rank >= 1 && rank <= Shape::kMaxRank, "byte 3, the rank, is ", rank, "; legal is 1 to ",
        Shape::kMaxRank);
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < rank; ++i) {
    std::byte size[4];
    reader.read(size, "header");
    sizes.push_back(from_big_endian<std::uint32_t>(size));
  }
  const Shape shape{std::span<const std::int64_t>(sizes)};
  Tensor out = [&] {
    switch (type) {
      case 0x08:
        return read_elements<std::uint8_t, std::uint8_t>(reader, shape);
      case 0x09:
        return read_elements<std::int8_t, std::int64_t>(reader, shape);
      case 0x0B:
        return read_elements<std::int16_t, std::int64_t>(reader, shape);
      case 0x0C:
        return read_elements<std::int32_t, std::int64_t>(reader, shape);
      case 0x0D:
        return read_elements<float, float>(reader, shape);
      case 0x0E:
        return read_elements<double, double>(reader, shape);
      default:
        throw Error(concat("byte 2, the type, is ", type, "; legal is 8, 9, 11, 12, 13 or 14"));
    }
  }();
  reader.finish();
  return out;
}

Tensor read_images(const std::string& path) {
  Tensor images = read_idx(path);
  check(images.rank() == 3 || images.rank() == 4, "read_idx: ", path, ": has shape ", images.shape(),
        "; images are [n,h,w] or [n,c,h,w]");
  check(images.dtype() != DType::int64, "read_idx: ", path,
        ": has wide integer elements; images are unsigned bytes or floating");
  if (images.rank() == 4) return images;
  return images.reshape({images.size(0), 1, images.size(1), images.size(2)});
}

Tensor read_labels(const std::string& path, std::int64_t count) {
  if (path.empty()) return {};
  const Tensor labels = read_idx(path);
  check(labels.shape() == Shape{count} && !is_floating(labels.dtype()), "read_idx: ", path, ": has ",
        labels.dtype(), " ", labels.shape(), "; labels of ", count, " images are integers [", count, "]");
  return labels.to(DType::int64);
}

}  // namespace

Tensor decode_idx(Bytes bytes, std::string_view name) {
  return detail::naming(concat("read_idx: ", name), [&] { return decode(bytes); });
}

Tensor read_idx(const std::string& path) {
  const MappedFile file(path);
  return decode_idx(file.bytes(), path);
}

namespace {
TensorDataset read_dataset(const std::string& images, const std::string& labels) {
  const Tensor tensor = read_images(images);
  return TensorDataset(tensor, read_labels(labels, tensor.size(0)));
}
}  // namespace

IdxDataset::IdxDataset(const std::string& images, const std::string& labels)
    : TensorDataset(read_dataset(images, labels)) {}

}  // namespace tapedeck::data
