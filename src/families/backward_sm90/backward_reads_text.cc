#include "families/backward_sm90/backward_reads_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>

#include "backend/device_code/headers.h"
#include "backend/device_text/read_text.h"
#include "families/backward_sm90/backward_sm90.h"

namespace heddle::backward_sm90 {
namespace {

using device_text::ModLayout;
using plan::BackwardRead;
using plan::BackwardReads;
using shared::BackwardSm90Config;
using shared::StorageType;

// Takes the read's sum, kind, of_weight and skips_outside.
constexpr const char* kConstants =
    "  static constexpr int kSum = {};\n"
    "  static constexpr shared::ReadKind kKind = shared::ReadKind::{};\n"
    "  static constexpr bool kOfWeight = {}, kSkipsOutside = {};\n";

std::string read_text(std::size_t number, const BackwardRead& read, const ModLayout& layout) {
  const std::string constants = fmt::format(kConstants, read.sum, name(read.kind), read.of_weight, read.skips_outside);
  return device_text::read_text(number, read.slope, read.indices, constants, layout);
}

/// The reads, the types of sums, and which reads and sums a kernel walks.
std::string reads_text(const BackwardReads& reads, const std::vector<StorageType>& types, const ModLayout& layout) {
  std::string text;
  for (std::size_t i = 0; i < reads.reads.size(); ++i) text += read_text(i, reads.reads[i], layout);
  std::vector<std::string> type_names, stored, visited, sums, partial;
  for (std::size_t i = 0; i < reads.sums.size(); ++i) {
    type_names.push_back(fmt::format("shared::StorageType::{}", name(types[i])));
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
  return text + fmt::format(
                    "namespace heddle {{\n\nconstexpr shared::StorageType kSumTypes[] = {{{}}};\nconstexpr bool "
                    "kSumStored[] = "
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
                         const std::vector<StorageType>& types, const ModLayout& layout) {
  ModLayout own = layout;
  own.by_sequence = config.by_sequence;
  jit::Source source = source_before_kernel(config, mods, own, "backward_reads");
  // A mapped score of four tensors beside lse in two words stores and loads 16 bytes at head dimension 128.
  if (config.lse_rest) source.bearable_spill_bytes = 32;
  source.text = kIncludes + source.text + reads_text(reads, types, own) +
                "#include \"backward_sm90/backward_reads_kernel.cuh\"\n";
  return source;
}

jit::Source sums_source(const BackwardSm90Config& config, const BackwardReads& reads,
                        const std::vector<StorageType>& types, const ModLayout& layout) {
  ModLayout own = layout;
  own.by_sequence = config.by_sequence;
  return {.name = name_of(config, "backward_sums"),
          .text = kIncludes + config_text(config) + reads_text(reads, types, own) +
                  "#include \"backward_sm90/backward_sums.cuh\"\n",
          .headers = device_code::cuda_headers(),
          .architecture = "sm_90a"};
}

}  // namespace heddle::backward_sm90
