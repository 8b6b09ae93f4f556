#include "plan/access/tensor_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/environment.h"
#include "heddle/error.h"
#include "plan/access/kernel_types.h"
#include "plan/access/tma_refuses.h"
#include "shared/panels.h"

namespace heddle::plan {
namespace {

// Why threads cannot store two elements of an o of another type at a time; empty where they can.
std::string pairs_refused(const ConstTensorView& o) {
  for (int axis = 0; axis + 1 < o.rank(); ++axis) {
    if (o.shape[axis] == 1 || o.strides[axis] % 2 == 0) continue;
    return fmt::format("its strides are {}, and pairs of elements take multiples of 2", to_string(o.strides));
  }
  const std::int64_t bytes = 2 * size_of(o.dtype);
  if (reinterpret_cast<std::uintptr_t>(o.data) % static_cast<std::uintptr_t>(bytes) == 0) return {};
  return fmt::format("its address is no multiple of {}, as pairs of elements take", bytes);
}

/// The rows of each sequence, in their order.
TensorCopy copy_for_sequences(const ConstTensorView& pages, const problem::AttentionProblem& problem) {
  TensorCopy copy = copy_for(pages);
  std::int64_t longest = 0;
  for (const Sequence& sequence : problem.sequences) longest = std::max(longest, sequence.kv_len);
  copy.shape[0] = problem.batch;
  copy.shape[2] = longest;
  copy.shared[0] = copy.shared[2] = false;  // sequences have their own
  copy.paged = true;
  copy.span = shared::CopiedSpan::keys;
  return copy;
}

void add_copy(TensorAccess& access, std::size_t tensor, TensorCopy copy) {
  copy.offset = room_of(access.copies);
  access.copies[tensor] = copy;
}

constexpr std::string_view kNames[] = {"q", "k", "v"};

// Why TMA does not store o; empty where it does. It writes 16 bytes of a row, and no less.
std::string tma_refuses_output(const ConstTensorView& o) {
  constexpr std::int64_t kColumns = 8;  // of 2 bytes
  const std::int64_t columns = o.shape[o.rank() - 1];
  if (columns % kColumns == 0) return o.count() == 0 ? std::string() : tma_refuses(o);
  return fmt::format("its rows have {} elements, and TMA stores multiples of {}", columns, kColumns);
}

/// By TMA as products leave it: in q's type, of 8 bits in bf16. Else by threads, in pairs of elements where these
/// divide its strides and its address.
void reach_output(TensorAccess& access, const ConstTensorView& o, DType q_dtype) {
  access.o_type = storage_type_of(o.dtype);
  const bool stored = o.dtype == (size_of(q_dtype) == 1 ? DType::bf16 : q_dtype);
  std::string reason = stored ? tma_refuses_output(o) : std::string();
  if (stored && reason.empty()) access.o_type = shared::StorageType::same;
  const bool by_threads = access.o_type != shared::StorageType::same;
  const std::string in_pairs = by_threads && o.count() > 0 ? pairs_refused(o) : std::string();
  access.odd_o = !in_pairs.empty();
  if (reason.empty() && in_pairs.empty()) return;
  reason += (reason.empty() || in_pairs.empty() ? "" : "; ") + in_pairs;
  access.reasons.push_back(
      fmt::format("o is stored by threads, {} bytes at a time: {}", size_of(o.dtype) * (access.odd_o ? 1 : 2), reason));
}

/// A tensor of rows in their order; `own`: which of them a padded sequence has.
void reach(TensorAccess& access, std::size_t tensor, const ConstTensorView& view, shared::CopiedSpan own,
           const problem::AttentionProblem& problem) {
  const std::string reason = view.count() == 0 ? std::string() : tma_refuses(view);
  if (reason.empty()) return;
  TensorCopy copy = copy_for(view);
  // Otherwise sequences lie one behind the other, or share one storage.
  if (!problem.packed && copy.stored(0) == problem.batch && !copy.shared[2]) copy.span = own;
  add_copy(access, tensor, copy);
  access.reasons.push_back(fmt::format("{} is copied into the workspace by each run: {}", kNames[tensor], reason));
}

/// In the order of their pages: what TMA does not take in rows that it does. Then boxes, or gathered rows.
TensorAccess in_pages(const TensorAccess& access, const AttentionTensors& tensors, std::int64_t rows) {
  TensorAccess own = access;
  own.page_rows = static_cast<int>(rows);
  for (const std::size_t tensor : {1, 2}) {
    const ConstTensorView& view = tensor == 1 ? tensors.k : tensors.v;
    const std::string reason = view.count() == 0 ? std::string() : tma_refuses(view);
    if (reason.empty()) continue;
    add_copy(own, tensor, copy_for(view));
    own.reasons.push_back(
        fmt::format("all pages of {} are copied into the workspace by each run: {}", kNames[tensor], reason));
  }
  if (rows % shared::kBoxRows != 0) {
    own.reasons.push_back(
        fmt::format("the rows of k and v are gathered by threads, 16 bytes at a time, from their pages: they have {} "
                    "rows, and TMA takes multiples of {}",
                    rows, shared::kBoxRows));
  }
  return own;
}

/// In the order of their sequences, whole blocks of keys from a copy.
TensorAccess in_sequences(const TensorAccess& access, const AttentionTensors& tensors,
                          const problem::AttentionProblem& problem) {
  TensorAccess own = access;
  add_copy(own, 1, copy_for_sequences(tensors.k, problem));
  add_copy(own, 2, copy_for_sequences(tensors.v, problem));
  own.reasons.push_back(
      fmt::format("the pages of k and v are copied into the workspace by each run, sequence by sequence: they have {} "
                  "rows, and a block of keys would come in many parts",
                  problem.page_rows));
  return own;
}

/// Pages of keys and values, which are reached in the same way.
TensorAccesses with_pages(const TensorAccess& access, const AttentionTensors& tensors,
                          const problem::AttentionProblem& problem) {
  const TensorAccess pages = in_pages(access, tensors, problem.page_rows);
  if (tensors.k.count() == 0) return {.ways = {pages}};
  const TensorAccess sequences = in_sequences(access, tensors, problem);
  const std::int64_t bytes = room_of(sequences.copies) - room_of(access.copies), most = most_copy_bytes();
  // If the pages must be copied anyway, there is no limit.
  const bool must_copy = room_of(pages.copies) > room_of(access.copies);
  if (bytes <= most || must_copy) return {.ways = {pages, sequences}};
  return {
      .ways = {pages},
      .rejected = {fmt::format("copies of pages, sequence by sequence, would take {} bytes; up to {} are taken ({})",
                               bytes, most, base::name_of(base::Option::copy_bytes))}};
}

}  // namespace

TensorAccess TensorAccess::with_copy(const TensorCopy& capture, const std::string& reason) const {
  TensorAccess access = *this;
  add_copy(access, kCopiedCapture, capture);
  access.reasons.push_back(fmt::format("a capture is copied into the workspace by each run: {}", reason));
  return access;
}

TensorAccess TensorAccess::because(const std::string& reason) const {
  TensorAccess access = *this;
  if (!reason.empty()) access.reasons.push_back(fmt::format("a capture is read element by element: {}", reason));
  return access;
}

std::int64_t most_copy_bytes() { return base::bytes_of(base::Option::copy_bytes, kMostCopyBytes); }

TensorAccesses tensor_accesses(const AttentionTensors& tensors, const problem::AttentionProblem& problem) {
  TensorAccess access;
  reach_output(access, tensors.o, tensors.q.dtype);
  reach(access, 0, tensors.q, shared::CopiedSpan::queries, problem);
  if (problem.page_rows > 0) return with_pages(access, tensors, problem);
  reach(access, 1, tensors.k, shared::CopiedSpan::keys, problem);
  reach(access, 2, tensors.v, shared::CopiedSpan::keys, problem);
  return {.ways = {access}};
}

}  // namespace heddle::plan
