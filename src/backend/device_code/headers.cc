#include "backend/device_code/headers.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "backend/device_code/embedded_text.h"

namespace heddle::device_code {
namespace {

constexpr std::string_view kAmd = "amd/";

/// By their embedded names: those of kernels/amd begin with "amd/".
const std::vector<jit::Header>& all_headers() {
  static const std::vector<std::string> texts = [] {
    std::vector<std::string> joined;
    for (const EmbeddedText* file = embedded_texts(); file->name != nullptr; ++file) {
      joined.emplace_back();
      for (const char* const* piece = file->pieces; *piece != nullptr; ++piece) joined.back() += *piece;
    }
    return joined;
  }();
  static const std::vector<jit::Header> headers = [] {
    std::vector<jit::Header> named;
    for (std::size_t i = 0; i < texts.size(); ++i) named.push_back({embedded_texts()[i].name, texts[i]});
    return named;
  }();
  return headers;
}

bool is_of_amd_alone(std::string_view name) {
  return name.starts_with(kAmd) || name.starts_with("portable/amd/") || name.starts_with("portable/fragments/amd") ||
         name.starts_with("portable/fragments/gfx");
}

}  // namespace

const std::vector<jit::Header>& cuda_headers() {
  static const std::vector<jit::Header> headers = [] {
    std::vector<jit::Header> chosen;
    std::ranges::copy_if(all_headers(), std::back_inserter(chosen),
                         [](const jit::Header& header) { return !is_of_amd_alone(header.name); });
    return chosen;
  }();
  return headers;
}

const std::vector<jit::Header>& amd_headers() {
  static const std::vector<jit::Header> headers = [] {
    std::vector<jit::Header> chosen;
    for (const jit::Header& header : all_headers()) {
      if (header.name.starts_with(kAmd)) chosen.push_back({header.name.substr(kAmd.size()), header.text});
    }
    for (const jit::Header& header : all_headers()) {
      const bool taken = std::ranges::find(chosen, header.name, &jit::Header::name) != chosen.end();
      if (!taken && !header.name.starts_with(kAmd)) chosen.push_back(header);
    }
    return chosen;
  }();
  return headers;
}

}  // namespace heddle::device_code
