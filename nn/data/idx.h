// IDX files: the format of MNIST. Two zero bytes, the type, the rank, big-endian 32-bit sizes, then
// big-endian elements in row-major order; often gzipped.
#pragma once

#include <string>
#include <string_view>

#include <tapedeck/core/file.h>
#include <tapedeck/nn/data/dataset.h>

namespace tapedeck::data {

/// Reads an IDX file of any element type, gzipped or not (told by its content). Unsigned bytes become
/// uint8, other integers int64, and the floating types stay what they are. Throws Error, naming the
/// file and the place, for anything but one whole IDX file; allocates no more than the file can fill.
Tensor read_idx(const std::string& path);
/// The same from memory; `name` stands for the file in messages.
Tensor decode_idx(Bytes bytes, std::string_view name = "memory");

/// The images of an IDX file: [n,h,w], or [n,c,h,w], unsigned bytes or floating. `labels` names an
/// IDX file of n integers, or is empty.
class IdxDataset : public TensorDataset {
 public:
  explicit IdxDataset(const std::string& images, const std::string& labels = "");
};

}  // namespace tapedeck::data
