// Errors about a place in a text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace heddle::expr {

/// Throws invalid_argument: the sentence, then the text on one line and a caret under the character at byte `offset`
/// (text.size(): just past the end). A long text is cut to about 100 columns around it; tabs and line ends show as
/// blanks, control characters and broken UTF-8 as the replacement character.
[[noreturn]] void fail_at(std::string_view text, std::size_t offset, const std::string& sentence);

}  // namespace heddle::expr
