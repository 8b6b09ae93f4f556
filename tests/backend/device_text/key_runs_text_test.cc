// The generated bounds of a mask's keys, compiled for the host: those of expr/key_bounds.h where no capture is read,
// and never too few keys.
#include "backend/device_text/key_runs_text.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/device_text/bound_values.h"
#include "backend/device_text/host_program.h"
#include "expr/simplify.h"
#include "heddle/mods.h"
#include "mask/descent.h"
#include "mask/random_mask.h"
#include "plan/mods/kv_start.h"

namespace heddle::device_text::test {
namespace {

using expr::KeyBounds;
using expr::Leaf;
using shared::KeyRuns;

using Call = KeyRuns (*)(const shared::ModValues&, const shared::MaskRows&);

/// Masks compiled together. Those that bound no keys are left out.
class GeneratedKeys {
 public:
  bool add(const Expr& mask) {
    const Expr simple = expr::simplify(plan::by_position(mask, {}), expr::Precision::f32);
    auto bounds = std::make_unique<KeyBounds>(simple);
    if (!bounds->bounds()) return false;
    layouts_.push_back(layout_of({simple}));
    const std::string name = fmt::format("mask{}", masks_.size());
    text_ += key_runs_text(name, *bounds, layouts_.back());
    table_ += fmt::format("heddle::{}_keys,\n", name);
    masks_.push_back(simple);
    return true;
  }
  void compile() {
    library_ = load_on_host("#include \"mods/instructions.cuh\"\n" + text_ +
                            "using Call = heddle::shared::KeyRuns (*)(const heddle::shared::ModValues&, const "
                            "heddle::shared::MaskRows&);\nextern \"C\" const Call calls[];\nconst Call calls[] = {" +
                            table_ + "};\n");
    calls_ = static_cast<const Call*>(dlsym(library_.get(), "calls"));
  }
  std::size_t count() const { return masks_.size(); }
  const Expr& mask(std::size_t i) const { return masks_[i]; }
  shared::ModValues values(std::size_t i, const Bindings& bindings) const {
    return bound_values(layouts_[i], bindings);
  }
  KeyRuns call(std::size_t i, const shared::ModValues& values, const shared::MaskRows& rows) const {
    return calls_[i](values, rows);
  }

 private:
  std::vector<Expr> masks_;
  std::vector<ModLayout> layouts_;
  std::string text_, table_;
  std::shared_ptr<void> library_;
  const Call* calls_ = nullptr;
};

constexpr int kHeads = 3;

shared::MaskRows rows_of(const Sequence& sequence, int b) {
  const auto number = [](std::int64_t x) { return static_cast<int>(x); };
  return {.b = b,
          .q_len = number(sequence.q_len),
          .kv_len = number(sequence.kv_len),
          .q_start = number(sequence.q_start),
          .q_token = number(sequence.q_begin - sequence.q_start),
          .kv_token = number(sequence.kv_begin),
          .h = {0, kHeads - 1},
          .q_idx = {sequence.q_start, sequence.q_start + sequence.q_len - 1},
          .kv_idx = {0, sequence.kv_len - 1}};
}

TEST(GeneratedKeys, HoldEveryKeyThatIsLeft) {
  heddle::test::RandomMasks random(12);
  GeneratedKeys keys;
  while (keys.count() < 60) keys.add(random.draw());
  keys.compile();
  int left_out = 0;
  for (std::size_t i = 0; i < keys.count(); ++i) {
    SCOPED_TRACE(print(keys.mask(i)));
    const shared::ModValues values = keys.values(i, random.bindings());
    const Expr bound = expr::bind_params(keys.mask(i), random.bindings());
    const expr::Interpreter interpreter(bound, random.bindings(), expr::Precision::f32);
    for (int round = 0; round < 60; ++round) {
      const MaskShape shape = random.shape();
      const int b = random.below(static_cast<int>(shape.sequences.size()));
      Sequence sequence = shape.sequences[static_cast<std::size_t>(b)];
      sequence.q_len = std::min<std::int64_t>(sequence.q_len, 5);
      sequence.kv_start = 0;
      if (sequence.q_len == 0 || sequence.kv_len == 0) continue;
      const KeyRuns runs = keys.call(i, values, rows_of(sequence, b));
      for (std::int64_t key = 0; key < sequence.kv_len; ++key) {
        const auto in = [&](const shared::KeyRun& run) { return run.begin <= key && key < run.end; };
        if (in(runs.first) || in(runs.second)) continue;
        ++left_out;
        for (std::int64_t row = 0; row < kHeads * sequence.q_len; ++row) {
          const auto number = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
          expr::Element element;
          element[Leaf::b] = b;
          element[Leaf::h] = number(row % kHeads);
          element[Leaf::q_idx] = number(sequence.q_start + row / kHeads);
          element[Leaf::kv_idx] = number(key);
          element[Leaf::q_token] = number(sequence.q_begin + row / kHeads);
          element[Leaf::kv_token] = number(sequence.kv_begin + key);
          element[Leaf::q_len] = number(sequence.q_len);
          element[Leaf::kv_len] = number(sequence.kv_len);
          element[Leaf::q_start] = number(sequence.q_start);
          ASSERT_FALSE(interpreter.boolean(element)) << "key " << key << ", row " << row;
        }
      }
    }
  }
  EXPECT_GT(left_out, 5000);
}

TEST(GeneratedKeys, AreTheHostsWithoutCaptures) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx(), h = leaf::h();
  const Expr last = q - leaf::q_start() + leaf::kv_len() - leaf::q_len();
  GeneratedKeys keys;
  for (const Expr& mask : {mods::causal(),
                           mods::causal_lower_right(),
                           mods::sliding_window(20, 3),
                           mods::dilated_window(60, 7),
                           mods::prefix_lm(33),
                           mods::global_and_window(10, 24),
                           mods::block_diffusion(24),
                           last - kv < 9,
                           (kv < 4) | (last - kv < 40),
                           floor_div(last, 24) == floor_div(kv, 24),
                           (last >> 4) == (kv >> 4),
                           abs(kv - 40) <= 9,
                           max(kv, q) < 70,
                           min(2 * kv - q, 30) < q,
                           !(kv + 5 < q),
                           (q < 20) ^ (kv < q),
                           where(h > 1, kv < 9, last - kv < 9),
                           (to_f32(q) < 9.5) | (kv < 3),
                           kv * 9000000 <= q * 9000001,
                           kv * 50000000 <= q * 50000001,  // these two wrap
                           kv + (q + 2147483600) < 5,
                           kv % 3 + kv < 20,
                           kv - 100000000 * h < 5,
                           abs(kv - 2147483647) >= q,
                           -kv >= -q}) {
    EXPECT_TRUE(keys.add(mask)) << print(mask);
  }
  keys.compile();
  heddle::test::RandomMasks random(13);
  for (std::size_t i = 0; i < keys.count(); ++i) {
    SCOPED_TRACE(print(keys.mask(i)));
    const KeyBounds bounds(keys.mask(i));
    for (int round = 0; round < 300; ++round) {
      const Sequence sequence{
          .q_len = 1 + random.below(5), .kv_len = 1 + random.below(130), .q_start = random.below(99)};
      expr::LeafRanges leaves = mask::MaskRanges::leaves(sequence, 0, 0);
      const auto range = [](std::int64_t lo, std::int64_t hi) {
        return expr::Range{static_cast<double>(lo), static_cast<double>(hi)};
      };
      leaves[Leaf::h] = range(0, kHeads - 1);
      leaves[Leaf::q_idx] = range(sequence.q_start, sequence.q_start + sequence.q_len - 1);
      leaves[Leaf::kv_idx] = range(0, sequence.kv_len - 1);
      ASSERT_EQ(keys.call(i, {}, rows_of(sequence, 0)), bounds(leaves)) << sequence.q_len << ", " << sequence.kv_len;
    }
  }
}

// Begins of documents by sequence and by query are read: those of a few queries one by one.
TEST(GeneratedKeys, ReadTheCapturesOfRows) {
  Tensor begins = Tensor::empty(DType::i32, {2, 80}), lengths = Tensor::empty(DType::i64, {2});
  for (int i = 0; i < 160; ++i) static_cast<std::int32_t*>(begins.data())[i] = 3 * (i % 80) / 4;
  static_cast<std::int64_t*>(lengths.data())[0] = 17;
  static_cast<std::int64_t*>(lengths.data())[1] = 44;
  Bindings bindings;
  bindings.captures = {{"begins", begins.view()}, {"lengths", lengths.view()}};
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  GeneratedKeys keys;
  keys.add((kv >= Capture("begins", DType::i32, 2)(leaf::b(), q)) &
           (kv < Capture("lengths", DType::i64, 1)(leaf::b())));
  keys.add(kv >= Capture("begins", DType::i32, 2).at({leaf::b(), q}, Expr(60)));
  keys.compile();
  const auto called = [&](std::size_t i, const Sequence& sequence, int b) {
    return keys.call(i, keys.values(i, bindings), rows_of(sequence, b));
  };
  EXPECT_EQ(called(0, {.q_len = 1, .kv_len = 80, .q_start = 20}, 1), (KeyRuns{{15, 44}, shared::kNoKeys}));
  EXPECT_EQ(called(0, {.q_len = 8, .kv_len = 80, .q_start = 16}, 0), (KeyRuns{{12, 17}, shared::kNoKeys}));
  EXPECT_EQ(called(0, {.q_len = 32, .kv_len = 80, .q_start = 20}, 1), (KeyRuns{{15, 44}, shared::kNoKeys}));
  EXPECT_EQ(called(0, {.q_len = 33, .kv_len = 80, .q_start = 20}, 1), (KeyRuns{{0, 44}, shared::kNoKeys}));
  EXPECT_EQ(called(1, {.q_len = 2, .kv_len = 80, .q_start = 79}, 1), (KeyRuns{{59, 80}, shared::kNoKeys}));
  EXPECT_EQ(called(1, {.q_len = 2, .kv_len = 80, .q_start = 80}, 1), (KeyRuns{{60, 80}, shared::kNoKeys}));
}

}  // namespace
}  // namespace heddle::device_text::test
