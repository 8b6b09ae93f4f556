#include "backend/jit/key.h"

#include <fmt/format.h>

#include <cstdint>

#include "backend/jit/includes.h"
#include "base/hash.h"

namespace heddle::jit {
namespace {

/// Its length in front keeps a part from running into the next.
void add(std::string& all, std::string_view part) {
  all += fmt::format("{}:", part.size());
  all += part;
}

}  // namespace

std::string key_of(const Source& source, std::span<const std::string> options, std::string_view compiler) {
  std::string all;
  add(all, compiler);
  add(all, source.name);
  add(all, source.text);
  add(all, source.has_alternative ? "has an alternative" : "has none");  // the verdict depends on it,
  add(all, fmt::format("{}", source.bearable_spill_bytes));              // and on this
  for (const std::string& option : options) add(all, option);
  for (const Header* header : headers_in_use(source)) {
    add(all, header->name);
    add(all, header->text);
  }
  return fmt::format("{:016x}{:016x}", base::hash_bytes(all.data(), all.size(), 1),
                     base::hash_bytes(all.data(), all.size(), 2));
}

std::string source_key(const Source& source, std::span<const std::string> options) {
  return key_of(source, options, "any compiler");
}

}  // namespace heddle::jit
