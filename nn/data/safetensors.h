// safetensors: the file format of weights (https://github.com/huggingface/safetensors). An 8-byte
// little-endian length, a JSON header of that length (name -> dtype, shape, offsets), the bytes of the
// tensors, row-major and without gaps.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include <tapedeck/core/file.h>
#include <tapedeck/nn/module.h>

namespace tapedeck::data {

using nn::StateDict;
/// Free text beside the tensors.
using Metadata = std::map<std::string, std::string>;

/// Writes `tensors` to a file that appears whole or not at all; on any device, in any layout. Equal to
/// the byte to what the Python package writes for the same tensors (which keeps no order of metadata). Throws
/// Error for a name that is given twice, not UTF-8, or "__metadata__".
void save_safetensors(const std::string& path, const StateDict& tensors, const Metadata& metadata = {});

/// Reads a file, also one that PyTorch saved a module's state_dict to; the tensors come in the order of
/// their data. The format's F64, F32, BF16, F16, I64 and U8 are kept, BOOL becomes uint8, and I32, I16, I8,
/// U64, U32 and U16 become int64; others are an Error, as is any file that the Python package would
/// not read. `metadata`, unless null, receives the file's. Each tensor's bytes are copied once.
StateDict load_safetensors(const std::string& path, Metadata* metadata = nullptr);
/// The same from memory; `name` stands for the file in messages.
StateDict decode_safetensors(Bytes bytes, std::string_view name = "memory", Metadata* metadata = nullptr);

}  // namespace tapedeck::data
