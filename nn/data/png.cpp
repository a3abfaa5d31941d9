// Reading PNG with libpng.
#include <tapedeck/nn/data/codecs.h>

#include <bit>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <png.h>

namespace tapedeck::data::detail {

namespace {

constexpr png_uint_32 kMaxSide = 1 << 20;
constexpr std::uint64_t kDeflateRatio = 1032;  // the most that deflate can shrink

/// What libpng's callbacks share with us.
struct State {
  const std::byte* next;
  std::size_t left;
  char error[128] = "";
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* state = static_cast<State*>(png_get_error_ptr(png));
  std::snprintf(state->error, sizeof state->error, "%s", message);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep out, std::size_t count) {
  auto* state = static_cast<State*>(png_get_io_ptr(png));
  if (count > state->left) png_error(png, "truncated: the file ends inside the image");
  std::memcpy(out, state->next, count);
  state->next += count;
  state->left -= count;
}

/// Bytes of a row as the file has it, and as we ask for it.
struct RowBytes {
  std::size_t packed, unpacked;
};

/// Reads up to the first pixels and asks for samples of 8 or 16 bits, with alpha where there is
/// transparency.
bool read_header(png_structp png, png_infop info, RowBytes* row) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_read_info(png, info);
  row->packed = png_get_rowbytes(png, info);
  png_set_expand(png);  // palettes, 1 to 4 bits, transparent colours
  if (std::endian::native == std::endian::little) png_set_swap(png);
  (void)png_set_interlace_handling(png);
  png_read_update_info(png, info);
  row->unpacked = png_get_rowbytes(png, info);
  return true;
}

bool read_rows(png_structp png, png_bytepp rows) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_read_image(png, rows);
  png_read_end(png, nullptr);
  return true;
}

struct Reader {
  State state;
  png_structp png = nullptr;
  png_infop info = nullptr;

  explicit Reader(Bytes bytes) : state{bytes.data(), bytes.size()} {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &state, &on_error, &on_warning);
    if (png != nullptr) info = png_create_info_struct(png);
    if (info == nullptr) {
      png_destroy_read_struct(&png, nullptr, nullptr);
      throw Error("PNG: libpng cannot start");
    }
    png_set_read_fn(png, &state, &on_read);
    png_set_user_limits(png, kMaxSide, kMaxSide);
  }
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
};

}  // namespace

Pixels decode_png(Bytes bytes, const ImageOptions& options) {
  Reader reader(bytes);
  RowBytes row{};
  check(read_header(reader.png, reader.info, &row), "PNG: ", reader.state.error);
  Pixels pixels;
  pixels.h = png_get_image_height(reader.png, reader.info);
  pixels.w = png_get_image_width(reader.png, reader.info);
  pixels.c = png_get_channels(reader.png, reader.info);
  pixels.bits = png_get_bit_depth(reader.png, reader.info);
  check(row.packed * static_cast<std::uint64_t>(pixels.h) <= bytes.size() * kDeflateRatio,
        "PNG: truncated: ", pixels.h, " x ", pixels.w, " pixels cannot come out of ", bytes.size(), " bytes");
  pixels.allocate(options.max_pixels);
  check(row.unpacked * static_cast<std::uint64_t>(pixels.h) == pixels.samples.size(),
        "PNG: libpng gives rows of ", row.unpacked, " bytes");

  std::vector<png_bytep> rows;
  for (std::size_t y = 0; y < static_cast<std::size_t>(pixels.h); ++y) {
    rows.push_back(pixels.samples.data() + y * row.unpacked);
  }
  check(read_rows(reader.png, rows.data()), "PNG: ", reader.state.error);
  return pixels;
}

}  // namespace tapedeck::data::detail
