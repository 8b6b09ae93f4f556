// The ready-made masks equal the dense definition over padded, decoding and packed shapes, and intervals decide all
// but a few of their blocks.
#include "heddle/mods.h"

#include <gtest/gtest.h>

#include "heddle/block_mask.h"
#include "kept_cases.h"
#include "mask/dense.h"
#include "mask/ready_made.h"

namespace heddle::test {
namespace {

TEST(ReadyMadeMasks, EqualTheDenseDefinition) {
  const ReadyMade ready;
  std::uint64_t number = 0;
  for (const auto& [name, mask] : ready.masks()) {
    const expr::Interpreter interpreter(mask, ready.bindings(), expr::Precision::f32);
    for (const MaskShape& shape : {padded(), decoding(), packed()}) {
      for (const BlockSize block : {BlockSize{16, 16}, {5, 7}, {128, 64}}) {
        if (!is_kept(number++, 5)) continue;
        SCOPED_TRACE(testing::Message() << name << ", blocks " << block.q << " x " << block.kv);
        const BlockMask built = BlockMask::build(mask, shape, block, ready.bindings(), 1);
        for (std::int64_t b = 0; b < std::ssize(shape.sequences); ++b) {
          for (std::int64_t h = 0; h < shape.heads; ++h) {
            EXPECT_EQ(run_classes(built, b, h), dense_classes(interpreter, shape, block, b, h));
          }
        }
      }
    }
  }
}

TEST(ReadyMadeMasks, AreDecidedByIntervals) {
  const ReadyMade ready;
  for (const auto& [name, mask] : ready.masks()) {
    const BlockMask built = BlockMask::build(mask, MaskShape::uniform(1, 1, 320, 320), {32, 32}, ready.bindings(), 1);
    // At most so many of 100 blocks. Corners miss a stride, a tree's order is nobody's, a block has parts of two images
    // of a film, and the global corner and the sinks are smaller than a block.
    const bool is_hard = name == "dilated_window" || name == "tree" || name == "natten_3d";
    const std::int64_t most = is_hard ? 24 : name == "global_and_window" || name == "sinks_and_window" ? 1 : 0;
    EXPECT_LE(built.statistics().evaluated_tiles, most) << name;
  }
}

}  // namespace
}  // namespace heddle::test
