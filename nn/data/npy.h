// .npy files: one array of NumPy (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
// A magic string, the version, the header's length, the header as a Python dict, the elements.
#pragma once

#include <string>
#include <string_view>

#include <tapedeck/core/file.h>
#include <tapedeck/nn/data/dataset.h>

namespace tapedeck::data {

/// Reads an array of f8, f4, f2, i8 or u1, little-endian, in C or Fortran order, of format version 1, 2
/// or 3. Throws Error, naming the file and the place, for anything else; allocates no more than the
/// file fills.
Tensor load_npy(const std::string& path);
/// The same from memory; `name` stands for the file in messages.
Tensor decode_npy(Bytes bytes, std::string_view name = "memory");

/// Writes `tensor`, on any device, in C order, to a file that appears whole or not at all. bfloat16,
/// which NumPy lacks, becomes float32, which holds the same values.
void save_npy(const std::string& path, const Tensor& tensor);

/// The images of a .npy file: [n,h,w], [n,c,h,w] or, when only the last size can be that of channels
/// (1, 3 or 4), [n,h,w,c]; uint8 or floating.
class NpyDataset : public TensorDataset {
 public:
  explicit NpyDataset(const std::string& path);
};

}  // namespace tapedeck::data
