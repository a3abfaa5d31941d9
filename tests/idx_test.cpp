#include <tapedeck/nn/data/idx.h>

#include <chrono>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "files.h"

namespace tapedeck::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// `values` of `size` bytes each, big-endian.
std::string big_endian(std::initializer_list<std::uint64_t> values, int size) {
  std::string bytes;
  for (const std::uint64_t value : values) {
    for (int i = size - 1; i >= 0; --i) bytes += static_cast<char>(value >> (8 * i));
  }
  return bytes;
}

std::string idx(int type, std::initializer_list<std::uint64_t> sizes, const std::string& data) {
  return std::string{'\0', '\0', static_cast<char>(type), static_cast<char>(sizes.size())} +
         big_endian(sizes, 4) + data;
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY);
  std::string out(compressBound(text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

Tensor decode(const std::string& text) {
  return decode_idx(std::as_bytes(std::span(text)), "some.idx");
}

std::string error_of(const std::string& text) {
  return message_of<Error>([&] { decode(text); });
}

TEST(Idx, ReadsEveryElementType) {
  const Tensor bytes = decode(idx(0x08, {2, 3}, {'\0', '\1', '\2', '\x7f', '\x80', '\xff'}));
  EXPECT_EQ(bytes.dtype(), DType::uint8);
  EXPECT_EQ(bytes.shape(), (Shape{2, 3}));
  EXPECT_THAT(bytes.to_vector<int64_t>(), ElementsAre(0, 1, 2, 127, 128, 255));

  const auto integers = [](int type, int size) {
    const Tensor tensor = decode(idx(type, {3}, big_endian({~0ull, 1, 100}, size)));
    EXPECT_EQ(tensor.dtype(), DType::int64);
    return tensor.to_vector<std::int64_t>();
  };
  EXPECT_THAT(integers(0x09, 1), ElementsAre(-1, 1, 100));
  EXPECT_THAT(integers(0x0B, 2), ElementsAre(-1, 1, 100));
  EXPECT_THAT(integers(0x0C, 4), ElementsAre(-1, 1, 100));

  const Tensor floats = decode(idx(0x0D, {2}, big_endian({0x3fc00000, 0xc0200000}, 4)));
  EXPECT_EQ(floats.dtype(), DType::float32);
  EXPECT_THAT(floats.to_vector<float>(), ElementsAre(1.5f, -2.5f));
  const Tensor doubles = decode(idx(0x0E, {2}, big_endian({0x3ff8000000000000, 0xc004000000000000}, 8)));
  EXPECT_EQ(doubles.dtype(), DType::float64);
  EXPECT_THAT(doubles.to_vector<double>(), ElementsAre(1.5, -2.5));
}

TEST(Idx, ReadsLargerThanABlockAndSeveralGzipMembers) {
  std::string data;
  for (int i = 0; i < 3 * 50000; ++i) data += big_endian({static_cast<std::uint64_t>(i * 7919)}, 4);
  const std::string whole = idx(0x0C, {3, 50000}, data);
  const std::size_t half = whole.size() / 2 + 1;
  const std::string members = gzip(whole.substr(0, half)) + gzip(whole.substr(half));
  for (const std::string& text : {whole, gzip(whole), members}) {
    const std::vector<std::int64_t> values = decode(text).to_vector<std::int64_t>();
    ASSERT_EQ(values.size(), 150000u);
    for (int i = 0; i < 150000; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], i * 7919);
  }
}

TEST(Idx, EmptyAndNoImagesAreLegal) {
  EXPECT_EQ(decode(idx(0x08, {0, 28, 28}, "")).shape(), (Shape{0, 28, 28}));
}

TEST(Idx, EveryTruncationIsAnError) {
  const std::string whole = idx(0x0B, {2, 3}, big_endian({1, 2, 3, 4, 5, 6}, 2));
  for (const std::string& text : {whole, gzip(whole)}) {
    EXPECT_EQ(error_of(text), "no exception");
    for (std::size_t size = 0; size < text.size(); ++size) {
      EXPECT_THAT(error_of(text.substr(0, size)), HasSubstr("read_idx: some.idx: ")) << size;
    }
  }
  EXPECT_THAT(error_of(whole.substr(0, 9)),
              HasSubstr("truncated: the file ends in the header, after 9 bytes"));
  EXPECT_THAT(error_of(whole.substr(0, 20)),
              HasSubstr("truncated: [2,3] needs 6 elements of 2 bytes, but the file has 8 bytes"));
}

TEST(Idx, TrailingBytesAreAnError) {
  const std::string whole = idx(0x08, {2}, "ab");
  EXPECT_THAT(error_of(whole + "c"), HasSubstr("trailing bytes after the data, which end at 10"));
  EXPECT_THAT(error_of(gzip(whole + "c")),
              HasSubstr("trailing bytes after the data, which end at 10 unpacked"));
  EXPECT_THAT(error_of(gzip(whole) + "c"), HasSubstr("read_idx: some.idx: "));
}

TEST(Idx, WrongHeadersAreErrors) {
  EXPECT_THAT(error_of("PK\3\4zip and so on"), HasSubstr("not an IDX file: bytes 0 and 1 are 80 and 75"));
  EXPECT_THAT(error_of(idx(0x0A, {1}, "a")),
              HasSubstr("byte 2, the type, is 10; legal is 8, 9, 11, 12, 13 or 14"));
  EXPECT_THAT(error_of(idx(0x08, {}, "a")), HasSubstr("byte 3, the rank, is 0; legal is 1 to 8"));
  EXPECT_THAT(error_of(idx(0x08, {1, 1, 1, 1, 1, 1, 1, 1, 1}, "a")), HasSubstr("the rank, is 9"));
}

TEST(Idx, AbsurdSizesAreErrorsWithoutAllocation) {
  const std::uint64_t huge = 0xffffffff;
  for (const std::string& text :
       {idx(0x08, {huge}, "ab"), idx(0x08, {huge, 1000}, "ab"), gzip(idx(0x08, {huge}, "ab"))}) {
    EXPECT_THAT(error_of(text), HasSubstr("truncated: ["));
  }
  EXPECT_THAT(error_of(idx(0x08, {huge, huge, huge}, "ab")), HasSubstr("does not fit 63 bits"));
  EXPECT_THAT(error_of(idx(0x0E, {huge, 0x7fffffff}, "ab")), HasSubstr("truncated: ["));
}

TEST(Idx, BrokenGzipIsAnError) {
  std::string packed = gzip(idx(0x08, {200}, std::string(200, 'x')));
  packed[packed.size() - 6] ^= 1;  // in the checksum
  EXPECT_THAT(error_of(packed),
              HasSubstr("gzip data are broken after 208 bytes unpacked: incorrect data check"));
}

TEST(Idx, MissingFileAndFolderAreErrors) {
  EXPECT_EQ(message_of<Error>([] { read_idx("/nowhere/x.idx"); }),
            "/nowhere/x.idx: cannot open: No such file or directory");
  EXPECT_EQ(message_of<Error>([] { read_idx("/tmp"); }), "/tmp: is not a regular file");
}

TEST(IdxDataset, GivesImagesAndLabels) {
  const TemporaryFolder folder;
  write_text(folder / "images", gzip(idx(0x08, {2, 1, 3}, {'\0', '\x33', '\x66', '\x99', '\xcc', '\xff'})));
  write_text(folder / "labels", idx(0x08, {2}, {'\7', '\3'}));
  write_text(folder / "three", idx(0x08, {3}, {'\7', '\3', '\1'}));
  const IdxDataset dataset(folder / "images", folder / "labels");
  EXPECT_EQ(dataset.size(), 2);
  EXPECT_EQ(dataset.image_shape(), (Shape{1, 1, 3}));
  EXPECT_EQ(dataset.get(1).shape(), (Shape{1, 1, 3}));
  EXPECT_THAT(dataset.get(1).to_vector<float>(), ElementsAre(0.6f, 0.8f, 1.0f));
  EXPECT_EQ(dataset.label(0), 7);
  EXPECT_EQ(IdxDataset(folder / "images").label(0), std::nullopt);
  EXPECT_THAT(message_of<Error>([&] { (void)dataset.get(2); }),
              HasSubstr("index 2 is out of range; legal is 0 to 1"));
  EXPECT_THAT(message_of<Error>([&] { IdxDataset(folder / "images", folder / "three"); }),
              HasSubstr("labels of 2 images are integers [2]"));
  EXPECT_THAT(message_of<Error>([&] { IdxDataset(folder / "labels"); }),
              HasSubstr("images are [n,h,w] or [n,c,h,w]"));
}

TEST(IdxDataset, LoadsMnistQuickly) {
  const std::string data = shared_data();
  if (data.empty()) GTEST_SKIP() << "no shared data; set TAPEDECK_DATA to the folder that has mnist/";
  const auto start = std::chrono::steady_clock::now();
  const IdxDataset dataset(data + "/mnist/t10k-images-idx3-ubyte.gz",
                           data + "/mnist/t10k-labels-idx1-ubyte.gz");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  RecordProperty("milliseconds", static_cast<int>(1000 * took.count()));
  EXPECT_LT(took.count(),
            5.0);  // takes 0.05 s on an idle core; a sanitizer and a busy machine are allowed for
  EXPECT_EQ(dataset.size(), 10000);
  EXPECT_EQ(dataset.image_shape(), (Shape{1, 28, 28}));
  EXPECT_EQ(dataset.label(0), 7);  // the first digits are 7, 2, 1
  EXPECT_EQ(dataset.label(1), 2);
  EXPECT_EQ(dataset.label(2), 1);
  double sum = 0;
  for (std::int64_t i = 0; i < 10000; ++i) {
    for (const float value : dataset.get(i).to_vector<float>()) sum += value;
  }
  EXPECT_NEAR(sum / (10000 * 28 * 28), 0.1325, 0.0001);  // the known mean of this set
}

}  // namespace
}  // namespace tapedeck::data
