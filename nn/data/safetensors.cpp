#include <tapedeck/nn/data/safetensors.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include <tapedeck/core/convert.h>

namespace tapedeck::data {

namespace {

static_assert(std::endian::native == std::endian::little, "the bytes of the file are those of memory");

using Json = nlohmann::json;

constexpr std::uint64_t kMaxHeader = 100'000'000;  // the Python package's limit
constexpr const char* kMetadata = "__metadata__";

/// The header of one tensor: its bytes are [begin, end) of what follows the header.
struct Entry {
  std::string name, dtype;
  Shape shape;
  std::uint64_t begin = 0, end = 0;
};

const char* stored_name(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return "F64";
    case DType::float32:
      return "F32";
    case DType::bfloat16:
      return "BF16";
    case DType::float16:
      return "F16";
    case DType::int64:
      return "I64";
    case DType::uint8:
      break;
  }
  return "U8";
}

/// The position of a type in the file: wide ones first, so that all are aligned.
int rank_of(DType dtype) {
  constexpr DType kOrder[] = {DType::int64,    DType::float64, DType::float32,
                              DType::bfloat16, DType::float16, DType::uint8};
  return static_cast<int>(std::find(std::begin(kOrder), std::end(kOrder), dtype) - std::begin(kOrder));
}

/// A non-negative integer of the header.
std::uint64_t number(const Json& value, std::string_view what) {
  check(value.is_number_unsigned(), what, " is not an integer of 0 or more");
  return value.get<std::uint64_t>();
}

/// Throws Error for JSON that has a name twice in an object, or nests deeper than a header does: the
/// first would be lost in parsing, the second would take memory without end.
class Guard final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool key(std::string& name) override {
    check(names_.back().insert(name).second, "the header has \"", name, "\" twice");
    return true;
  }
  bool start_object(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw Error(concat("the header is not JSON: ", error.what()));
  }

 private:
  bool enter() {
    check(names_.size() < 3, "the header nests deeper than that of a safetensors file");
    names_.emplace_back();
    return true;
  }
  bool leave() {
    names_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> names_;  // of the objects that are open; empty ones of arrays
};

Json parse_json(std::string_view text) {
  Guard guard;
  Json::sax_parse(text, &guard);
  return Json::parse(text);
}

Entry parse_entry(const std::string& name, const Json& value) {
  check(value.is_object() && value.size() == 3 && value.contains("dtype") && value.contains("shape") &&
            value.contains("data_offsets"),
        "is not an object of dtype, shape and data_offsets");
  Entry entry;
  entry.name = name;
  check(value["dtype"].is_string(), "dtype is not a string");
  entry.dtype = value["dtype"].get<std::string>();

  check(value["shape"].is_array(), "shape is not an array");
  std::vector<std::int64_t> sizes;
  for (const Json& size : value["shape"]) {
    const std::uint64_t s = number(size, "a size of shape");
    check(s <= std::uint64_t{std::numeric_limits<std::int64_t>::max()}, "size ", s, " does not fit 63 bits");
    sizes.push_back(static_cast<std::int64_t>(s));
  }
  entry.shape = Shape(std::span<const std::int64_t>(sizes));

  const Json& offsets = value["data_offsets"];
  check(offsets.is_array() && offsets.size() == 2, "data_offsets is not an array of 2 integers");
  entry.begin = number(offsets[0], "data_offsets[0]");
  entry.end = number(offsets[1], "data_offsets[1]");
  check(entry.begin <= entry.end, "data_offsets ", entry.begin, " to ", entry.end, " run backwards");
  return entry;
}

/// The elements of `bytes`, stored as Stored, as a tensor of Result.
template <class Stored, class Result>
Tensor copy_elements(const Shape& shape, Bytes bytes) {
  std::uint64_t needed = 0;
  const bool fits =
      !__builtin_mul_overflow(static_cast<std::uint64_t>(shape.count()), sizeof(Stored), &needed);
  check(fits && needed == bytes.size(), "data_offsets span ", bytes.size(), " bytes, but ", shape, " has ",
        shape.count(), " elements of ", sizeof(Stored), " bytes");
  Tensor out = Tensor::empty(shape, {.dtype = dtype_of<Result>});
  if constexpr (std::is_same_v<Stored, Result>) {
    if (!bytes.empty()) std::memcpy(out.raw(), bytes.data(), bytes.size());
  } else {
    for (std::int64_t i = 0; i < shape.count(); ++i) {
      Stored value;
      std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof(Stored), sizeof(Stored));
      check(std::in_range<Result>(value), "element ", i, " is ", value, ", which does not fit int64");
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): a number, not a character
      out.data<Result>()[i] = static_cast<Result>(value);
    }
  }
  return out;
}

Tensor read_tensor(const Entry& entry, Bytes bytes) {
  using Read = Tensor (*)(const Shape&, Bytes);
  constexpr std::pair<std::string_view, Read> kTypes[] = {
      {"F64", &copy_elements<double, double>},
      {"F32", &copy_elements<float, float>},
      {"BF16", &copy_elements<bfloat16, bfloat16>},
      {"F16", &copy_elements<float16, float16>},
      {"I64", &copy_elements<std::int64_t, std::int64_t>},
      {"U8", &copy_elements<std::uint8_t, std::uint8_t>},
      {"BOOL", &copy_elements<std::uint8_t, std::uint8_t>},
      {"I32", &copy_elements<std::int32_t, std::int64_t>},
      {"I16", &copy_elements<std::int16_t, std::int64_t>},
      {"I8", &copy_elements<std::int8_t, std::int64_t>},
      {"U64", &copy_elements<std::uint64_t, std::int64_t>},
      {"U32", &copy_elements<std::uint32_t, std::int64_t>},
      {"U16", &copy_elements<std::uint16_t, std::int64_t>},
  };
  for (const auto& [name, read] : kTypes) {
    if (name == entry.dtype) return read(entry.shape, bytes);
  }
  throw Error(concat("dtype \"", entry.dtype,
                     "\" is not supported; legal are F64, F32, BF16, F16, I64, I32, I16, ",
                     "I8, U64, U32, U16, U8 and BOOL"));
}

/// Puts the tensors in the order of their data. Throws Error unless they cover [0, size) without gap or
/// overlap.
void sort_and_check(std::vector<Entry>& entries, std::uint64_t size) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t end = 0;
  for (const Entry& entry : entries) {
    check(entry.begin == end, "tensor \"", entry.name, "\" begins at byte ", entry.begin, " of the data, ",
          entry.begin < end ? "inside the tensor before it, which ends at " : "after a gap from ", end);
    end = entry.end;
  }
  check(end <= size, "truncated: the tensors end at byte ", end, " of the data, but the file has ", size);
  check(end == size, "trailing bytes: the tensors end at byte ", end, " of the data, but the file has ",
        size);
}

StateDict decode(Bytes bytes, Metadata* metadata) {
  std::uint64_t length = 0;
  check(bytes.size() >= sizeof length, "truncated: ", bytes.size(),
        " bytes are less than the header's length needs");
  std::memcpy(&length, bytes.data(), sizeof length);
  bytes = bytes.subspan(sizeof length);
  check(length <= kMaxHeader, "the header's length is ", length, "; legal is up to ", kMaxHeader);
  check(length <= bytes.size(), "truncated: the header has ", length, " bytes, but ", bytes.size(),
        " follow");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), length);
  bytes = bytes.subspan(length);
  check(text.starts_with('{'), "not a safetensors file: the header does not begin with {");

  const Json header = parse_json(text);
  Metadata read_metadata;
  std::vector<Entry> entries;
  for (const auto& item : header.items()) {
    if (item.key() == kMetadata) {
      check(item.value().is_object(), kMetadata, " is not an object");
      for (const auto& [key, text_value] : item.value().items()) {
        check(text_value.is_string(), kMetadata, " has \"", key, "\", which is not a string");
        read_metadata[key] = text_value.get<std::string>();
      }
    } else {
      entries.push_back(detail::naming(concat("tensor \"", item.key(), "\""),
                                       [&] { return parse_entry(item.key(), item.value()); }));
    }
  }
  sort_and_check(entries, bytes.size());

  StateDict tensors;
  for (const Entry& entry : entries) {
    tensors.emplace_back(entry.name, detail::naming(concat("tensor \"", entry.name, "\""), [&] {
                           return read_tensor(entry, bytes.subspan(entry.begin, entry.end - entry.begin));
                         }));
  }
  if (metadata != nullptr) *metadata = std::move(read_metadata);
  return tensors;
}

/// `text` as a JSON string.
std::string quoted(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    throw Error("a name or a text of the metadata is not UTF-8");
  }
}

/// The header's length and the header, padded so that the data begin at a multiple of 8.
std::string encode_header(const StateDict& sorted, const Metadata& metadata) {
  std::string text = "{";
  const auto add = [&text](const std::string& name, std::string_view value) {
    text += concat(text.back() == '{' ? "" : ",", quoted(name), ":", value);
  };
  if (!metadata.empty()) {
    text += concat(quoted(kMetadata), ":{");
    for (const auto& [key, value] : metadata) add(key, quoted(value));
    text += '}';
  }
  std::set<std::string> names{kMetadata};
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : sorted) {
    check(names.insert(name).second, "the name \"", name, "\" is ",
          name == kMetadata ? "reserved" : "given twice");
    const std::uint64_t end = offset + tensor.bytes();
    add(name, concat("{\"dtype\":\"", stored_name(tensor.dtype()), "\",\"shape\":", tensor.shape(),
                     ",\"data_offsets\":[", offset, ",", end, "]}"));
    offset = end;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  check(text.size() <= kMaxHeader, "the header has ", text.size(), " bytes; legal is up to ", kMaxHeader);
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace

StateDict decode_safetensors(Bytes bytes, std::string_view name, Metadata* metadata) {
  return detail::naming(concat("load_safetensors: ", name), [&] { return decode(bytes, metadata); });
}

StateDict load_safetensors(const std::string& path, Metadata* metadata) {
  const MappedFile file(path);
  return decode_safetensors(file.bytes(), path, metadata);
}

void save_safetensors(const std::string& path, const StateDict& tensors, const Metadata& metadata) {
  StateDict sorted = tensors;
  const std::string header = detail::naming(concat("save_safetensors: ", path), [&] {
    for (const auto& [name, tensor] : sorted) check(tensor.defined(), "tensor \"", name, "\" is undefined");
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
      return std::pair(rank_of(a.second.dtype()), a.first) < std::pair(rank_of(b.second.dtype()), b.first);
    });
    return encode_header(sorted, metadata);
  });
  detail::naming("save_safetensors", [&] {  // a file's errors have its path
    AtomicFile file(path);
    file.write(header);
    for (const auto& [name, tensor] : sorted) {
      if (tensor.count() == 0) continue;
      const Tensor plain = tensor.to(Layout::nchw).to(Device{});
      file.write(Bytes(static_cast<const std::byte*>(plain.raw()), plain.bytes()));
    }
    file.commit();
  });
}

}  // namespace tapedeck::data
