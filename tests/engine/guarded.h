// Tensors in poisoned memory: every byte around and between the elements is 0xff (NaN in every floating type), and the
// memory ends at a page that nothing may touch.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "heddle/tensor.h"

namespace heddle::test {

/// Anonymous memory with an inaccessible page before and after. The bytes asked for end exactly at the page after, or
/// start exactly behind the page before.
class GuardedMemory {
 public:
  enum class Side { end, start };

  GuardedMemory(std::int64_t bytes, Side side) {
    const std::int64_t page = sysconf(_SC_PAGE_SIZE);
    const std::int64_t inner = (bytes + page - 1) / page * page;
    mapped_ = static_cast<std::size_t>(inner + 2 * page);
    void* mapping = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::byte*>(mapping);
    std::memset(base_ + page, 0xff, static_cast<std::size_t>(inner));
    mprotect(base_, static_cast<std::size_t>(page), PROT_NONE);
    mprotect(base_ + page + inner, static_cast<std::size_t>(page), PROT_NONE);
    data_ = base_ + page + (side == Side::end ? inner - bytes : 0);
  }
  ~GuardedMemory() { munmap(base_, mapped_); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t mapped_ = 0;
  std::byte* data_ = nullptr;
};

/// How a [B, H, S, D] tensor lies in memory.
enum class Layout : std::uint8_t {
  bhsd,      // row-major
  bshd,      // heads beside each other in a token's row
  gaps,      // row-major with unused elements after each row, head and batch entry
  sliced,    // a slice of a wider [B, S, H + 2, D + 8] tensor
  padded,    // as gaps, in multiples of 16 elements
  reversed,  // row-major, the last row of a head first
  expanded,  // all batch entries and heads are the same memory (for inputs)
  one_row,   // all rows of a head are (for inputs)
};

/// Strides of [B, H, S, D], the elements that they span, and where among these the first element is.
struct Placement {
  Dims strides;
  std::int64_t span = 0, first = 0;
};

inline Dims strides_of(Layout layout, const Dims& shape) {
  const std::int64_t heads = shape[1], rows = shape[2], columns = shape[3], wide = (columns + 23) / 16 * 16;
  switch (layout) {
    case Layout::bhsd:
      break;
    case Layout::bshd:
      return {rows * heads * columns, columns, heads * columns, 1};
    case Layout::gaps:
      return {heads * (rows * (columns + 3) + 5) + 7, rows * (columns + 3) + 5, columns + 3, 1};
    case Layout::sliced:
      return {rows * (heads + 2) * (columns + 8), columns + 8, (heads + 2) * (columns + 8), 1};
    case Layout::padded:
      return {heads * (rows * wide + 16) + 48, rows * wide + 16, wide, 1};
    case Layout::reversed:
      return {heads * rows * columns, rows * columns, -columns, 1};
    case Layout::expanded:
      return {0, 0, columns, 1};
    case Layout::one_row:
      return {heads * wide, wide, 0, 1};
  }
  return contiguous_strides(shape);
}

inline Placement place(Layout layout, const Dims& shape) {
  Placement placement = {.strides = strides_of(layout, shape)};
  if (element_count(shape) == 0) return placement;
  placement.span = 1;
  for (int axis = 0; axis < 4; ++axis) {
    const std::int64_t reach = (shape[axis] - 1) * placement.strides[axis];
    placement.span += std::abs(reach);
    if (reach < 0) placement.first -= reach;
  }
  return placement;
}

/// A [B, H, S, D] tensor in guarded memory, all NaN at first.
class GuardedTensor {
 public:
  GuardedTensor() = default;
  GuardedTensor(DType dtype, const Dims& shape, Layout layout, GuardedMemory::Side side = GuardedMemory::Side::end) {
    const Placement placement = place(layout, shape);
    bytes_ = placement.span * size_of(dtype);
    memory_ = std::make_shared<GuardedMemory>(bytes_, side);
    first_ = placement.first;
    view_ = TensorView(memory_->data() + first_ * size_of(dtype), dtype, shape, placement.strides);
  }

  const TensorView& view() const { return view_; }

  /// The bytes as they are, to see later what was written.
  std::vector<std::byte> bytes() const { return {memory_->data(), memory_->data() + bytes_}; }
  /// All memory that the elements span, and where among it the first element is.
  std::span<std::byte> memory() const { return {memory_->data(), static_cast<std::size_t>(bytes_)}; }
  std::int64_t first_byte() const { return first_ * size_of(view_.dtype); }

  /// True when every byte between the elements still is 0xff.
  bool gaps_untouched() const {
    std::vector<bool> used(static_cast<std::size_t>(bytes_), false);
    const std::int64_t size = size_of(view_.dtype);
    for_each_element([&](const Dims&, std::int64_t offset) {
      for (std::int64_t byte = 0; byte < size; ++byte)
        used[static_cast<std::size_t>((first_ + offset) * size + byte)] = true;
    });
    for (std::size_t byte = 0; byte < used.size(); ++byte) {
      if (!used[byte] && memory_->data()[byte] != std::byte{0xff}) return false;
    }
    return true;
  }

  /// body(index, offset in elements from the first one)
  template <class Body>
  void for_each_element(Body&& body) const {
    const Dims& shape = view_.shape;
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      for (std::int64_t h = 0; h < shape[1]; ++h) {
        for (std::int64_t s = 0; s < shape[2]; ++s) {
          for (std::int64_t d = 0; d < shape[3]; ++d) {
            const Dims& strides = view_.strides;
            body(Dims{b, h, s, d}, b * strides[0] + h * strides[1] + s * strides[2] + d * strides[3]);
          }
        }
      }
    }
  }

 private:
  std::shared_ptr<GuardedMemory> memory_;
  std::int64_t bytes_ = 0, first_ = 0;
  TensorView view_;
};

}  // namespace heddle::test
