// Reading JPEG with libjpeg-turbo.
#include <tapedeck/nn/data/codecs.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>

#include <jpeglib.h>

#include <jerror.h>

namespace tapedeck::data::detail {

namespace {

constexpr int kMaxScans = 100;  // a small file with very many scans would take hours

/// What libjpeg's callbacks share with us; the manager comes first, for they get a pointer to that.
struct State {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
  char error[JMSG_LENGTH_MAX] = "";
};

State& state_of(j_common_ptr jpeg) {
  return *reinterpret_cast<State*>(jpeg->err);
}

[[noreturn]] void on_error(j_common_ptr jpeg) {
  State& state = state_of(jpeg);
  jpeg->err->format_message(jpeg, state.error);
  std::longjmp(state.jump, 1);
}

/// libjpeg goes on after a warning, with grey where data are missing: most are errors for us.
void on_message(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  const int code = jpeg->err->msg_code;
  if (code == JWRN_EXTRANEOUS_DATA || code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM ||
      code == JWRN_BOGUS_ICC) {
    return;
  }
  on_error(jpeg);
}

void on_progress(j_common_ptr jpeg) {
  if (!jpeg->is_decompressor) return;
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number > kMaxScans) {
    std::snprintf(state_of(jpeg).error, JMSG_LENGTH_MAX, "more than %d scans", kMaxScans);
    std::longjmp(state_of(jpeg).jump, 1);
  }
}

bool read_header(jpeg_decompress_struct* jpeg, State* state, const unsigned char* bytes, unsigned long size) {
  if (setjmp(state->jump) != 0) return false;
  jpeg_mem_src(jpeg, bytes, size);
  jpeg_read_header(jpeg, TRUE);
  return true;
}

bool start(jpeg_decompress_struct* jpeg, State* state) {
  if (setjmp(state->jump) != 0) return false;
  jpeg_start_decompress(jpeg);
  return true;
}

bool read_rows(jpeg_decompress_struct* jpeg, State* state, unsigned char* out, std::size_t row_bytes) {
  if (setjmp(state->jump) != 0) return false;
  while (jpeg->output_scanline < jpeg->output_height) {
    unsigned char* row = out + jpeg->output_scanline * row_bytes;
    jpeg_read_scanlines(jpeg, &row, 1);
  }
  jpeg_finish_decompress(jpeg);
  return true;
}

struct Reader {
  State state;
  jpeg_progress_mgr progress{};
  jpeg_decompress_struct jpeg{};

  Reader() {
    jpeg.err = jpeg_std_error(&state.manager);
    state.manager.error_exit = &on_error;
    state.manager.emit_message = &on_message;
    jpeg_create_decompress(&jpeg);  // fails only when libjpeg's header and library differ
    progress.progress_monitor = &on_progress;
    jpeg.progress = &progress;
  }
  ~Reader() { jpeg_destroy_decompress(&jpeg); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
};

/// CMYK to RGB, in place over the first three of every four samples' room. Adobe's programs store the inks
/// inverted.
void cmyk_to_rgb(Pixels& pixels, bool inverted) {
  const std::size_t count = pixels.samples.size() / 4;
  const auto light = [&](std::uint8_t ink) { return inverted ? ink : 255 - ink; };
  for (std::size_t i = 0; i < count; ++i) {
    const int black = light(pixels.samples[4 * i + 3]);
    for (std::size_t k = 0; k < 3; ++k) {
      const int value = light(pixels.samples[4 * i + k]) * black;
      pixels.samples[3 * i + k] = static_cast<std::uint8_t>((value + 127) / 255);
    }
  }
  pixels.c = 3;
  pixels.samples.resize(3 * count);
}

}  // namespace

Pixels decode_jpeg(Bytes bytes, const ImageOptions& options) {
  Reader reader;
  jpeg_decompress_struct& jpeg = reader.jpeg;
  const auto fail_unless = [&](bool ok) { check(ok, "JPEG: ", reader.state.error); };
  fail_unless(
      read_header(&jpeg, &reader.state, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
  const std::int64_t h = jpeg.image_height, w = jpeg.image_width;
  check(h * w <= options.max_pixels, "JPEG: ", h, " x ", w, " pixels; legal is up to ", options.max_pixels);

  if (jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK) {
    jpeg.out_color_space = JCS_CMYK;
  } else if (jpeg.jpeg_color_space != JCS_GRAYSCALE) {
    jpeg.out_color_space = JCS_RGB;
  }
  if (options.needed_side > 0) {
    while (jpeg.scale_denom < 8 && std::min(h, w) / jpeg.scale_denom >= 4 * options.needed_side)
      jpeg.scale_denom *= 2;
  }
  fail_unless(start(&jpeg, &reader.state));

  Pixels pixels;
  pixels.h = jpeg.output_height;
  pixels.w = jpeg.output_width;
  pixels.c = jpeg.output_components;
  pixels.allocate(options.max_pixels);
  fail_unless(
      read_rows(&jpeg, &reader.state, pixels.samples.data(), static_cast<std::size_t>(pixels.w * pixels.c)));
  if (jpeg.out_color_space == JCS_CMYK) cmyk_to_rgb(pixels, jpeg.saw_Adobe_marker != 0);
  return pixels;
}

}  // namespace tapedeck::data::detail
