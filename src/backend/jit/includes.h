// Which headers a source reads: `#include` lines followed from its text, conditions not looked at.
#pragma once

#include <string>
#include <vector>

#include "backend/jit/source.h"

namespace heddle::jit {

/// The headers that the source's text includes, or that those include, in the order of their first mention. Headers of
/// `source` that are not mentioned, and mentioned names that are no headers of `source`, are left out.
std::vector<const Header*> headers_in_use(const Source& source);

/// The whole source as one file: the text, each header in the place of its first mention, and lists of rows (.def) in
/// the place of each. Compiles by itself where every other header says `#pragma once` and is included unconditionally.
std::string in_one_file(const Source& source);

}  // namespace heddle::jit
