// Infinite elements (p w, dS) of rows or keys that are not finite. A product takes 0 for such a row, and 0 times
// infinity is NaN. So the product takes a 0 of the element's sign, and `attending` of the element is kHidden meanwhile.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_HIDDEN_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_HIDDEN_ELEMENTS_INL_H_
#undef HEDDLE_CPU_HIDDEN_ELEMENTS_INL_H_
#else
#define HEDDLE_CPU_HIDDEN_ELEMENTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE::detail {

inline constexpr std::uint8_t kHidden = 2;

template <class T>
void Hide(T& element, std::uint8_t& attending) {
  if (!std::isinf(element)) return;
  element = std::copysign(T(0), element);
  attending = kHidden;
}
template <class T>
void Unhide(T& element, std::uint8_t& attending) {
  if (attending != kHidden) return;
  element = std::copysign(std::numeric_limits<T>::infinity(), element);
  attending = 1;
}

/// Whether a row of bf16 has an infinity or NaN.
inline bool HasNonFiniteBits(const std::uint16_t* row, std::int64_t count) {
  return std::any_of(row, row + count, [](std::uint16_t bits) { return (bits & 0x7f80) == 0x7f80; });
}

/// bf16 as f32.
HWY_INLINE float WidenBits(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

/// Hide() of an element of bf16. Unhide() returns what it was.
inline void Hide(std::uint16_t& bits, std::uint8_t& attending) {
  if ((bits & 0x7fff) != 0x7f80) return;
  bits &= 0x8000;
  attending = kHidden;
}
inline float Unhide(std::uint16_t bits, std::uint8_t& attending) {
  if (attending != kHidden) return WidenBits(bits);
  attending = 1;
  return WidenBits(bits | 0x7f80);
}

}  // namespace heddle::cpu::HWY_NAMESPACE::detail
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
