#include "backend/cuda/jit/compiler_log.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace heddle::cuda::jit {
namespace {

/// Calls `use(line)` for each line, without its newline.
template <class Use>
void for_each_line(std::string_view text, Use&& use) {
  while (!text.empty()) {
    const std::size_t newline = text.find('\n');
    use(text.substr(0, newline));
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
  }
}

/// The number that stands right before `words`; -1 when the words or the number are not there.
int number_before(std::string_view line, std::string_view words) {
  const std::size_t at = line.find(words);
  if (at == std::string_view::npos) return -1;
  std::size_t begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int number = -1;
  const auto [end, error] = std::from_chars(line.data() + begin, line.data() + at, number);
  return error == std::errc() && end == line.data() + at ? number : -1;
}

/// Sums and maxima over a log's lines, and how many lines gave them.
struct Tally {
  int kernels = 0, used_lines = 0, frame_lines = 0;
  int registers = 0, shared = 0, stack = 0;
  std::int64_t spilled = 0;

  void read(std::string_view line) {
    if (line.find("Compiling entry function") != std::string_view::npos) ++kernels;
    if (const int used = number_before(line, " registers"); used >= 0 && line.find("Used ") != std::string_view::npos) {
      ++used_lines;
      registers = std::max(registers, used);
      shared = std::max(shared, number_before(line, " bytes smem"));
      stack = std::max(stack, number_before(line, " bytes cumulative stack size"));
    }
    const int frame = number_before(line, " bytes stack frame");
    const int stores = number_before(line, " bytes spill stores");
    const int loads = number_before(line, " bytes spill loads");
    if (frame >= 0 && stores >= 0 && loads >= 0) {
      ++frame_lines;
      stack = std::max(stack, frame);
      spilled += std::int64_t{stores} + loads;
    }
  }
};

bool is_code(std::string_view text) {
  return text.size() >= 5 && text[0] == 'C' &&
         std::all_of(text.begin() + 1, text.begin() + 5, [](char c) { return c >= '0' && c <= '9'; });
}

/// Whether a line with "(C7512)" in it is a reason to reject. New compilers may number such lines anew, but their words
/// have been the same since 12.2; should the words change, the numbers are left.
bool rejects(std::string_view line) {
  for (const std::string_view words : {"Potential Performance Loss", "instructions are serialized"}) {
    if (line.find(words) != std::string_view::npos) return true;
  }
  const std::size_t open = line.find("(C");
  if (open == std::string_view::npos || !is_code(line.substr(open + 1))) return false;
  const std::string_view code = line.substr(open + 1, 5);
  const bool added_wait = code == "C7517" || code == "C7519";
  return (code >= "C7508" && code <= "C7520" && !added_wait) || code.starts_with("C76");
}

/// "ptxas info    : (C7512) Potential ..." > "(C7512) Potential ..."
std::string_view without_prefix(std::string_view line) {
  const std::size_t colon = line.find(" : ");
  return line.starts_with("ptxas") && colon != std::string_view::npos ? line.substr(colon + 3) : line;
}

}  // namespace

Resources resources_in(std::string_view log) {
  Tally tally;
  for_each_line(log, [&](std::string_view line) { tally.read(line); });
  Resources resources;
  if (tally.kernels > 0 && tally.used_lines >= tally.kernels) {
    resources.registers = tally.registers;
    resources.static_shared_bytes = tally.shared;
  }
  if (tally.kernels > 0 && tally.frame_lines >= tally.kernels) {
    resources.stack_bytes = tally.stack;
    resources.spill_bytes = static_cast<int>(std::min<std::int64_t>(tally.spilled, INT32_MAX));
  }
  return resources;
}

std::string performance_losses(std::string_view log) {
  std::string losses;
  for_each_line(log, [&](std::string_view line) {
    if (!rejects(line)) return;
    if (!losses.empty()) losses += "; ";
    losses += without_prefix(line);
  });
  return losses;
}

std::string without_times(std::string_view log) {
  std::string kept;
  for_each_line(log, [&](std::string_view line) {
    if (line.find("Compile time = ") != std::string_view::npos) return;
    if (!kept.empty()) kept += '\n';
    kept += line;
  });
  return kept;
}

}  // namespace heddle::cuda::jit
