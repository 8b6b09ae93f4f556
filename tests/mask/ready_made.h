// The ready-made masks of heddle/mods.h, the tensors that they read, and shapes for them: padded, decoding, packed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "heddle/block_mask.h"
#include "heddle/mods.h"

namespace heddle::test {

inline constexpr std::int32_t kPositions = 320;  // q_idx and kv_idx stay below

/// Every mask by its name, and the tensors that they read.
class ReadyMade {
 public:
  ReadyMade() {
    std::vector<std::int32_t> ids, by_batch, parents;
    std::vector<std::int64_t> offsets{0};
    for (std::int32_t i = 0; i < kPositions; ++i) {
      ids.push_back(i / 37);
      parents.push_back(i < 3 ? -1 : i * 7 % i);
      if (i % 53 == 52) offsets.push_back(i + 1);
    }
    offsets.push_back(kPositions);
    for (std::int32_t i = 0; i < 3 * kPositions; ++i) by_batch.push_back(i / (20 + i / kPositions * 11));
    bind("ids", ids, {kPositions});
    bind("ids_by_batch", by_batch, {3, kPositions});
    bind("before", std::vector<std::int32_t>{3, 70}, {2});
    bind("prefix", std::vector<std::int32_t>{5, 0, 40}, {3});
    bind("q_granules", std::vector<std::int32_t>{3, 0, 9, 1, 8, 2, 5, 7, 4, 6}, {10});
    bind("kv_granules", std::vector<std::int32_t>{0, 4, 1, 8, 2, 9, 3, 5, 7, 6}, {10});
    keep("starts", mods::document_starts({offsets.data(), DType::i64, Dims{std::ssize(offsets)}}));
    const mods::TreeIntervals tree = mods::tree_intervals({parents.data(), DType::i32, Dims{kPositions}});
    keep("enter", tree.enter);
    keep("last", tree.last);

    const auto capture = [](const char* name, int rank = 1) { return Capture(name, DType::i32, rank); };
    masks_ = {{"causal", mods::causal()},
              {"causal_lower_right", mods::causal_lower_right()},
              {"sliding_window", mods::sliding_window(20, 3)},
              {"sliding_window of one", mods::sliding_window(0)},
              {"dilated_window", mods::dilated_window(60, 7)},
              {"prefix_lm", mods::prefix_lm(33)},
              {"prefix_lm by batch", mods::prefix_lm(capture("prefix")(leaf::b()))},
              {"global_and_window", mods::global_and_window(10, 24)},
              {"documents", mods::documents(capture("ids"))},
              {"documents by batch", mods::documents(capture("ids_by_batch", 2))},
              {"documents_from_starts", mods::documents_from_starts(capture("starts"))},
              {"neighbourhood_2d", mods::neighbourhood_2d(16, 2, 3)},
              {"sinks_and_window", mods::sinks_and_window(5, 40)},
              {"causal_chunks", mods::causal_chunks(48)},
              {"windows_by_head", mods::windows_by_head(capture("before"))},
              {"natten_2d", mods::natten_2d(20, 16, 5, 7)},
              {"natten_3d", mods::natten_3d(5, 8, 8, 3, 3, 5)},
              {"sliding_tiles_2d", mods::sliding_tiles_2d(5, 4, 16, 3, 3)},
              {"sliding_tiles_3d", mods::sliding_tiles_3d(5, 2, 2, 16, 3, 1, 1)},
              {"swin_windows", mods::swin_windows(16, 4, 2)},
              {"block_diffusion_training", mods::block_diffusion_training(160, 32)},
              {"tree", mods::tree(capture("enter"), capture("last"))},
              {"block_diffusion", mods::block_diffusion(24)},
              {"causal documents", mods::causal() & mods::documents(capture("ids"))},
              {"not causal", !mods::causal()},
              {"window in granules", mods::by_granules(mods::sliding_window(70, 3), capture("q_granules"),
                                                       capture("kv_granules"), 32, kPositions)},
              {"window or prefix", mods::sliding_window(9) | mods::prefix_lm(4)}};
  }

  const std::map<std::string, Expr>& masks() const { return masks_; }
  const Bindings& bindings() const { return bindings_; }

 private:
  void bind(const char* name, const std::vector<std::int32_t>& values, const Dims& shape) {
    keep(name, copy({values.data(), DType::i32, shape}, DType::i32));
  }
  void keep(const char* name, const Tensor& tensor) {
    tensors_.push_back(tensor);
    bindings_.captures[name] = tensor;
  }

  std::vector<Tensor> tensors_;
  Bindings bindings_;
  std::map<std::string, Expr> masks_;
};

inline MaskShape padded() {
  MaskShape shape = MaskShape::uniform(3, 2, 150, 130);
  shape.sequences[1].kv_len = 97;
  shape.sequences[2].q_len = 1;
  return shape;
}
inline MaskShape decoding() {
  MaskShape shape;
  for (const std::int64_t start : {0, 100, 299})
    shape.sequences.push_back({.q_len = 4, .kv_len = start + 4, .q_start = start});
  return shape;
}
inline MaskShape packed() {
  const std::vector<std::int32_t> q{0, 40, 141, 141}, kv{0, 90, 91, 120};
  return MaskShape::packed(2, {q.data(), DType::i32, Dims{4}}, {kv.data(), DType::i32, Dims{4}});
}

}  // namespace heddle::test
