#include <tapedeck/nn/data/npy.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>
#include <vector>

#include <tapedeck/core/convert.h>

namespace tapedeck::data {

namespace {

static_assert(std::endian::native == std::endian::little, "the bytes of the file are those of memory");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kAlignment = 64;  // of the data in the file

constexpr std::pair<DType, std::string_view> kTypes[] = {{DType::float64, "<f8"},
                                                         {DType::float32, "<f4"},
                                                         {DType::float16, "<f2"},
                                                         {DType::int64, "<i8"},
                                                         {DType::uint8, "|u1"}};

struct Header {
  DType dtype = DType::float32;
  bool fortran_order = false;
  Shape shape;
};

/// Parses what Python's repr writes for {'descr': str, 'fortran_order': bool, 'shape': tuple of ints}.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  Header parse() {
    std::optional<DType> dtype;
    std::optional<bool> fortran_order;
    std::optional<Shape> shape;
    expect('{');
    while (!skip('}')) {
      const std::string_view key = string();
      expect(':');
      if (key == "descr" && !dtype) {
        dtype = type();
      } else if (key == "fortran_order" && !fortran_order) {
        fortran_order = boolean();
      } else if (key == "shape" && !shape) {
        shape = tuple();
      } else {
        throw Error(concat("the header has the unknown or repeated key '", key, "'"));
      }
      if (!skip(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    check(at_ == text_.size(), "the header goes on after its end");
    check(dtype && fortran_order && shape, "the header lacks descr, fortran_order or shape");
    return {*dtype, *fortran_order, *shape};
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool skip(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) { check(skip(c), "the header lacks ", c, " at its character ", at_); }

  std::string_view string() {
    const char quote = skip('"') ? '"' : '\'';
    if (quote == '\'') expect(quote);
    const std::size_t end = text_.find(quote, at_);
    check(end != std::string_view::npos, "the header has a text without an end at its character ", at_);
    const std::string_view value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return value;
  }

  DType type() {
    skip_space();
    const bool structured = at_ < text_.size() && text_[at_] == '[';
    check(!structured, "structured element types are not supported; legal are <f8, <f4, <f2, <i8 and |u1");
    const std::string_view name = string();
    for (const auto& [dtype, legal] : kTypes) {
      if (name == legal || (dtype == DType::uint8 && name == "<u1")) return dtype;
    }
    throw Error(concat("element type ", name, " is not supported; legal are <f8, <f4, <f2, <i8 and |u1"));
  }

  bool boolean() {
    skip_space();
    for (const std::string_view word : {"True", "False"}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return word == "True";
      }
    }
    throw Error("the header's fortran_order is neither True nor False");
  }

  Shape tuple() {
    std::vector<std::int64_t> sizes;
    expect('(');
    while (!skip(')')) {
      skip_space();
      std::int64_t size = 0;
      const char* end = text_.data() + text_.size();
      const auto [next, error] = std::from_chars(text_.data() + at_, end, size);
      check(error == std::errc{}, "the header's shape has no 63-bit integer at character ", at_);
      at_ = static_cast<std::size_t>(next - text_.data());
      sizes.push_back(size);
      check(sizes.size() <= Shape::kMaxRank, "the rank is above the limit of ", Shape::kMaxRank);
      if (!skip(',')) {
        expect(')');
        break;
      }
    }
    return Shape(std::span<const std::int64_t>(sizes));
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

/// out = in, elements of `size` bytes, `in` with the first index running fastest.
void copy_fortran(const std::byte* in, std::byte* out, const Shape& shape, std::size_t size) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.rank()), 0), stride(index.size(), 1);
  for (std::size_t d = 1; d < stride.size(); ++d) stride[d] = stride[d - 1] * shape[static_cast<int>(d) - 1];
  std::int64_t from = 0;
  for (std::int64_t i = 0; i < shape.count(); ++i) {
    std::memcpy(out + static_cast<std::size_t>(i) * size, in + static_cast<std::size_t>(from) * size, size);
    for (std::size_t d = index.size(); d-- > 0;) {  // the next index in C order
      from += stride[d];
      if (++index[d] < shape[static_cast<int>(d)]) break;
      from -= stride[d] * index[d];
      index[d] = 0;
    }
  }
}

Tensor decode(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  check(text.starts_with(kMagic), "not a .npy file: it does not begin with \\x93NUMPY");
  check(text.size() >= 10, "truncated: the file ends in the header");
  const int major = std::to_integer<int>(bytes[6]);
  check(major >= 1 && major <= 3, "format version ", major, " is not supported; legal is 1 to 3");
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  check(text.size() >= 8 + length_bytes, "truncated: the file ends in the header");
  std::uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 8, length_bytes);
  const std::size_t start = 8 + length_bytes;
  check(length <= text.size() - start, "truncated: the header has ", length, " bytes, but ",
        text.size() - start, " follow");

  const Header header = HeaderParser(text.substr(start, length)).parse();
  const Bytes data = bytes.subspan(start + length);
  const std::size_t size = size_of(header.dtype);
  std::uint64_t needed = 0;
  const bool fits = !__builtin_mul_overflow(static_cast<std::uint64_t>(header.shape.count()), size, &needed);
  check(fits && needed <= data.size(), "truncated: ", header.shape, " needs ", header.shape.count(),
        " elements of ", size, " bytes, but ", data.size(), " bytes follow the header");
  check(needed == data.size(), "trailing bytes: ", header.shape, " needs ", needed, " bytes, but ",
        data.size(), " follow the header");

  Tensor out = Tensor::empty(header.shape, {.dtype = header.dtype});
  if (needed == 0) return out;
  if (header.fortran_order) {
    copy_fortran(data.data(), static_cast<std::byte*>(out.raw()), header.shape, size);
  } else {
    std::memcpy(out.raw(), data.data(), needed);
  }
  return out;
}

/// Magic, version 1, length and header, so that the data begin at a multiple of kAlignment.
std::string encode_header(const Tensor& tensor) {
  const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                  [&](const auto& entry) { return entry.first == tensor.dtype(); });
  std::string sizes;
  for (const std::int64_t size : tensor.shape()) sizes += concat(size, tensor.rank() == 1 ? "," : ", ");
  if (tensor.rank() > 1) sizes.resize(sizes.size() - 2);
  std::string header =
      concat("{'descr': '", type->second, "', 'fortran_order': False, 'shape': (", sizes, "), }");
  const std::size_t before = kMagic.size() + 4;
  header.append(kAlignment - (before + header.size() + 1) % kAlignment, ' ');
  header += '\n';
  std::string text(kMagic);
  text += {'\x01', '\x00', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  return text + header;
}

/// `array` as [n,c,h,w].
Tensor as_images(const Tensor& array) {
  check(array.rank() == 3 || array.rank() == 4, "has shape ", array.shape(),
        "; images are [n,h,w], [n,c,h,w] or [n,h,w,c]");
  check(array.dtype() != DType::int64, "has int64 elements; images are uint8 or floating");
  if (array.rank() == 3) return array.reshape({array.size(0), 1, array.size(1), array.size(2)});
  const auto are_channels = [](std::int64_t size) { return size == 1 || size == 3 || size == 4; };
  if (are_channels(array.size(1)) || !are_channels(array.size(3))) return array;
  const Shape shape{array.size(0), array.size(3), array.size(1), array.size(2)};
  Tensor images = Tensor::empty(shape, {.dtype = array.dtype(), .layout = Layout::nhwc});
  if (array.count() > 0) std::memcpy(images.raw(), array.raw(), array.bytes());
  return images;
}

Tensor load_images(const std::string& path) {
  const Tensor array = load_npy(path);
  return detail::naming(concat("load_npy: ", path), [&] { return as_images(array); });
}

}  // namespace

Tensor decode_npy(Bytes bytes, std::string_view name) {
  return detail::naming(concat("load_npy: ", name), [&] { return decode(bytes); });
}

Tensor load_npy(const std::string& path) {
  const MappedFile file(path);
  return decode_npy(file.bytes(), path);
}

void save_npy(const std::string& path, const Tensor& tensor) {
  check(tensor.defined(), "save_npy: ", path, ": the tensor is undefined");
  detail::naming("save_npy", [&] {  // a file's errors have its path
    const Tensor legal = tensor.dtype() == DType::bfloat16 ? tensor.to(DType::float32) : tensor;
    const Tensor plain = legal.to(Layout::nchw).to(Device{});
    AtomicFile file(path);
    file.write(encode_header(plain));
    file.write(Bytes(static_cast<const std::byte*>(plain.raw()), plain.bytes()));
    file.commit();
  });
}

NpyDataset::NpyDataset(const std::string& path) : TensorDataset(load_images(path)) {}

}  // namespace tapedeck::data
