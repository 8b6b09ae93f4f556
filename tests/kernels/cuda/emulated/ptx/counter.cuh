#pragma once

#include "mods/instructions.cuh"

namespace heddle::ptx {

inline unsigned count_up(unsigned* word) { return (*word)++; }

inline unsigned arrive(unsigned* word) {
  emulated::cta().own().release();
  return (*word)++;
}

inline void wait_for_turn(const unsigned* word, unsigned turn) {
  emulated::cta().wait_until([=] { return *word == turn; });
}
inline void pass_turn(unsigned* word) {
  emulated::cta().own().release();
  ++*word;
  emulated::cta().progress();
}

inline void await_count(const unsigned* word, unsigned count) {
  emulated::cta().wait_until([=] { return *word >= count; });
}
inline void fence_for_bulk() {}
inline void add_count(unsigned* word, unsigned count) {
  emulated::cta().own().release();
  *word += count;
  emulated::cta().progress();
}

}  // namespace heddle::ptx
