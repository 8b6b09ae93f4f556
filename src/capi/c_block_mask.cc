// Block masks behind an opaque pointer.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>

#include "errors.h"
#include "from_c.h"
#include "heddle/block_mask.h"
#include "heddle/error.h"
#include "structs.h"

namespace heddle::capi {
namespace {

/// The array's elements as this library knows them, whichever version's they are.
class SequenceReader {
 public:
  explicit SequenceReader(const heddle_block_mask_options& given)
      : data_(reinterpret_cast<const std::byte*>(given.sequences)), size_(given.sequence_size) {
    // Callers of before version 3 have no sequence_size.
    if (size_ == 0 && given.struct_size <= kFirstSize<heddle_block_mask_options>) size_ = kFirstSequence;
    if (given.sequence_count > 0 && (size_ < kFirstSequence || size_ > kLargestSequence || size_ % kAlignment != 0)) {
      refuse(fmt::format("options.sequence_size is {}; sizeof(heddle_sequence), {} here, is accepted", size_, kKnown));
    }
  }

  heddle_sequence operator[](std::int64_t i) const {
    heddle_sequence known{};
    const std::byte* at = data_ + i * size_;
    std::memcpy(&known, at, static_cast<std::size_t>(std::min(size_, kKnown)));
    const auto is_zero = [](std::byte x) { return x == std::byte{0}; };
    if (size_ > kKnown && !std::all_of(at + kKnown, at + size_, is_zero)) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("options.sequences[{}] sets fields past the {} bytes that this library knows (version {} "
                              "of c.h); they must be zero",
                              i, kKnown, HEDDLE_C_VERSION));
    }
    return known;
  }

 private:
  static constexpr std::int64_t kFirstSequence = 40;      // of versions 1 and 2
  static constexpr std::int64_t kLargestSequence = 4096;  // what no version will reach
  static constexpr std::int64_t kKnown = sizeof(heddle_sequence), kAlignment = alignof(heddle_sequence);

  const std::byte* data_;
  std::int64_t size_;
};

MaskShape to_shape(const heddle_block_mask_options& given) {
  if (given.sequence_count < 0 || given.sequence_count > MaskShape::kMostSequences) {
    refuse(fmt::format("options.sequence_count is {}; 0 to {} are accepted", given.sequence_count,
                       MaskShape::kMostSequences));
  }
  if (given.sequence_count > 0) require(given.sequences, "options.sequences", "array of heddle_sequence");
  MaskShape shape = {.heads = given.heads, .sequences = {}};
  const SequenceReader sequences(given);
  for (std::int64_t i = 0; i < given.sequence_count; ++i) {
    const heddle_sequence sequence = sequences[i];
    shape.sequences.push_back({.q_begin = sequence.q_begin,
                               .q_len = sequence.q_len,
                               .kv_begin = sequence.kv_begin,
                               .kv_len = sequence.kv_len,
                               .q_start = sequence.q_start,
                               .kv_start = sequence.kv_start});
  }
  return shape;
}

// One of the lists, whose memory is read while the call lasts; null: absent.
Tensor to_list(std::string_view name, const heddle_tensor* list) {
  if (list == nullptr) return {};
  return Tensor::adopt(to_view(name, list), nullptr);
}

BlockMask make(const heddle_block_mask_options& given) {
  const MaskShape shape = to_shape(given);
  const auto or_default = [](std::int64_t size) { return size == 0 ? BlockSize{}.q : size; };
  const BlockSize block = {.q = or_default(given.q_block), .kv = or_default(given.kv_block)};
  const DType reals = to_flag("options.f64_inputs", given.f64_inputs) ? DType::f64 : DType::f32;
  const bool clamp_reads = to_flag("options.clamp_reads", given.clamp_reads);
  const Bindings bindings = to_bindings(given.bindings);
  const Expr mask = to_mod("mask_mod", given.mask_mod, bindings);
  const BlockLists lists = {.kv_num_blocks = to_list("kv_num_blocks", given.kv_num_blocks),
                            .kv_indices = to_list("kv_indices", given.kv_indices),
                            .full_kv_num_blocks = to_list("full_kv_num_blocks", given.full_kv_num_blocks),
                            .full_kv_indices = to_list("full_kv_indices", given.full_kv_indices)};
  if (given.kv_num_blocks != nullptr) return BlockMask::from_lists(lists, shape, block, mask);
  for (const auto& [name, list] :
       {std::pair("kv_indices", given.kv_indices), std::pair("full_kv_num_blocks", given.full_kv_num_blocks),
        std::pair("full_kv_indices", given.full_kv_indices)}) {
    if (list != nullptr) refuse(fmt::format("{} is given without kv_num_blocks; all lists or none are accepted", name));
  }
  return BlockMask::build(mask, shape, block, bindings, given.threads, reals, clamp_reads);
}

}  // namespace
}  // namespace heddle::capi

using namespace heddle::capi;

heddle_status heddle_block_mask_create(const heddle_block_mask_options* options, heddle_block_mask** mask) {
  return call([&] {
    require(mask, "mask", "place for a heddle_block_mask*");
    *mask = nullptr;
    require(options, "options", "heddle_block_mask_options");
    *mask = new heddle_block_mask{std::make_shared<const heddle::BlockMask>(make(known_fields("options", options)))};
  });
}

void heddle_block_mask_destroy(heddle_block_mask* mask) { delete mask; }

heddle_status heddle_block_mask_text(const heddle_block_mask* mask, int64_t sequence, int64_t head, const char** text) {
  return call([&] {
    require(mask, "mask", "heddle_block_mask");
    require(text, "text", "place for a text");
    *text = keep_text(mask->mask->text(sequence, head));
  });
}
