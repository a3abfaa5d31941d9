#include <tapedeck/nn/data/safetensors.h>

#include <cmath>
#include <cstring>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "files.h"

namespace tapedeck::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::map<std::string, Tensor> by_name(const StateDict& state) {
  return {state.begin(), state.end()};
}

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

StateDict decode(const std::string& text) {
  return decode_safetensors(std::as_bytes(std::span(text)), "some.safetensors");
}

std::string error_of(const std::string& text) {
  return message_of<Error>([&] { decode(text); });
}

TEST(Safetensors, ReadsWhatPythonWrote) {
  Metadata metadata;
  const auto state = by_name(load_safetensors(test_file("kept_types.safetensors"), &metadata));
  EXPECT_EQ(state.size(), 9u);
  EXPECT_EQ(state.at("double").dtype(), DType::float64);
  EXPECT_THAT(state.at("double").to_vector<double>(), ElementsAre(0, 1.0 / 3, 2.0 / 3));
  EXPECT_EQ(state.at("float").dtype(), DType::float32);
  EXPECT_EQ(state.at("float").shape(), (Shape{2, 3}));
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(state.at("float").data<float>()[i], static_cast<float>(i) / 3.0f);
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(state.at("bfloat").data<bfloat16>()[i].bits, bfloat16(static_cast<float>(i) / 3.0f).bits);
    EXPECT_EQ(state.at("half").data<float16>()[i].bits, float16(static_cast<float>(i) / 3.0f).bits);
  }
  EXPECT_EQ(state.at("long").dtype(), DType::int64);
  EXPECT_THAT(state.at("long").to_vector<std::int64_t>(), ElementsAre(-2, -1, 0, 1, 2));
  EXPECT_EQ(state.at("byte").dtype(), DType::uint8);
  EXPECT_THAT(state.at("byte").to_vector<std::int64_t>(), ElementsAre(250, 251, 252, 253, 254, 255));
  EXPECT_EQ(state.at("scalar").shape(), Shape{});
  EXPECT_EQ(state.at("scalar").item(), -1.5);
  EXPECT_EQ(state.at("empty").shape(), (Shape{0, 4}));
  EXPECT_EQ(state.at("quote \" \xc3\xa9").item(), 1);
  EXPECT_EQ(metadata, (Metadata{{"note", "a \"quoted\"\nline"}}));
}

TEST(Safetensors, ConvertsTheOtherIntegers) {
  const auto state = by_name(load_safetensors(test_file("converted_types.safetensors")));
  EXPECT_EQ(state.at("bool").dtype(), DType::uint8);
  EXPECT_THAT(state.at("bool").to_vector<std::int64_t>(), ElementsAre(1, 0, 1));
  for (const char* name : {"int", "short", "char", "u64", "u32", "u16"}) {
    EXPECT_EQ(state.at(name).dtype(), DType::int64) << name;
  }
  const std::int64_t k = 1 << 28;
  EXPECT_THAT(state.at("int").to_vector<std::int64_t>(), ElementsAre(-2 * k, -k, 0, k, 2 * k));
  EXPECT_THAT(state.at("short").to_vector<std::int64_t>(), ElementsAre(-2000, -1000, 0, 1000, 2000));
  EXPECT_THAT(state.at("char").to_vector<std::int64_t>(), ElementsAre(-120, -60, 0, 60, 120));
  EXPECT_EQ(state.at("u64").data<std::int64_t>()[0], std::int64_t{1} << 62);
  EXPECT_EQ(state.at("u32").data<std::int64_t>()[0], (std::int64_t{1} << 32) - 1);
  EXPECT_EQ(state.at("u16").data<std::int64_t>()[0], 65535);
}

TEST(Safetensors, ReadsAPyTorchStateDict) {
  const auto state = by_name(load_safetensors(test_file("state_dict.safetensors")));
  EXPECT_EQ(state.size(), 7u);
  EXPECT_EQ(state.at("0.weight").shape(), (Shape{2, 3, 4, 2}));
  EXPECT_EQ(state.at("0.bias").shape(), Shape{3});
  EXPECT_EQ(state.at("1.running_var").to_vector<float>(), std::vector<float>({1, 1, 1}));
  EXPECT_EQ(state.at("1.num_batches_tracked").dtype(), DType::int64);
  EXPECT_EQ(state.at("1.num_batches_tracked").shape(), Shape{});
}

TEST(Safetensors, WritesTheSameBytesAsPython) {
  const TemporaryFolder folder;
  for (const char* name : {"kept_types.safetensors", "state_dict.safetensors"}) {
    Metadata metadata;
    StateDict state = load_safetensors(test_file(name), &metadata);
    std::reverse(state.begin(), state.end());
    save_safetensors(folder / name, state, metadata);
    EXPECT_EQ(read_text(folder / name), read_text(test_file(name)));
  }
  save_safetensors(folder / "none", {});
  EXPECT_THAT(load_safetensors(folder / "none"), IsEmpty());
  save_safetensors(folder / "two", {}, {{"b", "2"}, {"a", "1"}});
  EXPECT_THAT(read_text(folder / "two"), HasSubstr(R"({"__metadata__":{"a":"1","b":"2"}})"));
}

TEST(Safetensors, WritesRowMajorWhateverTheLayout) {
  const TemporaryFolder folder;
  const Tensor x = Tensor::from<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {1, 3, 2, 2});
  save_safetensors(folder / "x", {{"x", x.to(Layout::nhwc)}});
  EXPECT_EQ(load_safetensors(folder / "x")[0].second.to_vector<float>(), x.to_vector<float>());
}

TEST(Safetensors, RefusesNamesThatWouldNotBeRead) {
  const TemporaryFolder folder;
  const Tensor x = Tensor::zeros({2});
  const auto error = [&](const StateDict& state) {
    return message_of<Error>([&] { save_safetensors(folder / "x", state); });
  };
  EXPECT_THAT(error({{"x", x}, {"x", x}}), HasSubstr("the name \"x\" is given twice"));
  EXPECT_THAT(error({{"__metadata__", x}}), HasSubstr("the name \"__metadata__\" is reserved"));
  EXPECT_THAT(error({{"\xff", x}}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(error({{"x", Tensor()}}), HasSubstr("tensor \"x\" is undefined"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string whole = read_text(test_file("kept_types.safetensors"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(error_of(whole.substr(0, size)), HasSubstr("load_safetensors: some.safetensors: truncated"))
        << size;
  }
  EXPECT_THAT(error_of(whole + "x"), HasSubstr("trailing bytes"));
}

TEST(Safetensors, BrokenHeadersAreErrors) {
  const auto one = [](const std::string& entry) { return file_of("{\"a\":" + entry + "}", "12345678"); };
  EXPECT_EQ(error_of(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})")), "no exception");
  const std::pair<std::string, std::string> cases[] = {
      {file_of("[]", ""), "the header does not begin with {"},
      {file_of("{", ""), "the header is not JSON"},
      {file_of("{\"\xff\":{}}", ""), "the header is not JSON"},
      {file_of("{} x", ""), "the header is not JSON"},
      {file_of(std::string(8, '\xff'), ""), "does not begin with {"},
      {std::string(8, '\xff') + "{}",
       "the header's length is 18446744073709551615; legal is up to 100000000"},
      {file_of(R"({"a":{"x":[[[1]]]}})", ""), "nests deeper"},
      {file_of(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           "12345678"),
       "the header has \"a\" twice"},
      {one(R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})"), "\"dtype\" twice"},
      {one("3"), "tensor \"a\": is not an object of dtype, shape and data_offsets"},
      {one(R"({"dtype":"F32","shape":[2]})"), "is not an object of"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})"), "is not an object of"},
      {one(R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})"), "dtype is not a string"},
      {one(R"({"dtype":"F4","shape":[2],"data_offsets":[0,8]})"), "dtype \"F4\" is not supported"},
      {one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), "shape is not an array"},
      {one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
       "a size of shape is not an integer of 0 or more"},
      {one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), "a size of shape is not an integer"},
      {one(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})"), "does not fit 63 bits"},
      {one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
       "does not fit 63 bits"},
      {one(R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]})"), "trailing bytes"},
      {one(R"({"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,8]})"), "span 8 bytes"},
      {one(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})"),
       "rank 9 is above the limit of 8"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
       "span 8 bytes, but [3] has 3 elements of 4 bytes"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "8 to 0 run backwards"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), "not an array of 2 integers"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"),
       "begins at byte 4 of the data, after a gap from 0"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "trailing bytes"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"), "truncated: the tensors end at byte 12"},
      {one(R"({"dtype":"U64","shape":[1],"data_offsets":[0,8]})"), "no exception"},
      {file_of(
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
           "123456789012"),
       "tensor \"b\" begins at byte 4 of the data, inside the tensor before it, which ends at 8"},
      {file_of(R"({"a":{"dtype":"U64","shape":[1],"data_offsets":[0,8]}})", std::string(8, '\xff')),
       "element 0 is 18446744073709551615, which does not fit int64"},
      {file_of(R"({"__metadata__":{"x":1}})", ""), "__metadata__ has \"x\", which is not a string"},
      {file_of(R"({"__metadata__":1})", ""), "__metadata__ is not an object"},
      {read_text(test_file("float8.safetensors")), "dtype \"F8_E4M3\" is not supported"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_THAT(error_of(text), HasSubstr(expected)) << text.substr(8);
  }
  EXPECT_EQ(error_of(file_of("{}", "")), "no exception");
}

TEST(Safetensors, ReplacesAFileOnlyWhenItIsWhole) {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  save_safetensors(path, {{"x", Tensor::ones({3})}});
  const std::string before = read_text(path);
  {
    AtomicFile file(path);
    file.write("half of a");
    EXPECT_EQ(read_text(path), before);
  }
  EXPECT_EQ(read_text(path), before);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

}  // namespace
}  // namespace tapedeck::data
