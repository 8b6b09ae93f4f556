// The dense definition of block classes, element by element with the scalar interpreter, and the rows of a block mask
// in the same form.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "expr/interpret.h"
#include "heddle/block_mask.h"

namespace heddle::test {

/// One score matrix as text: '#' all elements attend, '.' none, '+' some; a line a row of blocks.
inline std::string dense_classes(const expr::Interpreter& mask, const MaskShape& shape, BlockSize block,
                                 std::int64_t sequence, std::int64_t head) {
  const Sequence& s = shape.sequences[static_cast<std::size_t>(sequence)];
  const auto attends = [&](std::int64_t i, std::int64_t j) {
    expr::Element element;
    element[expr::Leaf::b] = static_cast<std::int32_t>(sequence);
    element[expr::Leaf::h] = static_cast<std::int32_t>(head);
    element[expr::Leaf::q_idx] = static_cast<std::int32_t>(i + s.q_start);
    element[expr::Leaf::kv_idx] = static_cast<std::int32_t>(j + s.kv_start);
    element[expr::Leaf::q_token] = static_cast<std::int32_t>(i + s.q_begin);
    element[expr::Leaf::kv_token] = static_cast<std::int32_t>(j + s.kv_begin);
    element[expr::Leaf::q_len] = static_cast<std::int32_t>(s.q_len);
    element[expr::Leaf::kv_len] = static_cast<std::int32_t>(s.kv_len);
    element[expr::Leaf::q_start] = static_cast<std::int32_t>(s.q_start);
    element[expr::Leaf::kv_start] = static_cast<std::int32_t>(s.kv_start);
    return mask.boolean(element);
  };
  std::string classes;
  for (std::int64_t q = 0; q < s.q_len; q += block.q) {
    for (std::int64_t kv = 0; kv < s.kv_len; kv += block.kv) {
      std::int64_t yes = 0, total = 0;
      for (std::int64_t i = q; i < std::min(s.q_len, q + block.q); ++i) {
        for (std::int64_t j = kv; j < std::min(s.kv_len, kv + block.kv); ++j) {
          yes += attends(i, j) ? 1 : 0;
          ++total;
        }
      }
      classes += yes == total ? '#' : yes == 0 ? '.' : '+';
    }
    classes += '\n';
  }
  return classes;
}

/// The classes from the runs of a block mask, whose order, extent and merging are checked on the way.
inline std::string run_classes(const BlockMask& mask, std::int64_t sequence, std::int64_t head) {
  std::string classes;
  const std::int64_t columns = mask.kv_blocks(sequence);
  for (std::int64_t q = 0; q < mask.q_blocks(sequence); ++q) {
    std::string line(static_cast<std::size_t>(columns), '.');
    std::optional<Run> left;
    for (const Run& run : mask.row(sequence, head, q)) {
      EXPECT_LT(run.begin, run.end);
      EXPECT_GE(run.begin, left ? left->end : 0) << "runs out of order";
      EXPECT_LE(run.end, columns);
      EXPECT_FALSE(left && left->end == run.begin && left->kind == run.kind) << "runs not merged";
      for (std::int64_t c = run.begin; c < std::min<std::int64_t>(run.end, columns); ++c) {
        line[static_cast<std::size_t>(c)] = run.kind == RunKind::full ? '#' : '+';
      }
      left = run;
    }
    classes += line + '\n';
  }
  return classes;
}

/// Text of classes with rows and columns exchanged.
inline std::string exchanged(const std::string& classes, std::int64_t rows, std::int64_t columns) {
  std::string result;
  for (std::int64_t c = 0; c < columns; ++c) {
    for (std::int64_t r = 0; r < rows; ++r) result += classes[static_cast<std::size_t>(r * (columns + 1) + c)];
    result += '\n';
  }
  return result;
}

}  // namespace heddle::test
