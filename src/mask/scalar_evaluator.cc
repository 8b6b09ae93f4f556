#include <algorithm>
#include <memory>

#include "mask/build.h"

namespace heddle::mask {
namespace {

constexpr std::int64_t kStrip = 128;  // columns: a mixed block usually shows itself within a few rows of one strip

}  // namespace

EvaluateRectangle scalar_evaluator(const Expr& mask, const MaskShape& shape, const Bindings& bindings,
                                   expr::Precision precision) {
  const auto interpreter = std::make_shared<const expr::Interpreter>(mask, bindings, precision);
  return [interpreter, &shape](const Rectangle& rectangle) {
    const Sequence& sequence = shape.sequences[static_cast<std::size_t>(rectangle.sequence)];
    const auto leaf = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
    expr::Element element;
    element[expr::Leaf::b] = leaf(rectangle.sequence);
    element[expr::Leaf::h] = leaf(rectangle.head);
    element[expr::Leaf::q_len] = leaf(sequence.q_len);
    element[expr::Leaf::kv_len] = leaf(sequence.kv_len);
    element[expr::Leaf::q_start] = leaf(sequence.q_start);
    element[expr::Leaf::kv_start] = leaf(sequence.kv_start);

    bool some_true = false, some_false = false;
    for (std::int64_t strip = rectangle.kv_begin; strip < rectangle.kv_end; strip += kStrip) {
      const std::int64_t strip_end = std::min(rectangle.kv_end, strip + kStrip);
      for (std::int64_t q = rectangle.q_begin; q < rectangle.q_end; ++q) {
        element[expr::Leaf::q_idx] = leaf(sequence.q_start + q);
        element[expr::Leaf::q_token] = leaf(sequence.q_begin + q);
        for (std::int64_t kv = strip; kv < strip_end; ++kv) {
          element[expr::Leaf::kv_idx] = leaf(sequence.kv_start + kv);
          element[expr::Leaf::kv_token] = leaf(sequence.kv_begin + kv);
          (interpreter->boolean(element) ? some_true : some_false) = true;
          if (some_true && some_false) return Content::mixed;
        }
      }
    }
    return some_true ? Content::full : Content::empty;
  };
}

}  // namespace heddle::mask
