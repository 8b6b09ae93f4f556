// Pieces of a kernel's text that no mod belongs to, compiled on the host.
#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <string>

#include "backend/device_text/expression_text.h"
#include "backend/device_text/host_program.h"

namespace heddle::device_text::test {

/// `text` behind the functions that a kernel without mods has, loaded as load_on_host() does.
inline std::shared_ptr<void> load_without_mods(const std::string& text) {
  std::string all = "#include \"ptx/math.cuh\"\n#include \"families/forward_sm90/shared/forward_sm90_config.h\"\n";
  const Expr none[] = {Expr(true), Expr(0.0), Expr(0.0), leaf::score(), Expr(1.0)};
  const char* const names[] = {"mask", "offset", "slope", "score", "weight"};
  for (std::size_t i = 0; i < std::size(none); ++i) {
    const TakesScore takes = i == 3 ? TakesScore::yes : TakesScore::no;
    const bool streamed = i == 1 || i == 3;  // these may be given an element of a streamed capture
    all += streamed ? no_mod_text(names[i], ExprType::f32, takes, true) : mod_text(names[i], none[i], {}, takes);
  }
  all += "namespace heddle {\nstruct StreamedStorage {\n  static constexpr int kRead = 4;\n};\n}\n";
  return load_on_host(all + text);
}

}  // namespace heddle::device_text::test
