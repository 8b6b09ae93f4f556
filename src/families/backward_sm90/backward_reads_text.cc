#include "families/backward_sm90/backward_reads_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>

#include "backend/device_code/headers.h"
#include "families/backward_sm90/backward_sm90_text.h"

namespace heddle::backward_sm90 {
namespace {

using device_text::ModLayout;
using device_text::TakesScore;
using plan::BackwardRead;
using plan::BackwardReads;
using shared::BackwardSm90Config;
using shared::OutputType;

/// The letter of a read's number, or of an axis: names of mods are small letters.
char letter(std::size_t number) { return static_cast<char>('a' + number); }

// Takes the read's number, its sum, rank, kind, of_weight, letter, and the text of index().
constexpr const char* kRead = R"(
struct Read{0} {{
  static constexpr int kNumber = {0}, kSum = {1}, kAxes = {2};
  static constexpr shared::ReadKind kKind = shared::ReadKind::{3};
  static constexpr bool kOfWeight = {4};
  using Slope = Slope{5}Mod;
  static __device__ __forceinline__ float slope(const shared::ModValues& mod, const Slope::Uniform& u,
                                                const Slope::Row& r, const Slope::Column& c, float score, int b, int h,
                                                int q_idx, int kv_idx) {{
    return slope{5}_element(mod, u, r, c, score, b, h, q_idx, kv_idx);
  }}
  static __device__ __forceinline__ void index(const shared::ModValues& mod, float score, int b, int h, int q_idx,
                                               int kv_idx, int (&index)[4]) {{
{6}  }}
}};
)";
// Takes the read's and the axis' letters, and the axis.
constexpr const char* kIndex = R"(    {{
      const auto u = index{0}{1}_uniform(mod, b, h);
      const auto r = index{0}{1}_row(mod, u, b, h, q_idx);
      const auto c = index{0}{1}_column(mod, u, b, h, kv_idx);
      index[{2}] = index{0}{1}_element(mod, u, r, c, score, b, h, q_idx, kv_idx);
    }}
)";

std::string read_text(std::size_t number, const BackwardRead& read, const ModLayout& layout) {
  const char own = letter(number);
  std::string text = device_text::mod_text(fmt::format("slope{}", own), read.slope, layout, TakesScore::yes);
  std::string index;
  for (std::size_t axis = 0; axis < read.indices.size(); ++axis) {
    text +=
        device_text::mod_text(fmt::format("index{}{}", own, letter(axis)), read.indices[axis], layout, TakesScore::yes);
    index += fmt::format(kIndex, own, letter(axis), axis);
  }
  return text + "namespace heddle {\n" +
         fmt::format(kRead, number, read.sum, read.indices.size(), name(read.kind), read.of_weight, own, index) +
         "\n}  // namespace heddle\n";
}

/// The reads, the types of sums, and which reads and sums a kernel walks.
std::string reads_text(const BackwardReads& reads, const std::vector<OutputType>& types, const ModLayout& layout) {
  std::string text;
  for (std::size_t i = 0; i < reads.reads.size(); ++i) text += read_text(i, reads.reads[i], layout);
  std::vector<std::string> type_names, stored, visited, sums, partial;
  for (std::size_t i = 0; i < reads.sums.size(); ++i) {
    type_names.push_back(fmt::format("shared::OutputType::{}", name(types[i])));
    stored.emplace_back(reads.stores(i) ? "true" : "false");
    sums.push_back(fmt::format("  visit.template operator()<{}>();\n", i));
  }
  for (std::size_t i = 0; i < reads.reads.size(); ++i) {
    const std::string read = fmt::format("Read{}", i);
    if (shared::visits_pairs(reads.reads[i].kind)) visited.push_back(", " + read);
    if (shared::has_partials(reads.reads[i].kind)) {
      partial.push_back(fmt::format("  visit.template operator()<{}>();\n", read));
    }
  }
  constexpr const char* kForEach =
      "template <class Visit>\n__device__ __forceinline__ void {}(const Visit& visit) {{\n{}}}\n";
  return text +
         fmt::format(
             "namespace heddle {{\n\nconstexpr shared::OutputType kSumTypes[] = {{{}}};\nconstexpr bool kSumStored[] = "
             "{{{}}};\n{}{}template <auto kConfig, class... Reads>\nclass BackwardReader;\nusing Reader = "
             "BackwardReader<kConfig{}>;\n\n}}  // namespace heddle\n",
             fmt::join(type_names, ", "), fmt::join(stored, ", "),
             fmt::format(kForEach, "for_each_sum", fmt::join(sums, "")),
             fmt::format(kForEach, "for_each_partial_read", fmt::join(partial, "")), fmt::join(visited, ""));
}

constexpr const char* kIncludes =
    "#include \"mods/captures.cuh\"\n#include \"families/backward_sm90/shared/backward_reads_params.h\"\n#include "
    "\"families/backward_sm90/shared/backward_sm90_config.h\"\n";

}  // namespace

jit::Source reads_source(const BackwardSm90Config& config, const plan::BackwardMods& mods, const BackwardReads& reads,
                         const std::vector<OutputType>& types, const ModLayout& layout) {
  ModLayout own = layout;
  own.by_sequence = config.by_sequence;
  jit::Source source = source_before_kernel(config, mods, own, "backward_reads");
  source.text =
      kIncludes + source.text + reads_text(reads, types, own) + "#include \"backward_sm90/backward_reads.cuh\"\n";
  return source;
}

jit::Source sums_source(const BackwardSm90Config& config, const BackwardReads& reads,
                        const std::vector<OutputType>& types, const ModLayout& layout) {
  ModLayout own = layout;
  own.by_sequence = config.by_sequence;
  return {.name = name_of(config, "backward_sums"),
          .text = kIncludes + config_text(config) + reads_text(reads, types, own) +
                  "#include \"backward_sm90/backward_sums.cuh\"\n",
          .headers = device_code::cuda_headers(),
          .architecture = "sm_90a"};
}

}  // namespace heddle::backward_sm90
