// Appends to caches, drawn, computed element by element, and judged: for the tests of the CPU and of GPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "heddle/heddle.h"

namespace heddle::test {

enum class Pairs { none, halves, interleaved };

struct AppendSpec {
  DType rows = DType::bf16, keys = DType::bf16, values = DType::bf16, q_out = DType::bf16;
  std::int64_t batch = 3, heads = 2, q_heads = 6, new_rows = 4, q_rows = 4, qk_dim = 64, v_dim = 64;
  std::int64_t page_rows = 0;  // 0: the cache has a row a sequence
  bool listed = false;         // pages in a list, of which each sequence has a part; else in a table
  bool packed = false;         // with rows behind the last sequence
  bool beside = false;         // keys and values in one tensor of [.., row, 2, head, column]
  bool factors = false;        // of 8 bits
  bool queries = false, queries_at_first = false, given_positions = false;
  Pairs pairs = Pairs::none;
  std::int64_t turned = 0;  // columns
  DType angles = DType::f32, integers = DType::i32;
  std::string text() const;
};
/// One at random. A GPU's f32 computes what is not f64.
AppendSpec drawn_append(unsigned seed);

/// A tensor [entry, head, row, column] inside of a buffer.
struct StridedTensor {
  Tensor buffer;
  std::int64_t offset = 0;
  Dims shape, strides;
  TensorView view() const;
  std::int64_t offset_of(std::int64_t entry, std::int64_t head, std::int64_t row, std::int64_t column) const;
};

struct AppendCase {
  AppendSpec spec;
  StridedTensor k, v, q, k_cache, v_cache, q_out;
  Tensor lengths, starts, table, page_starts, k_factors, v_factors, cos, sin, positions;

  AppendCase(const AppendSpec& spec, unsigned seed);
  void make_list(const std::vector<std::int64_t>& before, const std::vector<std::int64_t>& begin,
                 const std::vector<std::int64_t>& numbers);
  /// A case of equal content on another device.
  AppendCase on(const Device& device) const;
  AppendTensors tensors() const;
  AppendOptions options() const;
  /// After this case was run on the CPU or, as `ran`, on a GPU: which elements of the outputs' buffers are not what
  /// they should be, those that no new row has among them. `before`: a case with the content of before. Empty: all are.
  static std::string wrong(const AppendCase& before, const AppendCase& ran);
};

}  // namespace heddle::test
