// A trained model in a safetensors file: its parameters by their names, and `characters`, the bytes of the text that
// its numbers of characters stand for.
#pragma once

#include <string>

#include "model.h"

struct SavedModel {
  Model model;
  std::string characters;  // byte n is the text of character n
};

void save_model(const std::string& path, Model& model, const std::string& characters);
/// Throws heddle::Error for a file that is no such model, which names the tensor.
SavedModel load_model(const std::string& path);
