#include "named_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <cstdio>
#include <utility>

#include "arguments.h"
#include "heddle/error.h"
#include "heddle/files.h"

namespace heddle::cli {
namespace {

/// The narrowest element type that mods read and that holds every value; u64 above 2^63 saturates.
DType readable(DType dtype) {
  switch (dtype) {
    case DType::i16:
    case DType::i8:
    case DType::u16:
    case DType::u8:
      return DType::i32;
    case DType::u32:
    case DType::u64:
      return DType::i64;
    default:
      return dtype;
  }
}

std::string known(const std::map<std::string, Tensor>& tensors) {
  if (tensors.empty()) return "there are no tensors beside q, k and v";
  std::vector<std::string> names;
  names.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return fmt::format("the tensors are {}", fmt::join(names, ", "));
}

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool has_word(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool begins = at == 0 || !is_word_character(text[at - 1]);
    if (begins && (end == text.size() || !is_word_character(text[end]))) return true;
  }
  return false;
}

/// Mods have a meaning of their own for the name.
bool is_taken(const std::string& name) {
  try {
    Capture(name, DType::f32, 0);
  } catch (const Error&) {
    return true;
  }
  return false;
}

std::string shadowed_sentence(const std::string& name) {
  return fmt::format(
      "'{0}' has a meaning of its own in mods: the tensor '{0}' is not read; --capture NAME=FILE.safetensors:{0} gives "
      "it another name",
      name);
}

/// Calls `declare`, whose error for a name that no text can read gets the option's name.
template <class F>
void require_name(std::string_view option, F&& declare) {
  try {
    declare();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", option, error.what()));
  }
}

}  // namespace

void refuse_skipped(const std::map<std::string, std::string>& skipped, const std::string& name) {
  const auto found = skipped.find(name);
  if (found != skipped.end()) throw Error(ErrorCode::unsupported, found->second);
}

std::string file_of(const std::string& source) {
  constexpr std::string_view kSuffix = ".safetensors:";
  const std::size_t suffix = source.rfind(kSuffix);
  return suffix == std::string::npos ? source : source.substr(0, suffix + kSuffix.size() - 1);
}

Tensor load_tensor(std::string_view option, const std::string& source) {
  const std::string file = file_of(source);
  if (file == source && source.ends_with(".safetensors")) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{0}: '{1}' does not say which of its tensors; {1}:TENSOR is accepted, or a .npy file",
                            option, source));
  }
  if (file == source) return load_npy(file);
  const std::string name = source.substr(file.size() + 1);
  const TensorFile content = load_safetensors(file);
  const auto found = content.tensors.find(name);
  if (found == content.tensors.end()) {
    refuse_skipped(content.skipped, name);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} holds no tensor '{}'; {}", file, name, known(content.tensors)));
  }
  return found->second;
}

void Names::add_tensor(const std::string& name, const Tensor& tensor) {
  if (!tensors_.emplace(name, tensor).second) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--capture: the name '{}' is given twice", name));
  }
}

void Names::add_captures(const std::vector<std::string>& assignments) {
  for (const std::string& text : assignments) {
    const auto [name, source] = parse_assignment("--capture", text);
    require_name("--capture", [&name = name] { Capture(name, DType::f32, 0); });
    add_tensor(name, load_tensor("--capture", source));
  }
}

void Names::add_params(const std::vector<std::string>& assignments) {
  for (const std::string& text : assignments) {
    const auto [name, value] = parse_assignment("--param", text);
    require_name("--param", [&name = name] { param(name, ExprType::i32); });
    if (tensors_.contains(name) || !params_.emplace(name, parse_param_value(name, value)).second) {
      throw Error(ErrorCode::invalid_argument, fmt::format("--param: the name '{}' is given twice", name));
    }
  }
}

const Tensor& Names::tensor(std::string_view option, const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    refuse_skipped(skipped_, name);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: no tensor '{}'; {}. --capture NAME=FILE.npy adds one", option, name, known(tensors_)));
  }
  return found->second;
}

std::vector<std::string> Names::shadowed_in(std::string_view text) const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    if (has_word(text, name) && is_taken(name)) names.push_back(name);
  }
  return names;
}

Expr Names::parse(std::string_view option, const std::string& text) const {
  if (text.empty()) return {};
  Bindings scalars;
  scalars.params = params_;
  Symbols symbols(scalars);
  for (const auto& [name, tensor] : tensors_) {
    symbols.captures[name] = {readable(tensor.dtype()), tensor.shape().size()};
  }
  const std::vector<std::string> shadowed = shadowed_in(text);
  try {
    const Expr mod = heddle::parse(text, symbols);
    for (const std::string& name : shadowed) fmt::print(stderr, "heddle: {}: {}\n", option, shadowed_sentence(name));
    return mod;
  } catch (const Error& error) {
    for (const auto& [name, why] : skipped_) {
      if (std::string_view(error.what()).starts_with(fmt::format("unknown name '{}'", name)))
        refuse_skipped(skipped_, name);
    }
    std::string sentence = fmt::format("{}: {}", option, error.what());
    for (const std::string& name : shadowed) sentence += "\n" + shadowed_sentence(name);
    throw Error(error.code(), sentence);
  }
}

Bindings Names::bindings(std::initializer_list<Expr> mods) {
  Bindings bound;
  for (const Expr& mod : mods) {
    if (mod.empty()) continue;
    const Symbols read = symbols_of(mod);
    for (const auto& [name, declaration] : read.captures) {
      Tensor& tensor = tensors_.at(name);
      if (tensor.dtype() != declaration.dtype) tensor = tensor.to(declaration.dtype);
      bound.captures.insert_or_assign(name, tensor);
    }
    for (const auto& [name, type] : read.params) bound.params.emplace(name, params_.at(name));
  }
  return bound;
}

}  // namespace heddle::cli
