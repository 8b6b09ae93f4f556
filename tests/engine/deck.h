// Values dealt like cards: all of a list before any comes again, in a new order each time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace heddle::test {

template <class T>
class Deck {
 public:
  Deck(std::vector<T> values, std::uint64_t seed) : values_(std::move(values)), next_(values_.size()), rng_(seed) {}
  const T& deal() {
    if (next_ == values_.size()) {
      std::shuffle(values_.begin(), values_.end(), rng_);
      next_ = 0;
    }
    return values_[next_++];
  }

 private:
  std::vector<T> values_;
  std::size_t next_;
  std::mt19937_64 rng_;
};

}  // namespace heddle::test
