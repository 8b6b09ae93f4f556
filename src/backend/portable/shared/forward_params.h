// Each run passes these to a forward kernel of the portable families. Launchers and kernels read this file: no headers
// but these, plain integers only.
#pragma once

#include "shared/mod_values.h"
#include "shared/paging.h"
#include "shared/storage.h"
#include "shared/strided.h"

namespace heddle::shared {

struct ForwardParams {
  RowsOfTensor q, k, v;
  RowsOfTensor q_rest, k_rest;  // q_first, k_first: the last columns of q and of k
  int group;                    // query heads that read one head of keys
  double scale;                 // what a product q.k is multiplied by: scale, times the factor of the score_mod
  float scale32;                // the same, for all storage but f64
  Outputs outputs;
  ModValues mod;
  Sinks sinks;
  PageTable table;                  // page_rows
  RowNumbers lse_rest, max_scores;  // of lse's type, as outputs.lse is
};

}  // namespace heddle::shared
