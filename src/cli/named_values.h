// The tensors and scalars that text mods may read by name.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "heddle/expr.h"
#include "heddle/tensor.h"

namespace heddle::cli {

/// Tensors that a file or the command line gives, and the params.
class Names {
 public:
  /// Reads each NAME=FILE of --capture. Throws Error: io for the file, invalid_argument for a wrong form or a name
  /// given twice.
  void add_captures(const std::vector<std::string>& assignments);
  void add_params(const std::vector<std::string>& assignments);
  /// Tensors of the input file that cannot be read, with the sentence for who asks for one.
  void add_skipped(std::map<std::string, std::string> skipped) { skipped_ = std::move(skipped); }
  /// A tensor of the input file.
  void add_tensor(const std::string& name, const Tensor& tensor);

  /// Throws unsupported for a skipped tensor, invalid_argument that lists the known names when there is no such tensor.
  const Tensor& tensor(std::string_view option, const std::string& name) const;

  /// Empty text gives an empty expression. Errors start with the option's name. Says on stderr that a tensor is not
  /// read when the text uses its name for what that means in mods (`b`, `h`, `score`).
  Expr parse(std::string_view option, const std::string& text) const;
  /// Values for what the mods read. Integer types that mods do not know are widened to i32 or i64 here; the views point
  /// at this object's tensors.
  Bindings bindings(std::initializer_list<Expr> mods);

 private:
  std::vector<std::string> shadowed_in(std::string_view text) const;

  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> skipped_;
  std::map<std::string, ParamValue> params_;
};

/// The file of FILE.npy or FILE.safetensors:TENSOR.
std::string file_of(const std::string& source);
/// Throws unsupported, with the file's sentence, when it holds a tensor of this name that was skipped.
void refuse_skipped(const std::map<std::string, std::string>& skipped, const std::string& name);
/// FILE.npy, or FILE.safetensors:TENSOR.
Tensor load_tensor(std::string_view option, const std::string& source);

}  // namespace heddle::cli
