#pragma once

#include "mods/instructions.cuh"

namespace heddle::ptx {

inline unsigned count_up(unsigned* word) { return (*word)++; }

inline void wait_for_turn(const unsigned* word, unsigned turn) {
  emulated::cta().wait_until([=] { return *word == turn; });
}
inline void pass_turn(unsigned* word) {
  ++*word;
  emulated::cta().progress();
}

}  // namespace heddle::ptx
