// Unsigned integers by their size.
#pragma once

namespace heddle::ptx {

template <int kBytes>
struct BitsOf;
template <>
struct BitsOf<1> {
  using Type = unsigned char;
};
template <>
struct BitsOf<2> {
  using Type = unsigned short;
};
template <>
struct BitsOf<4> {
  using Type = unsigned;
};
template <>
struct BitsOf<8> {
  using Type = unsigned long long;
};
template <int kBytes>
using Bits = typename BitsOf<kBytes>::Type;

}  // namespace heddle::ptx
