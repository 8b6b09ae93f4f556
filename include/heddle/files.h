// Tensor files: safetensors and NumPy's .npy, read and written whole. Texts are written in the same way.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "heddle/tensor.h"

namespace heddle {

/// The content of one safetensors file.
struct TensorFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;  // the "__metadata__" entry
  /// Tensors that were left out because heddle does not have their element type or rank: name, and a sentence that says
  /// why. Not written.
  std::map<std::string, std::string> skipped{};
};

/// Reads a .safetensors file. Every rule of the format is checked (header length, JSON, dtype, shape x size = offsets,
/// no holes, no overlap, no bytes left over, no name twice); a breach throws io with the file's name and what is wrong,
/// before anything of a stated size is allocated. Tensors that heddle cannot hold are skipped; of their size only the
/// place is checked.
TensorFile load_safetensors(const std::filesystem::path& path);
/// Writes to a temporary file beside `path`, brings it to the disk, then renames it. If anything fails (io), an old
/// file stays as it was. A link stays a link, and its target is replaced. Character devices and pipes are written
/// directly. Throws invalid_argument for names that are not UTF-8, unsupported for memory that is not the CPU's.
void save_safetensors(const std::filesystem::path& path, const TensorFile& file);

/// Reads a .npy file, versions 1 to 3, C or Fortran order, little or big endian; the result is row-major. Throws io,
/// and unsupported for an element type or rank that heddle does not have.
Tensor load_npy(const std::filesystem::path& path);
/// Writes version 1.0, C order; temporary file and rename as above. Throws unsupported for an element type NumPy does
/// not have.
void save_npy(const std::filesystem::path& path, const ConstTensorView& tensor);

/// Writes `text` as it is, such as BlockMask::svg(); temporary file and rename as above.
void save_text(const std::filesystem::path& path, std::string_view text);

}  // namespace heddle
