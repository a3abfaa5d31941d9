// A folder of image files as a dataset.
#pragma once

#include <string>
#include <vector>

#include <tapedeck/core/shape.h>
#include <tapedeck/nn/data/dataset.h>

namespace tapedeck::data {

struct ImageFolderOptions {
  Size2 size = 64;            ///< images are resized until they cover it, and cropped
  std::int64_t channels = 3;  ///< 1 or 3
  bool labels = false;        ///< the first subfolder on the way to an image is its class
};

/// All .png, .jpg and .jpeg files (in any case) of a folder and its subfolders, ordered by their paths,
/// byte by byte; files and folders whose names begin with a dot, and links to folders, are passed
/// over. An image is decoded when it is read, which throws Error, naming the file, if it is broken.
class ImageFolder final : public Dataset {
 public:
  /// Throws Error when the folder cannot be read or has no images, or an image has no class.
  explicit ImageFolder(const std::string& path, const ImageFolderOptions& options = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(paths_.size()); }
  Shape image_shape() const override { return {options_.channels, options_.size.h, options_.size.w}; }
  void read(std::int64_t i, std::span<float> out) const override;
  std::optional<std::int64_t> label(std::int64_t i) const override;

  /// The file of image i. Throws Error unless 0 <= i < size().
  const std::string& path(std::int64_t i) const;
  /// The names of the classes, sorted; empty unless labels were asked for.
  const std::vector<std::string>& classes() const { return classes_; }

 private:
  ImageFolderOptions options_;
  std::vector<std::string> paths_, classes_;
  std::vector<std::int64_t> labels_;
};

}  // namespace tapedeck::data
