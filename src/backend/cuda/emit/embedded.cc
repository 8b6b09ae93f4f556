#include "backend/cuda/emit/embedded.h"

#include <string>

#include "backend/cuda/emit/embedded_text.h"

namespace heddle::cuda::emit {
namespace {

std::vector<std::string> joined_texts() {
  std::vector<std::string> texts;
  for (const EmbeddedText* file = embedded_texts(); file->name != nullptr; ++file) {
    texts.emplace_back();
    for (const char* const* piece = file->pieces; *piece != nullptr; ++piece) texts.back() += *piece;
  }
  return texts;
}

std::vector<jit::Header> headers_of(const std::vector<std::string>& texts) {
  std::vector<jit::Header> headers;
  for (std::size_t i = 0; i < texts.size(); ++i) headers.push_back({embedded_texts()[i].name, texts[i]});
  return headers;
}

}  // namespace

const std::vector<jit::Header>& embedded_headers() {
  static const std::vector<std::string> texts = joined_texts();
  static const std::vector<jit::Header> headers = headers_of(texts);
  return headers;
}

}  // namespace heddle::cuda::emit
