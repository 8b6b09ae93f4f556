#include "backend/device_code/headers.h"

#include <string>
#include <string_view>

#include "backend/device_code/embedded_text.h"

namespace heddle::device_code {
namespace {

const std::vector<std::string>& texts() {
  static const std::vector<std::string> joined = [] {
    std::vector<std::string> texts;
    for (const EmbeddedText* file = embedded_texts(); file->name != nullptr; ++file) {
      texts.emplace_back();
      for (const char* const* piece = file->pieces; *piece != nullptr; ++piece) texts.back() += *piece;
    }
    return texts;
  }();
  return joined;
}

/// The headers of a vendor's kernels, by the paths that they include: headers of kernels/VENDOR and kernels/common from
/// those folders, kernels/portable from kernels, and headers that the host shares from src.
std::vector<jit::Header> headers_of(std::string_view vendor, std::string_view other) {
  constexpr std::string_view kCommon = "common/";
  std::vector<jit::Header> headers;
  for (std::size_t i = 0; i < texts().size(); ++i) {
    std::string_view name = embedded_texts()[i].name;
    if (name.starts_with(other)) continue;
    if (name.starts_with(kCommon)) name.remove_prefix(kCommon.size());
    if (name.starts_with(vendor)) name.remove_prefix(vendor.size());
    headers.push_back({std::string(name), texts()[i]});
  }
  return headers;
}

}  // namespace

const std::vector<jit::Header>& cuda_headers() {
  static const std::vector<jit::Header> headers = headers_of("nvidia/", "amd/");
  return headers;
}

const std::vector<jit::Header>& amd_headers() {
  static const std::vector<jit::Header> headers = headers_of("amd/", "nvidia/");
  return headers;
}

}  // namespace heddle::device_code
