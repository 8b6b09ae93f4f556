#include "backend/amd/simulator/assembly_line.h"

#include <fmt/format.h>

#include <charconv>
#include <stdexcept>

namespace heddle::amd::simulator {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// Parts of `text` between separators that stand outside of all brackets and quotes.
std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : separator;
    if (c == '"') quoted = !quoted;
    if (c == '[' || c == '(') ++depth;
    if (c == ']' || c == ')') --depth;
    if (i == text.size() || (c == separator && depth == 0 && !quoted)) {
      const std::string_view part = trimmed(text.substr(begin, i - begin));
      if (!part.empty()) parts.emplace_back(part);
      begin = i + 1;
    }
  }
  return parts;
}

}  // namespace

AssemblyLine parse_instruction(std::string_view text) {
  AssemblyLine line;
  text = trimmed(text);
  line.text = text;
  const std::size_t space = text.find(' ');
  line.mnemonic = text.substr(0, space);
  if (space == std::string_view::npos) return line;
  line.operands = split(text.substr(space + 1), ',');
  if (line.operands.empty()) return line;
  std::vector<std::string> last = split(line.operands.back(), ' ');  // the last operand and the modifiers behind it
  line.operands.back() = last.front();
  line.modifiers.assign(last.begin() + 1, last.end());
  return line;
}

Disassembly parse_disassembly(std::string_view text) {
  Disassembly result;
  std::size_t begin = text.find("Disassembly of section");
  if (begin == std::string_view::npos) throw std::runtime_error("the disassembly holds no section");
  begin = text.find('\n', begin);
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin + 1), text.size());
    const std::string_view line = text.substr(begin + 1, end - begin - 1);
    begin = end;
    if (!line.starts_with('\t') && !line.starts_with("  ")) continue;  // a label, a section's title, an empty line
    const std::size_t comment = line.rfind("//");
    if (trimmed(line) == "...") continue;  // bytes of zero between functions
    if (comment == std::string_view::npos) throw std::runtime_error(fmt::format("no address in: {}", line));
    const std::string_view code = trimmed(line.substr(0, comment));
    const std::size_t pair = code.find(" :: ");
    AssemblyLine parsed = parse_instruction(code.substr(0, pair));
    if (pair != std::string_view::npos) parsed.second_half = trimmed(code.substr(pair + 4));
    parsed.text = code;
    const std::string_view address = trimmed(line.substr(comment + 2));
    std::from_chars(address.data(), address.data() + address.size(), parsed.address, 16);
    result.lines.push_back(std::move(parsed));
  }
  return result;
}

}  // namespace heddle::amd::simulator
