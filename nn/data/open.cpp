#include <tapedeck/nn/data/open.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <vector>

#include <tapedeck/core/file.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/nn/data/idx.h>
#include <tapedeck/nn/data/image_folder.h>
#include <tapedeck/nn/data/npy.h>
#include <tapedeck/nn/data/resize.h>
#include <tapedeck/nn/data/sprites.h>

namespace tapedeck::data {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kLegal =
    "; legal is \"sprites\" (or \"sprites:count=2000,size=32,seed=0\"), a folder of PNG or JPEG images, an "
    "IDX "
    "file, also gzipped, and a .npy file";

/// Another dataset's images in another size.
class Resized final : public Dataset {
 public:
  Resized(std::shared_ptr<const Dataset> dataset, Size2 size) : dataset_(std::move(dataset)), size_(size) {}

  std::int64_t size() const override { return dataset_->size(); }
  Shape image_shape() const override { return {dataset_->image_shape()[0], size_.h, size_.w}; }
  std::optional<std::int64_t> label(std::int64_t i) const override { return dataset_->label(i); }
  void read(std::int64_t i, std::span<float> out) const override {
    const Tensor image = resize_and_crop(dataset_->get(i), size_);
    std::copy_n(image.data<float>(), out.size(), out.begin());
  }

 private:
  std::shared_ptr<const Dataset> dataset_;
  Size2 size_;
};

/// `text` is what follows "sprites": nothing, or ":key=value,...".
SpritesOptions parse_sprites(std::string_view text, std::int64_t default_size) {
  SpritesOptions options;
  if (default_size > 0) options.size = default_size;
  const auto number = [](std::string_view key, std::string_view value, auto& out) {
    const char* end = value.data() + value.size();
    const auto [next, error] = std::from_chars(value.data(), end, out);
    check(error == std::errc{} && next == end, "open_dataset: sprites: ", key, " \"", value,
          "\" is not a whole number, or too large");
  };
  while (!text.empty()) {
    text.remove_prefix(1);  // ':' or ','
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(item.size());
    const std::size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = equals == item.npos ? "" : item.substr(equals + 1);
    if (key == "count") {
      number(key, value, options.count);
    } else if (key == "size") {
      number(key, value, options.size);
    } else if (key == "seed") {
      number(key, value, options.seed);
    } else {
      throw Error(concat("open_dataset: sprites: \"", key, "\" is unknown; legal are count, size and seed"));
    }
  }
  return options;
}

/// `path` with its last "images-idx3" changed to "labels-idx1", if there is such a file; else "".
std::string labels_beside(std::string path) {
  constexpr std::string_view kImages = "images-idx3", kLabels = "labels-idx1";
  const std::size_t at = path.rfind(kImages);
  if (at == std::string::npos) return "";
  path.replace(at, kImages.size(), kLabels);
  return fs::is_regular_file(path) ? path : "";
}

/// Throws Error for the first image with a value outside [0,1].
void check_values(const std::string& path, const TensorDataset& dataset) {
  if (dataset.images().dtype() == DType::uint8) return;
  const std::int64_t images = dataset.size(), values = dataset.image_shape().count();
  std::vector<float> wrong(static_cast<std::size_t>(images), 0);  // a value of each image; 0: none is wrong
  parallel_for(images, 1 + (1 << 16) / (values + 1), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> image(static_cast<std::size_t>(values));
    for (std::int64_t i = begin; i < end; ++i) {
      dataset.read(i, image);
      const auto found =
          std::find_if(image.begin(), image.end(), [](float v) { return !(v >= 0 && v <= 1); });
      if (found != image.end()) wrong[static_cast<std::size_t>(i)] = *found;
    }
  });
  const auto first = std::find_if(wrong.begin(), wrong.end(), [](float v) { return v != 0; });
  check(first == wrong.end(), "open_dataset: ", path, ": image ", first - wrong.begin(), " has the value ",
        first == wrong.end() ? 0 : *first, "; legal are 0 to 1, or uint8 elements, which are divided by 255");
}

template <class D, class... Arguments>
std::shared_ptr<const Dataset> open_checked(const std::string& path, Arguments&&... arguments) {
  auto dataset = std::make_shared<D>(path, std::forward<Arguments>(arguments)...);
  check_values(path, *dataset);
  return dataset;
}

std::shared_ptr<const Dataset> open_file(const std::string& path) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  using namespace std::string_view_literals;
  if (text.starts_with("\x93NUMPY")) return open_checked<NpyDataset>(path);
  if (text.starts_with("\x1f\x8b") || text.starts_with("\0\0"sv)) {
    return open_checked<IdxDataset>(path, labels_beside(path));
  }
  const bool image = text.starts_with("\x89PNG") || text.starts_with("\xff\xd8\xff");
  throw Error(concat("open_dataset: ", path, ": ",
                     image ? "is one image, not a dataset" : "has an unknown format", kLegal));
}

std::shared_ptr<const Dataset> open_folder(const std::string& path, const OpenOptions& options) {
  std::vector<std::string> idx;
  std::error_code ignored;  // a folder that cannot be read is reported below
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    if (entry.path().filename().string().find("idx3-ubyte") != std::string::npos) idx.push_back(entry.path());
  }
  if (idx.size() == 1) return open_file(idx[0]);
  std::sort(idx.begin(), idx.end());
  check(idx.empty(), "open_dataset: ", path, ": has several IDX files; name one, such as ",
        idx.empty() ? "" : idx[0]);
  const Size2 size = options.size == Size2(0) ? Size2(64) : options.size;
  return std::make_shared<ImageFolder>(
      path, ImageFolderOptions{.size = size, .channels = options.channels, .labels = options.labels});
}

std::shared_ptr<const Dataset> open_any(const std::string& spec, const OpenOptions& options) {
  constexpr std::string_view kSprites = "sprites";
  if (spec == kSprites || spec.starts_with("sprites:")) {
    return std::make_shared<Sprites>(parse_sprites(std::string_view(spec).substr(kSprites.size()),
                                                   std::max(options.size.h, options.size.w)));
  }
  std::error_code error;
  const fs::file_status status = fs::status(spec, error);
  check(fs::exists(status), "open_dataset: \"", spec, "\" is no file or folder", kLegal);
  return fs::is_directory(status) ? open_folder(spec, options) : open_file(spec);
}

}  // namespace

std::shared_ptr<const Dataset> open_dataset(const std::string& spec, const OpenOptions& options) {
  const Size2 size = options.size;
  check((size.h >= 1 && size.w >= 1) || size == Size2(0), "open_dataset: size ", size.h, " x ", size.w,
        " is not legal; legal is 0 (as it is) or 1 x 1 and more");
  std::shared_ptr<const Dataset> dataset = open_any(spec, options);
  const Shape image = dataset->image_shape();
  if (size == Size2(0) || size == Size2(image[1], image[2])) return dataset;
  return std::make_shared<Resized>(std::move(dataset), size);
}

}  // namespace tapedeck::data
