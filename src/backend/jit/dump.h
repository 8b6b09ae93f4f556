// HEDDLE_DUMP: everything about a kernel in files that people read.
#pragma once

#include <string>

#include "backend/jit/compiler.h"

namespace heddle::jit {

/// Writes NAME-KEY with the compiler's suffixes: the whole source, .log and .json (resources), and what there is of
/// assembly, machine code and its disassembly, into the folder. `record` is null when the source did not compile.
/// Throws Error(io) when a file cannot be written: the user asked for it.
void dump(const Compiler& compiler, const std::string& folder, const Source& source, const std::string& key,
          const Compilation& compilation, const Record* record);

}  // namespace heddle::jit
