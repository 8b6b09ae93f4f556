#include "backend/amd/simulator/metadata.h"

#include <charconv>
#include <stdexcept>
#include <string>

namespace heddle::amd::simulator {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t'");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r'") - first + 1);
}

int number(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

void set_field(KernelInfo& kernel, std::string_view key, std::string_view value) {
  const auto unsigned_value = static_cast<std::uint32_t>(number(value));
  if (key == ".name") kernel.name = value;
  if (key == ".kernarg_segment_size") kernel.argument_bytes = unsigned_value;
  if (key == ".group_segment_fixed_size") kernel.lds_bytes = unsigned_value;
  if (key == ".private_segment_fixed_size") kernel.scratch_bytes = unsigned_value;
  if (key == ".max_flat_workgroup_size") kernel.largest_group = unsigned_value;
  if (key == ".wavefront_size") kernel.wave_lanes = number(value);
  if (key == ".vgpr_count") kernel.vgprs = number(value);
  if (key == ".agpr_count") kernel.agprs = number(value);
  if (key == ".sgpr_count") kernel.sgprs = number(value);
  if (key == ".vgpr_spill_count") kernel.vgpr_spills = number(value);
  if (key == ".sgpr_spill_count") kernel.sgpr_spills = number(value);
}

void set_field(ArgumentInfo& argument, std::string_view key, std::string_view value) {
  if (key == ".offset") argument.offset = static_cast<std::uint32_t>(number(value));
  if (key == ".size") argument.size = static_cast<std::uint32_t>(number(value));
  if (key == ".value_kind") argument.kind = value;
}

}  // namespace

// The notes are YAML of a fixed form: "amdhsa.kernels:", then a list of kernels at two columns, in each a list ".args:"
// at six.
std::vector<KernelInfo> parse_metadata(std::string_view notes) {
  const std::size_t begin = notes.find("amdhsa.kernels:");
  if (begin == std::string_view::npos) throw std::runtime_error("the code object's notes list no kernels");
  std::vector<KernelInfo> kernels;
  bool in_arguments = false;
  std::size_t at = notes.find('\n', begin);
  while (at < notes.size()) {
    const std::size_t end = std::min(notes.find('\n', at + 1), notes.size());
    std::string_view line = notes.substr(at + 1, end - at - 1);
    at = end;
    std::size_t indent = line.find_first_not_of(' ');
    if (indent == std::string_view::npos) continue;
    if (indent == 0 && line[0] != ' ') break;  // "amdhsa.target" and what follows
    const bool begins_item = line.substr(indent).starts_with("- ");
    if (begins_item && indent == 2) {
      kernels.emplace_back();
      in_arguments = false;
    } else if (begins_item && in_arguments) {
      kernels.back().arguments.emplace_back();
    }
    const std::string_view field = trimmed(line.substr(begins_item ? indent + 2 : indent));
    const std::size_t colon = field.find(':');
    if (colon == std::string_view::npos || kernels.empty()) continue;
    const std::string_view key = field.substr(0, colon), value = trimmed(field.substr(colon + 1));
    const std::size_t column = begins_item ? indent + 2 : indent;
    if (column == 4) in_arguments = key == ".args";
    if (in_arguments && column > 4 && !kernels.back().arguments.empty()) {
      set_field(kernels.back().arguments.back(), key, value);
    } else if (column == 4) {
      set_field(kernels.back(), key, value);
    }
  }
  return kernels;
}

}  // namespace heddle::amd::simulator
