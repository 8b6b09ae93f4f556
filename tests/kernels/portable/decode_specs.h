// The lists that decode_mma's cases are drawn from, on the host and on a GPU alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/portable/specs.h"

namespace heddle::test {

/// Cases of the whole forward with few queries: any group, pages, sequences, layouts, mods.
class DecodeSpecs {
 public:
  /// `keys`: the most that a sequence may have.
  DecodeSpecs(std::uint64_t first_seed, std::int64_t most_elements, std::int64_t keys)
      : source_(first_seed, most_elements, {DType::bf16, DType::bf16, DType::f16}),
        kv_rows_({1, 16, 60, 129, 300, std::min<std::int64_t>(keys, 500), keys}, 2) {}

  CaseSpec draw() {
    for (;;) {
      CaseSpec spec = source_.draw();
      spec.q_rows = q_rows_.deal();
      spec.kv_rows = kv_rows_.deal();
      spec.group = group_.deal();
      spec.page_rows = pages_.deal();
      spec.sequences = sequences_.deal();
      spec.kv_heads = kv_heads_.deal();
      spec.rows = "built";
      spec.block = {};
      if (spec.page_rows > 0) {
        spec.layout = Layout::bshd;
        spec.share_q_batch = spec.share_kv_batch = false;
      }
      if (spec.q_rows > 2) spec.group = std::min<std::int64_t>(spec.group, 8);
      if (std::max(spec.qk_dim, spec.v_dim) > 128) spec.q_rows = std::min<std::int64_t>(spec.q_rows, 16);
      if (fits(spec)) return spec;
    }
  }

 private:
  PortableSpecs source_;
  Deck<std::int64_t> kv_rows_, q_rows_{{1, 1, 1, 2, 3, 5, 16, 31}, 1}, group_{{1, 2, 4, 7, 8, 20, 71}, 3},
      pages_{{0, 0, 1, 5, 16, 64}, 4}, kv_heads_{{1, 2, 3}, 5};
  Deck<std::string> sequences_{{"whole", "lengths", "packed"}, 6};
};

}  // namespace heddle::test
