// How q, k, v and o are reached by the Hopper forward: by TMA, or by threads where their layout is none of TMA's.
#pragma once

#include <string>
#include <vector>

#include "problem/problem.h"
#include "shared/forward_sm90.h"

namespace heddle::plan {

/// What a kernel's config says of it, and why.
struct ForwardSm90Access {
  int q_gather = 0, k_gather = 0, v_gather = 0;  // as in ForwardSm90Config
  int page_rows = 0;
  bool odd_o = false;
  std::vector<std::string> reasons;  // a sentence for each tensor that TMA does not take

  shared::ForwardSm90Config in(shared::ForwardSm90Config config) const;
};

/// The type of an o that kernels store as products leave it, by TMA: q's; of 8 bits bf16.
DType forward_sm90_stored_type(DType q);

/// By the strides, and by how far the addresses are aligned (null: as far as may be), both of the tensors that are
/// planned for. A run may bring better aligned ones. `page_rows`: of a page of k and v, which TMA takes in boxes of 8
/// rows or more; 0: they are not paged.
ForwardSm90Access forward_sm90_access(const AttentionTensors& tensors, std::int64_t page_rows = 0);

}  // namespace heddle::plan
