#include <tapedeck/nn/data/image_folder.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include <tapedeck/nn/data/image.h>
#include <tapedeck/nn/data/resize.h>

namespace tapedeck::data {

namespace fs = std::filesystem;

namespace {

bool is_image(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return extension == ".png" || extension == ".jpg" || extension == ".jpeg";
}

/// The paths of the images under `folder`, relative to it.
std::vector<std::string> find_images(const std::string& folder) {
  std::vector<std::string> paths;
  try {
    for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator();
         ++entry) {
      if (entry->path().filename().string().starts_with('.')) {
        entry.disable_recursion_pending();
      } else if (is_image(entry->path()) && entry->is_regular_file()) {
        paths.push_back(entry->path().lexically_relative(folder).generic_string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw Error(concat("image_folder: ", folder, ": cannot read: ", error.code().message()));
  }
  check(!paths.empty(), "image_folder: ", folder,
        ": there are no .png, .jpg or .jpeg files in this folder or its subfolders");
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

ImageFolder::ImageFolder(const std::string& path, const ImageFolderOptions& options) : options_(options) {
  check(options.size.h >= 1 && options.size.w >= 1, "image_folder: size ", options.size.h, " x ",
        options.size.w, " is not legal; legal is 1 or more");
  check(options.channels == 1 || options.channels == 3, "image_folder: channels ", options.channels,
        " is not legal; legal is 1 or 3");
  paths_ = find_images(path);
  if (options.labels) {
    const auto class_of = [&](const std::string& image) {
      const std::size_t slash = image.find('/');
      check(slash != std::string::npos, "image_folder: ", path, "/", image,
            ": has no class: it is in no subfolder");
      return image.substr(0, slash);
    };
    std::set<std::string> classes;
    for (const std::string& image : paths_) classes.insert(class_of(image));
    classes_.assign(classes.begin(), classes.end());
    for (const std::string& image : paths_) {
      labels_.push_back(std::distance(classes.begin(), classes.find(class_of(image))));
    }
  }
  for (std::string& image : paths_) image = (fs::path(path) / image).string();
}

const std::string& ImageFolder::path(std::int64_t i) const {
  check(i >= 0 && i < size(), "image_folder: index ", i, " is out of range; legal is 0 to ", size() - 1);
  return paths_[static_cast<std::size_t>(i)];
}

void ImageFolder::read(std::int64_t i, std::span<float> out) const {
  const Tensor image = load_image(
      path(i), {.channels = options_.channels, .needed_side = std::max(options_.size.h, options_.size.w)});
  const Tensor fitted = resize_and_crop(image, options_.size);
  std::copy_n(fitted.data<float>(), out.size(), out.begin());
}

std::optional<std::int64_t> ImageFolder::label(std::int64_t i) const {
  if (labels_.empty()) return std::nullopt;
  return labels_[static_cast<std::size_t>(i)];
}

}  // namespace tapedeck::data
