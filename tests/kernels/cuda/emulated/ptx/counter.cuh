#pragma once

namespace heddle::ptx {

inline unsigned count_up(unsigned* word) { return (*word)++; }

}  // namespace heddle::ptx
