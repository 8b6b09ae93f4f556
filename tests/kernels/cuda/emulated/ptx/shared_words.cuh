#pragma once

#include "ptx/barrier.cuh"

namespace heddle::ptx {

template <class T>
void read_shared(Address from, T* to, int count) {
  if (from % (sizeof(T) * static_cast<unsigned>(count)) != 0) emulated::fail("an address that is not aligned");
  std::memcpy(to, cta().at(from), sizeof(T) * static_cast<std::size_t>(count));
}
template <class T>
void write_shared(Address to, const T* from, int count) {
  if (to % (sizeof(T) * static_cast<unsigned>(count)) != 0) emulated::fail("an address that is not aligned");
  std::memcpy(cta().at(to), from, sizeof(T) * static_cast<std::size_t>(count));
}
inline int load_word(Address from) {
  int word;
  read_shared(from, &word, 1);
  return word;
}
inline void store_word(Address to, int word) { write_shared(to, &word, 1); }
inline void load_words(Address from, int (&to)[4]) { read_shared(from, to, 4); }
inline void store_words(Address to, int first, int second, int third, int fourth) {
  const int words[4] = {first, second, third, fourth};
  write_shared(to, words, 4);
}
inline void load_floats(Address from, float (&to)[4]) { read_shared(from, to, 4); }
inline void store_floats(Address to, float first, float second, float third, float fourth) {
  const float floats[4] = {first, second, third, fourth};
  write_shared(to, floats, 4);
}
inline void store_zeros(Address to) { store_words(to, 0, 0, 0, 0); }

}  // namespace heddle::ptx
