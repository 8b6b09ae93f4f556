// The bytes from which the entries of fuzzers draw their arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace heddle::test {

/// The fuzzer's bytes, and zeros behind them.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  std::uint8_t next() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  /// Mostly small; now and then a number that no tensor has.
  std::int64_t extent() {
    constexpr std::array<std::int64_t, 6> kOdd = {-1, INT64_MIN, INT64_MAX, INT64_C(1) << 62, -8, 0};
    const std::uint8_t byte = next();
    return byte < 250 ? byte % 40 : kOdd[byte % kOdd.size()];
  }
  /// Mostly a value of the header, now and then none.
  std::int32_t number(std::int32_t most) {
    const std::uint8_t byte = next();
    return byte < 240 ? byte % (most + 1) : static_cast<std::int32_t>(byte * 0x01010101U);
  }
  /// Mostly up to `most`, now and then any number.
  std::int64_t any(std::int64_t most) {
    const std::uint8_t byte = next();
    if (byte < 240) return byte % (most + 1);
    std::uint64_t number = byte;
    for (int i = 0; i < 8; ++i) number = number << 8 | next();
    return static_cast<std::int64_t>(number);
  }
  bool coin() { return next() % 2 == 1; }
  template <class T, std::size_t kCount>
  const T& one_of(const std::array<T, kCount>& values) {
    return values[next() % kCount];
  }
  template <class T>
  std::uint64_t size_of_struct() {
    const std::uint8_t byte = next();
    return byte < 230 ? sizeof(T) : byte < 240 ? byte - 230U : sizeof(T) - (255U - byte);
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

[[noreturn]] inline void broken(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

}  // namespace heddle::test
