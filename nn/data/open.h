// Datasets by name: what a program's --data means.
#pragma once

#include <memory>
#include <string>

#include <tapedeck/core/shape.h>
#include <tapedeck/nn/data/dataset.h>

namespace tapedeck::data {

struct OpenOptions {
  /// Images are resized until they cover this, and cropped. 0: they stay as they are, but those of a
  /// folder become 64 x 64.
  Size2 size = 0;
  std::int64_t channels = 3;  ///< of a folder's images: 1 or 3
  bool labels = false;        ///< whether a folder's subfolders are classes
};

/// Opens what `spec` names:
/// - "sprites", or with any of "sprites:count=2000,size=32,seed=0";
/// - a folder of PNG or JPEG images, or one with an IDX file of images;
/// - an IDX file, also gzipped; "...labels-idx1..." beside "...images-idx3..." holds its labels;
/// - a .npy file.
/// Files are told by their content. Throws Error, listing the legal forms, for anything else, and, naming
/// the image, for floating-point values outside [0,1].
std::shared_ptr<const Dataset> open_dataset(const std::string& spec, const OpenOptions& options = {});

}  // namespace tapedeck::data
