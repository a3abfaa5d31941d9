#include <tapedeck/nn/data/image.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <png.h>

#include <tapedeck/nn/data/codecs.h>

namespace tapedeck::data {

void detail::Pixels::allocate(std::int64_t max_pixels) {
  check(h >= 1 && w >= 1 && h <= max_pixels / w, h, " x ", w, " pixels; legal is 1 up to ", max_pixels);
  samples.resize(static_cast<std::size_t>(h * w * c * (bits / 8)));
}

namespace {

using detail::Pixels;

/// The samples, in [0,1], as planes.
template <class Sample>
Tensor to_planes(const Pixels& pixels) {
  Tensor image = Tensor::empty({pixels.c, pixels.h, pixels.w});
  const std::int64_t area = pixels.h * pixels.w;
  const auto* in = reinterpret_cast<const Sample*>(pixels.samples.data());
  auto* out = image.data<float>();
  for (std::int64_t i = 0; i < area; ++i) {
    for (std::int64_t c = 0; c < pixels.c; ++c) {
      out[c * area + i] = static_cast<float>(*in++) / static_cast<float>(static_cast<Sample>(-1));
    }
  }
  return image;
}

/// [c,h,w] of 1 to 4 channels as 1 or 3.
Tensor convert_channels(const Tensor& image, std::int64_t channels) {
  const std::int64_t from = image.size(0), area = image.size(1) * image.size(2);
  Tensor out = Tensor::empty(image.shape().with(0, channels));
  const float* in = image.data<float>();
  const bool alpha = from == 2 || from == 4, coloured = from >= 3;
  for (std::int64_t i = 0; i < area; ++i) {
    std::array<float, 3> rgb{};
    for (std::int64_t k = 0; k < 3; ++k) {
      const float value = in[(coloured ? k : 0) * area + i];
      const float opacity = alpha ? in[(from - 1) * area + i] : 1.0f;
      rgb[static_cast<std::size_t>(k)] = alpha ? 1.0f - opacity * (1.0f - value) : value;
    }
    if (channels == 3) {
      for (std::int64_t k = 0; k < 3; ++k) out.data<float>()[k * area + i] = rgb[static_cast<std::size_t>(k)];
    } else {
      out.data<float>()[i] = coloured ? 0.299f * rgb[0] + 0.587f * rgb[1] + 0.114f * rgb[2] : rgb[0];
    }
  }
  return out;
}

bool starts_with(Bytes bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

Tensor decode(Bytes bytes, const ImageOptions& options) {
  check(options.channels == 0 || options.channels == 1 || options.channels == 3, "channels ",
        options.channels, " is not legal; legal is 0, 1 or 3");
  check(!bytes.empty(), "truncated: the file is empty");
  Pixels pixels;
  if (starts_with(bytes, "\x89PNG")) {
    pixels = detail::decode_png(bytes, options);
  } else if (starts_with(bytes, "\xff\xd8\xff")) {
    pixels = detail::decode_jpeg(bytes, options);
  } else {
    throw Error("not an image: it begins neither as PNG nor as JPEG");
  }
  const Tensor image = pixels.bits == 16 ? to_planes<std::uint16_t>(pixels) : to_planes<std::uint8_t>(pixels);
  return options.channels == 0 || options.channels == pixels.c ? image
                                                               : convert_channels(image, options.channels);
}

/// [c,h,w] as interleaved bytes.
std::vector<std::uint8_t> to_bytes(const Tensor& image) {
  const std::int64_t channels = image.size(0), height = image.size(1), width = image.size(2);
  std::vector<std::uint8_t> samples(static_cast<std::size_t>(image.count()));
  const bool bytes = image.dtype() == DType::uint8;
  const std::vector<float> values = image.to_vector<float>();
  std::size_t from = 0;
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        const float value = values[from++];
        check(!std::isnan(value), "image is NaN at [", c, ",", y, ",", x, "]");
        const float scaled = bytes ? value : std::clamp(value, 0.0f, 1.0f) * 255.0f;
        samples[static_cast<std::size_t>((y * width + x) * channels + c)] =
            static_cast<std::uint8_t>(std::lround(scaled));
      }
    }
  }
  return samples;
}

std::vector<std::byte> encode(const Tensor& image) {
  check(image.defined() && image.rank() == 3 && image.size(0) >= 1 && image.size(0) <= 4 &&
            image.count() > 0 && image.dtype() != DType::int64,
        "image is ", image, "; legal is [c,h,w], floating or uint8, with c from 1 to 4 and no empty side");
  constexpr std::uint32_t kFormats[] = {PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB, PNG_FORMAT_RGBA};
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(image.size(1));
  png.width = static_cast<png_uint_32>(image.size(2));
  png.format = kFormats[image.size(0) - 1];
  const std::vector<std::uint8_t> samples = to_bytes(image);
  std::vector<std::byte> out(PNG_IMAGE_PNG_SIZE_MAX(png));
  png_alloc_size_t size = out.size();
  check(png_image_write_to_memory(&png, out.data(), &size, 0, samples.data(), 0, nullptr) != 0, png.message);
  out.resize(size);
  return out;
}

}  // namespace

Tensor decode_image(Bytes bytes, std::string_view name, const ImageOptions& options) {
  return tapedeck::detail::naming(concat("load_image: ", name), [&] { return decode(bytes, options); });
}

Tensor load_image(const std::string& path, const ImageOptions& options) {
  const MappedFile file(path);
  return decode_image(file.bytes(), path, options);
}

std::vector<std::byte> encode_png(const Tensor& image) {
  return tapedeck::detail::naming("encode_png", [&] { return encode(image); });
}

void save_png(const std::string& path, const Tensor& image) {
  const auto bytes = tapedeck::detail::naming(concat("save_png: ", path), [&] { return encode(image); });
  tapedeck::detail::naming("save_png",
                           [&] { write_atomically(path, bytes); });  // a file's errors have its path
}

Tensor make_grid(const Tensor& images, const GridOptions& options) {
  check(images.defined() && images.rank() == 4 && images.size(0) >= 1, "make_grid: images are ", images,
        "; legal is [n,c,h,w] with n of 1 or more");
  check(options.columns >= 1, "make_grid: columns ", options.columns, " is not legal; legal is 1 or more");
  check(options.padding >= 0, "make_grid: padding ", options.padding, " is not legal; legal is 0 or more");
  const std::int64_t n = images.size(0), c = images.size(1), h = images.size(2), w = images.size(3);
  const std::int64_t columns = std::min(options.columns, n), rows = (n + columns - 1) / columns;
  const std::int64_t pad = options.padding, high = rows * (h + pad) + pad, wide = columns * (w + pad) + pad;
  const std::vector<float> in = images.to_vector<float>();
  Tensor grid = Tensor::full({c, high, wide}, options.value);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t top = pad + i / columns * (h + pad), left = pad + i % columns * (w + pad);
    for (std::int64_t k = 0; k < c * h; ++k) {
      const float* row = in.data() + (i * c * h + k) * w;
      std::copy_n(row, w, grid.data<float>() + (k / h * high + top + k % h) * wide + left);
    }
  }
  return grid;
}

}  // namespace tapedeck::data
