#include "kernels/cuda/table_sample.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <string_view>

#include "base/hash.h"

namespace heddle::cuda {
namespace {

using Fields = std::map<std::string, std::string>;

/// The fields that the source's kConfig states: those not at their default.
Fields fields_of(const jit::Source& source) {
  const std::size_t begin = source.text.find("kConfig = {"), end = source.text.find("};", begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  const std::string config = source.text.substr(begin, end - begin);
  const std::regex field(R"(\.(\w+) = ([^,}]+))");
  Fields fields;
  for (std::sregex_iterator i(config.begin(), config.end(), field), last; i != last; ++i) fields[(*i)[1]] = (*i)[2];
  return fields;
}

/// Numbers of which each has its own kernels, but no code: of these the shape counts, or whether there are any.
constexpr std::array kShape = {"qk_dim", "v_dim", "warpgroups", "kv_block"};
constexpr std::array kTuning = {"stages",          "q_buffers",       "o_panels",
                                "streamed_stages", "weight_exponent", "safe_headroom"};

std::set<std::string> features_of(const Fields& fields) {
  std::set<std::string> features;
  for (const char* flag : {"f16", "lse", "masked"}) {
    if (!fields.contains(flag)) features.insert(std::string("no ") + flag);
  }
  std::string shape = fields.contains("q_fp8") ? "8 bits" : "16 bits";
  for (const auto& [name, value] : fields) {
    const auto is_name = [&](const char* other) { return name == other; };
    if (std::ranges::any_of(kTuning, is_name)) continue;
    if (std::ranges::any_of(kShape, is_name)) {
      shape += " " + value;
    } else if (name == "page_rows") {
      const int rows = std::stoi(value);
      features.insert(rows % 8 == 0 ? "boxes of pages" : "gathered pages");
    } else {
      features.insert(name + " = " + value);
    }
  }
  features.insert(shape);
  return features;
}

/// A file of the kernels, and the field that those which run its code state. A file that is not listed concerns all.
struct Concern {
  std::string_view file, field;
};
constexpr std::array kConcerns = {
    Concern{"forward_sm90/gather.cuh", "page_rows"},
    Concern{"forward_sm90/streamer.cuh", "streamed_bytes"},
    Concern{"fragments/streamed_tile.cuh", "streamed_bytes"},
    Concern{"forward_sm90/transpose.cuh", "q_fp8"},
    Concern{"shared/transposed_values.h", "q_fp8"},
    Concern{"fragments/cap.cuh", "capped"},
    Concern{"fragments/drops.cuh", "dropped"},
    Concern{"shared/philox.h", "dropped"},
    Concern{"fragments/sink.cuh", "sinks"},
    Concern{"fragments/tilt.cuh", "descending"},
    Concern{"fragments/mask_bits.cuh", "mask"},
    Concern{"shared/mask_bits.h", "mask"},
};
constexpr std::array<std::string_view, 6> kMadeOf = {"kernels/common/", "kernels/nvidia/",          "src/shared/",
                                                     "src/families/",   "src/backend/device_text/", "src/plan/"};

/// One of how many kernels is drawn for the change; 0: it concerns none.
int share_of(const Fields& fields, const std::string& changed) {
  int share = 0;
  const std::regex word(R"(\S+)");
  for (std::sregex_iterator i(changed.begin(), changed.end(), word), last; i != last; ++i) {
    const std::string file = i->str();
    if (std::ranges::none_of(kMadeOf, [&](std::string_view folder) { return file.starts_with(folder); })) continue;
    const auto* concern = std::ranges::find_if(kConcerns, [&](const Concern& c) { return file.ends_with(c.file); });
    if (concern == kConcerns.end()) {
      share = share == 0 ? 16 : share;
    } else if (fields.contains(std::string(concern->field))) {
      share = 6;
    }
  }
  return share;
}

}  // namespace

bool in_sample(const jit::Source& source) {
  if (std::getenv("HEDDLE_TEST_FULL") != nullptr) return true;
  static std::set<std::string> seen;
  const Fields fields = fields_of(source);
  bool first = fields.empty();  // a kernel of another family has no others beside it
  for (const std::string& feature : features_of(fields)) first |= seen.insert(feature).second;
  const char* changed = std::getenv("HEDDLE_TEST_CHANGED");
  const char* seed = std::getenv("HEDDLE_TEST_SEED");
  if (first || changed == nullptr) return first;
  const int share = share_of(fields, changed);
  if (share == 0) return false;
  const std::uint64_t number = seed != nullptr ? std::strtoull(seed, nullptr, 10) : 0;
  return base::hash_bytes(source.text.data(), source.text.size(), number) % static_cast<std::uint64_t>(share) == 0;
}

}  // namespace heddle::cuda
