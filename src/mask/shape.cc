#include "mask/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/element.h"
#include "base/view_checks.h"
#include "heddle/error.h"

namespace heddle {
namespace {

constexpr std::int64_t kMaxPosition = std::numeric_limits<std::int32_t>::max();

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

/// Cumulative lengths as they stand, checked.
std::vector<std::int64_t> offsets_of(const char* argument, const ConstTensorView& view) {
  if (view.dtype != DType::i32 && view.dtype != DType::i64) {
    refuse(fmt::format("{} is {}; i32 or i64 is accepted", argument, name(view.dtype)));
  }
  base::check_view(argument, view);
  if (view.device.kind != DeviceKind::cpu) refuse(fmt::format("{} is not on the CPU, where it is read", argument));
  base::check_memory(argument, view);
  if (view.rank() != 1 || view.shape[0] < 1) {
    refuse(fmt::format("{} is {}; one dimension of N + 1 cumulative lengths is accepted", argument,
                       to_string(view.shape)));
  }
  mask::check_sequence_count(argument, view.shape[0] - 1);
  std::vector<std::int64_t> offsets;
  for (std::int64_t i = 0; i < view.shape[0]; ++i) {
    const std::int64_t at = i * view.strides[0];
    offsets.push_back(view.dtype == DType::i32 ? base::load_raw<std::int32_t>(view.data, at)
                                               : base::load_raw<std::int64_t>(view.data, at));
    if (i == 0 && offsets[0] != 0) refuse(fmt::format("{}[0] is {}; it must be 0", argument, offsets[0]));
    if (i > 0 && offsets[i] < offsets[i - 1]) {
      refuse(fmt::format("{} decreases from {} to {} at index {}; cumulative lengths never decrease", argument,
                         offsets[i - 1], offsets[i], i));
    }
  }
  return offsets;
}

}  // namespace

MaskShape MaskShape::uniform(std::int64_t batch, std::int64_t heads, std::int64_t q_len, std::int64_t kv_len) {
  if (batch < 0 || batch > kMostSequences) {
    refuse(fmt::format("batch is {}; 0 to {} are accepted", batch, kMostSequences));
  }
  MaskShape shape;
  shape.heads = heads;
  shape.sequences.assign(static_cast<std::size_t>(batch), {.q_len = q_len, .kv_len = kv_len});
  mask::validate_shape(shape);
  return shape;
}

MaskShape MaskShape::packed(std::int64_t heads, const ConstTensorView& cu_seqlens_q,
                            const ConstTensorView& cu_seqlens_kv) {
  const std::vector<std::int64_t> q = offsets_of("cu_seqlens_q", cu_seqlens_q);
  const std::vector<std::int64_t> kv = offsets_of("cu_seqlens_kv", cu_seqlens_kv);
  if (q.size() != kv.size()) {
    refuse(fmt::format("cu_seqlens_q has {} elements and cu_seqlens_kv {}; both have one more than there are sequences",
                       q.size(), kv.size()));
  }
  MaskShape shape;
  shape.heads = heads;
  for (std::size_t i = 0; i + 1 < q.size(); ++i) {
    shape.sequences.push_back(
        {.q_begin = q[i], .q_len = q[i + 1] - q[i], .kv_begin = kv[i], .kv_len = kv[i + 1] - kv[i]});
  }
  mask::validate_shape(shape);
  return shape;
}

namespace mask {

bool fits_i32(std::int64_t start, std::int64_t length) {
  return start >= std::numeric_limits<std::int32_t>::min() &&
         start <= kMaxPosition - std::max<std::int64_t>(0, length - 1);
}

void validate_shape(const MaskShape& shape) {
  if (shape.heads < 0 || shape.heads > kMaxPosition) {
    refuse(fmt::format("heads is {}; 0 to {} are accepted, since masks count in i32", shape.heads, kMaxPosition));
  }
  check_sequence_count("the shape", std::ssize(shape.sequences));
  for (std::size_t i = 0; i < shape.sequences.size(); ++i) {
    const Sequence& sequence = shape.sequences[i];
    const auto check = [&](const char* what, std::int64_t begin, std::int64_t length) {
      if (begin < 0 || length < 0) {
        refuse(fmt::format("sequence {} has {} {} from {}; neither may be negative", i, length, what, begin));
      }
      if (begin > kMaxPosition || length > kMaxPosition - begin) {
        refuse(fmt::format("sequence {} has {} {} from {}; positions up to {} fit i32, in which masks see them", i,
                           length, what, begin, kMaxPosition));
      }
    };
    check("queries", sequence.q_begin, sequence.q_len);
    check("keys", sequence.kv_begin, sequence.kv_len);
    const auto check_start = [&](const char* what, std::int64_t length, const char* name, std::int64_t start) {
      if (fits_i32(start, length)) return;
      refuse(fmt::format("sequence {} has {} {} and {} {}; positions up to {} fit i32, in which masks see them", i,
                         length, what, name, start, kMaxPosition));
    };
    check_start("queries", sequence.q_len, "q_start", sequence.q_start);
    check_start("keys", sequence.kv_len, "kv_start", sequence.kv_start);
  }
}

void check_sequence_count(std::string_view what, std::int64_t count) {
  if (count <= MaskShape::kMostSequences) return;
  refuse(fmt::format("{} has {} sequences; up to {} are accepted", what, count, MaskShape::kMostSequences));
}

void check_row_count(std::int64_t before, std::int64_t heads, std::int64_t rows_of_head) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 28;  // of which offsets and indices take 3 GiB
  const std::int64_t each = std::max<std::int64_t>(1, rows_of_head);
  if (heads <= (kMostRows - before) / each) return;
  throw Error(
      ErrorCode::out_of_memory,
      fmt::format("{} heads with {} rows of blocks each, each head with rows of its own, are too many; up to {} "
                  "rows are accepted in all",
                  heads, rows_of_head, kMostRows));
}

void validate_block(BlockSize block) {
  if (block.q < 1 || block.kv < 1) {
    refuse(fmt::format("block is {} x {}; sizes of at least 1 are accepted", block.q, block.kv));
  }
}

}  // namespace mask
}  // namespace heddle
