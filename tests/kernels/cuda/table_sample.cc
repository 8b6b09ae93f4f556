#include "kernels/cuda/table_sample.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "sample.h"

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
    Concern{"forward_sm90/transposer.cuh", "q_fp8"},
    Concern{"shared/transposed_values.h", "q_fp8"},
    Concern{"fragments/cap.cuh", "capped"},
    Concern{"fragments/drop_weights.cuh", "dropped"},
    Concern{"shared/philox.h", "dropped"},
    Concern{"fragments/sink.cuh", "sinks"},
    Concern{"fragments/tilt.cuh", "descending"},
    Concern{"fragments/found_mask_bits.cuh", "mask"},
    Concern{"shared/mask_bits.h", "mask"},
};
constexpr std::array<std::string_view, 6> kMadeOf = {"kernels/common/", "kernels/nvidia/",          "src/shared/",
                                                     "src/families/",   "src/backend/device_text/", "src/plan/"};

/// The files of the change that kernels are made of: the concern of each that has one, and whether there are others.
struct Change {
  std::vector<Concern> concerns;
  bool others = false;
};
Change change_of(const std::string& changed) {
  Change change;
  std::istringstream words(changed);
  for (std::string file; words >> file;) {
    if (std::ranges::none_of(kMadeOf, [&](std::string_view folder) { return file.starts_with(folder); })) continue;
    const auto* concern = std::ranges::find_if(kConcerns, [&](const Concern& c) { return file.ends_with(c.file); });
    if (concern == kConcerns.end()) {
      change.others = true;
    } else {
      change.concerns.push_back(*concern);
    }
  }
  return change;
}

/// One kernel in so many is drawn.
std::uint64_t share_of(const Fields& fields) {
  const char* changed = std::getenv("HEDDLE_TEST_CHANGED");
  static const Change change = change_of(changed != nullptr ? changed : "");
  const auto concerned = [&](const Concern& c) { return fields.contains(std::string(c.field)); };
  return std::ranges::any_of(change.concerns, concerned) ? 6
         : change.others                                 ? 16
         : test::kernels_are_unchanged()                 ? 192
                                                         : 64;
}

std::uint64_t hash_with_seed(const std::string& text) {
  return base::hash_bytes(text.data(), text.size(), test::sample_seed());
}

/// One feature in so many is in the sample.
std::uint64_t feature_share() { return test::kernels_are_unchanged() ? 24 : 8; }
constexpr int kMostDrawn = 10, kKernels = 900;  // at most so many kernels of so many are drawn

}  // namespace

bool in_sample(const jit::Source& source) {
  if (test::takes_all()) return true;
  static std::set<std::string> seen;
  static int asked = 0, drawn = 0;
  const Fields fields = fields_of(source);
  if (fields.empty()) return true;  // a kernel without a configuration is the only one of its kind
  const std::string family = source.name.substr(0, source.name.find(' '));
  bool first = false;
  for (const std::string& feature : features_of(fields)) {
    const std::string whole = family + ": " + feature;
    first |= seen.insert(whole).second && hash_with_seed(whole) % feature_share() == 0;
  }
  // The bound grows with the kernels asked for, so that the draw does not prefer the first tests.
  const bool within = drawn * kKernels <= ++asked * kMostDrawn;
  const bool is_drawn = within && hash_with_seed(source.text) % share_of(fields) == 0;
  if (is_drawn) ++drawn;
  return first || is_drawn;
}

}  // namespace heddle::cuda
