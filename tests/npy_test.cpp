#include <tapedeck/nn/data/npy.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "files.h"

namespace tapedeck::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor decode(const std::string& text) {
  return decode_npy(std::as_bytes(std::span(text)), "some.npy");
}

std::string error_of(const std::string& text) {
  return message_of<Error>([&] { decode(text); });
}

std::string file_of(const std::string& header, const std::string& data) {
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) + '\0' + header + data;
}

TEST(Npy, ReadsWhatNumpyWrote) {
  const std::pair<const char*, DType> types[] = {{"f8", DType::float64},
                                                 {"f4", DType::float32},
                                                 {"f2", DType::float16},
                                                 {"i8", DType::int64},
                                                 {"u1", DType::uint8}};
  for (const auto& [name, dtype] : types) {
    for (const char* order : {"c_", "fortran_"}) {
      const Tensor tensor = load_npy(test_file(concat(order, name, ".npy")));
      EXPECT_EQ(tensor.dtype(), dtype) << order << name;
      EXPECT_EQ(tensor.shape(), (Shape{2, 3, 4})) << order << name;
      const std::vector<double> values = tensor.to_vector<double>();
      for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(values[i], static_cast<double>(i)) << order << name;
    }
  }
  for (const char* name : {"version2.npy", "version3.npy"}) {
    EXPECT_EQ(load_npy(test_file(name)).to_vector<float>(),
              load_npy(test_file("c_f4.npy")).to_vector<float>());
  }
  EXPECT_EQ(load_npy(test_file("scalar.npy")).shape(), Shape{});
  EXPECT_EQ(load_npy(test_file("scalar.npy")).item(), 2.5);
  EXPECT_EQ(load_npy(test_file("empty.npy")).shape(), (Shape{0, 3}));
}

TEST(Npy, WritesTheSameBytesAsNumpy) {
  const TemporaryFolder folder;
  for (const char* name :
       {"c_f8.npy", "c_f4.npy", "c_f2.npy", "c_i8.npy", "c_u1.npy", "scalar.npy", "empty.npy"}) {
    save_npy(folder / name, load_npy(test_file(name)));
    EXPECT_EQ(read_text(folder / name), read_text(test_file(name))) << name;
  }
}

TEST(Npy, WritesEveryRankLayoutAndHalfTypes) {
  const TemporaryFolder folder;
  for (int rank = 0; rank <= Shape::kMaxRank; ++rank) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(rank), 1);
    if (rank > 0) sizes[0] = 3;
    const Tensor x = Tensor::full(Shape(std::span<const std::int64_t>(sizes)), 1.5);
    save_npy(folder / "x", x);
    EXPECT_EQ(load_npy(folder / "x").shape(), x.shape());
    EXPECT_EQ(load_npy(folder / "x").to_vector<float>(), x.to_vector<float>());
  }
  const Tensor image = Tensor::from<float>({0, 1, 2, 3, 4, 5}, {1, 3, 1, 2});
  save_npy(folder / "x", image.to(Layout::nhwc).to(DType::bfloat16));
  EXPECT_EQ(load_npy(folder / "x").dtype(), DType::float32);
  EXPECT_EQ(load_npy(folder / "x").to_vector<float>(), image.to_vector<float>());
}

TEST(Npy, EveryTruncationIsAnError) {
  for (const char* name : {"c_f4.npy", "fortran_i8.npy", "version2.npy"}) {
    const std::string whole = read_text(test_file(name));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_THAT(error_of(whole.substr(0, size)), HasSubstr("load_npy: some.npy: ")) << size;
    }
    EXPECT_THAT(error_of(whole + "x"), HasSubstr("trailing bytes"));
  }
}

TEST(Npy, WrongHeadersAreErrors) {
  const auto header = [](const std::string& text) { return file_of(text, "abcd"); };
  const std::pair<std::string, std::string> cases[] = {
      {"PK\3\4", "not a .npy file"},
      {std::string("\x93NUMPY\x04\x00\x00\x00\x00\x00", 12),
       "format version 4 is not supported; legal is 1 to 3"},
      {header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"), "no exception"},
      {header("{\"descr\":\"<f4\",\"fortran_order\":True,\"shape\":(1)}\n"), "no exception"},
      {header("{'descr': '<f4', 'shape': (1,), }"), "the header lacks descr, fortran_order or shape"},
      {header("{'descr': '<f4', 'descr': '<f4', 'shape': (1,), }"), "unknown or repeated key 'descr'"},
      {header("{'x': '<f4'}"), "unknown or repeated key 'x'"},
      {header("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }"), "neither True nor False"},
      {header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"),
       "size -1 of dimension 0 is negative"},
      {header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }"),
       "no 63-bit integer"},
      {header("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }"),
       "does not fit 63 bits"},
      {header("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,), }"), "truncated: ["},
      {header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }"),
       "rank is above the limit of 8"},
      {header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"),
       "truncated: [2] needs 2 elements of 4 bytes, but 4 bytes follow the header"},
      {header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x"), "goes on after its end"},
      {header("{'descr': '<f4"), "a text without an end"},
      {header("'descr'"), "the header lacks { at its character 0"},
      {header("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }"),
       "element type <c8 is not supported"},
      {read_text(test_file("big_endian.npy")),
       "element type >f4 is not supported; legal are <f8, <f4, <f2, <i8 and |u1"},
      {read_text(test_file("structured.npy")), "structured element types are not supported"},
  };
  for (const auto& [text, expected] : cases) EXPECT_THAT(error_of(text), HasSubstr(expected)) << text;
}

TEST(NpyDataset, TakesTheUsualOrdersOfImages) {
  const TemporaryFolder folder;
  const auto dataset = [&](const Tensor& array) {
    save_npy(folder / "x", array);
    return NpyDataset(folder / "x");
  };
  const Tensor values = Tensor::from<std::uint8_t>({0, 51, 102, 153, 204, 255, 0, 0, 0, 255, 255, 255}, {12});
  EXPECT_EQ(dataset(values.reshape({3, 2, 2})).image_shape(), (Shape{1, 2, 2}));
  EXPECT_EQ(dataset(values.reshape({2, 3, 1, 2})).image_shape(), (Shape{3, 1, 2}));
  const NpyDataset interleaved = dataset(values.reshape({1, 2, 2, 3}));
  EXPECT_EQ(interleaved.image_shape(), (Shape{3, 2, 2}));
  EXPECT_THAT(interleaved.get(0).to_vector<float>(),
              ElementsAre(0.0f, 0.6f, 0.0f, 1.0f, 0.2f, 0.8f, 0.0f, 1.0f, 0.4f, 1.0f, 0.0f, 1.0f));
  EXPECT_THAT(message_of<Error>([&] { dataset(values); }),
              HasSubstr("images are [n,h,w], [n,c,h,w] or [n,h,w,c]"));
  EXPECT_THAT(message_of<Error>([&] {
                dataset(values.reshape({3, 2, 2}).to(DType::int64));
              }),
              HasSubstr("images are uint8 or floating"));
}

}  // namespace
}  // namespace tapedeck::data
