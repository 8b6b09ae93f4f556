// How the lanes' work of a vector instruction is written: a function of one lane's values, applied to all lanes.
//
//   {"v_fma_f32", "f:fff", each_lane<[](float a, float b, float c) { return std::fma(a, b, c); }>}
//
// The signature has a letter for each result, a colon, and a letter for each source (type_of_letter).
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>

#include "backend/amd/simulator/half.h"
#include "backend/amd/simulator/vector_call.h"

namespace heddle::amd::simulator {

struct VectorRow {
  const char* name;
  const char* signature;
  void (*run)(VectorCall&);
  UndefinedRule undefined = nullptr;
  Class counted_as = Class::kVector;
};

/// The tables, one a file.
std::span<const VectorRow> float_rows();
std::span<const VectorRow> double_rows();
std::span<const VectorRow> half_rows();
std::span<const VectorRow> integer_rows();
std::span<const VectorRow> narrow_integer_rows();
std::span<const VectorRow> wide_integer_rows();
std::span<const VectorRow> conversion_rows();
std::span<const VectorRow> compare_rows();
std::span<const VectorRow> move_rows();

/// nullptr if no table has the name.
const VectorRow* find_vector_row(std::string_view name);

void execute_vector(Execution& x, const Instruction& instruction);
void execute_dual(Execution& x, const Instruction& instruction);

// --- values of one lane ---

/// A 16-bit float as the f32 that it equals.
struct F16 {
  float value;
};
struct PackedF16 {
  float low, high;
};
struct PackedU16 {
  std::uint16_t low, high;
};
/// A lane's bit of a mask.
struct Bit {
  bool value;
};
struct WithCarry {
  std::uint32_t value;
  bool carry;
};
struct WideWithCarry {
  std::uint64_t value;
  bool carry;
};

template <class T>
struct Reader {  // of a 32-bit type
  const std::uint32_t* row;
  Reader(const VectorCall& c, std::size_t s) : row(c.from[s]) {}
  T get(int l) const { return std::bit_cast<T>(row[l]); }
};
template <class T>
requires(sizeof(T) == 2) struct Reader<T> {
  const std::uint32_t* row;
  Reader(const VectorCall& c, std::size_t s) : row(c.from[s]) {}
  T get(int l) const { return static_cast<T>(row[l]); }
};
template <class T>
requires(sizeof(T) == 8) struct Reader<T> {
  const std::uint32_t *low, *high;
  Reader(const VectorCall& c, std::size_t s) : low(c.from[s]), high(c.from_high[s]) {}
  T get(int l) const { return std::bit_cast<T>(low[l] | static_cast<std::uint64_t>(high[l]) << 32); }
};
template <>
struct Reader<F16> {
  const std::uint32_t* row;
  Reader(const VectorCall& c, std::size_t s) : row(c.from[s]) {}
  F16 get(int l) const { return {half_to_float(row[l] & 0xffff)}; }
};
template <>
struct Reader<PackedF16> {
  const std::uint32_t* row;
  Reader(const VectorCall& c, std::size_t s) : row(c.from[s]) {}
  PackedF16 get(int l) const { return {half_to_float(row[l] & 0xffff), half_to_float(row[l] >> 16)}; }
};
template <>
struct Reader<PackedU16> {
  const std::uint32_t* row;
  Reader(const VectorCall& c, std::size_t s) : row(c.from[s]) {}
  PackedU16 get(int l) const { return {static_cast<std::uint16_t>(row[l]), static_cast<std::uint16_t>(row[l] >> 16)}; }
};
template <>
struct Reader<Bit> {
  std::uint64_t mask;
  Reader(const VectorCall& c, std::size_t s) : mask(c.mask[s]) {}
  Bit get(int l) const { return {(mask >> l & 1) != 0}; }
};

/// Bits of the lanes, gathered from a byte for each.
inline std::uint64_t mask_of(const std::uint8_t* flags, int lanes) {
  std::uint64_t mask = 0;
  for (int l = 0; l < lanes; l += 8) {
    std::uint64_t bytes = 0;
    for (int i = 0; i < 8; ++i) bytes |= static_cast<std::uint64_t>(flags[l + i]) << (8 * i);
    mask |= (bytes * 0x0102040810204080 >> 56) << l;
  }
  return mask;
}

template <class T>
struct Writer {
  std::uint32_t* row;
  explicit Writer(VectorCall& c) : row(c.to) {}
  void put(int l, T value) { row[l] = std::bit_cast<std::uint32_t>(value); }
  void finish(VectorCall&) {}
};
template <class T>
requires(sizeof(T) == 2) struct Writer<T> {
  std::uint32_t* row;
  explicit Writer(VectorCall& c) : row(c.to) {}
  void put(int l, T value) { row[l] = static_cast<std::uint16_t>(value); }
  void finish(VectorCall&) {}
};
template <class T>
requires(sizeof(T) == 8) struct Writer<T> {
  std::uint32_t *low, *high;
  explicit Writer(VectorCall& c) : low(c.to), high(c.to_high) {}
  void put(int l, T value) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    low[l] = static_cast<std::uint32_t>(bits);
    high[l] = static_cast<std::uint32_t>(bits >> 32);
  }
  void finish(VectorCall&) {}
};
template <>
struct Writer<F16> {
  std::uint32_t* row;
  explicit Writer(VectorCall& c) : row(c.to) {}
  void put(int l, F16 h) { row[l] = float_to_half(h.value); }
  void finish(VectorCall&) {}
};
template <>
struct Writer<PackedF16> {
  std::uint32_t* row;
  explicit Writer(VectorCall& c) : row(c.to) {}
  void put(int l, PackedF16 p) { row[l] = float_to_half(p.low) | float_to_half(p.high) << 16; }
  void finish(VectorCall&) {}
};
template <>
struct Writer<PackedU16> {
  std::uint32_t* row;
  explicit Writer(VectorCall& c) : row(c.to) {}
  void put(int l, PackedU16 p) { row[l] = p.low | static_cast<std::uint32_t>(p.high) << 16; }
  void finish(VectorCall&) {}
};
template <>
struct Writer<bool> {
  std::array<std::uint8_t, kLanes> flags;
  explicit Writer(VectorCall&) {}
  void put(int l, bool value) { flags[static_cast<std::size_t>(l)] = value; }
  void finish(VectorCall& c) { c.to_mask = mask_of(flags.data(), c.lanes); }
};
template <>
struct Writer<WithCarry> {
  std::uint32_t* row;
  std::array<std::uint8_t, kLanes> flags;
  explicit Writer(VectorCall& c) : row(c.to) {}
  void put(int l, WithCarry r) { row[l] = r.value, flags[static_cast<std::size_t>(l)] = r.carry; }
  void finish(VectorCall& c) { c.to_mask = mask_of(flags.data(), c.lanes); }
};
template <>
struct Writer<WideWithCarry> {
  Writer<std::uint64_t> wide;
  std::array<std::uint8_t, kLanes> flags;
  explicit Writer(VectorCall& c) : wide(c) {}
  void put(int l, WideWithCarry r) { wide.put(l, r.value), flags[static_cast<std::size_t>(l)] = r.carry; }
  void finish(VectorCall& c) { c.to_mask = mask_of(flags.data(), c.lanes); }
};

template <auto F, class R, class... A, std::size_t... S>
void apply(VectorCall& c, R (*)(A...), std::index_sequence<S...>) {
  const std::tuple<Reader<A>...> sources{Reader<A>(c, S)...};
  Writer<R> to(c);
  for (int first = 0; first < c.lanes; first += 32) {  // 32 at a time, a length that the compiler knows
#pragma GCC ivdep
    for (int l = first; l < first + 32; ++l) to.put(l, F(std::get<S>(sources).get(l)...));
  }
  to.finish(c);
}

template <auto F, class R, class... A>
void apply(VectorCall& c, R (*function)(A...)) {
  apply<F>(c, function, std::index_sequence_for<A...>());
}

/// F is a lambda without captures of one lane's values.
template <auto F>
void each_lane(VectorCall& c) {
  apply<F>(c, +F);
}

}  // namespace heddle::amd::simulator
