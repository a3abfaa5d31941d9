// Models as text: one layer a line, called one after the other.
//
//   # from 64 latent numbers to 1 x 28 x 28
//   linear in=64 out=3136
//   unflatten shape=64x7x7
//   relu
//   conv_transpose2d in=64 out=32 kernel=4 stride=2 padding=1
//   batch_norm2d features=32
//   leaky_relu slope=0.2
//   conv_transpose2d in=32 out=1 kernel=4 stride=2 padding=1
//   sigmoid
//
// A line is a layer's name, then key=value pairs in any order; # starts a comment. A size is one number
// or HxW. layer_names() and layer_keys() list what there is; keys that are left out have PyTorch's
// defaults. Text from anywhere is safe to read: what is wrong is an Error that names the line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tapedeck/nn/module.h>

namespace tapedeck::nn {

class ModelDescription {
 public:
  /// Throws Error, "<source>:<line>: ...", for a layer or key that is unknown, a value that is missing,
  /// given twice, not of its kind or out of range, for a text without layers and for one over 1 MiB.
  static ModelDescription parse(std::string_view text, std::string source = "model");
  /// The same from a file. Throws Error also when it cannot be read.
  static ModelDescription load(const std::string& path);

  /// The text that it was made from.
  const std::string& text() const { return text_; }

  /// The model, with freshly initialised weights. Throws Error, naming the line, for values that a layer
  /// does not take and from the layer on with which there are more than `max_parameters`.
  Sequential build(std::int64_t max_parameters = std::int64_t{1} << 30) const;

  /// A layer of a built model, for tables.
  struct Row {
    int line = 0;
    std::string text;  // as written, without comment
    Shape output;
    std::int64_t parameters = 0;
  };
  /// Runs `model`, which build() made, on zeros of shape `input` in evaluation mode. Throws Error, naming
  /// the line, when a layer does not take what the one before makes, and when its tensors together with its
  /// input would take more than `max_bytes`.
  std::vector<Row> trace(const Sequential& model, const Shape& input,
                         std::size_t max_bytes = std::size_t{1} << 32) const;

 private:
  struct Layer {
    int line = 0;
    std::string text, name;
    std::vector<std::pair<std::string, std::string>> values;
  };

  std::string source_, text_;
  std::vector<Layer> layers_;
};

/// The names of all layers, in alphabetical order.
std::vector<std::string> layer_names();
/// The keys of a layer, separated by spaces. Throws Error for an unknown name.
std::string layer_keys(std::string_view name);

}  // namespace tapedeck::nn
