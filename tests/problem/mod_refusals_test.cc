// Every refusal of src/problem that mods, the values of their names, and block masks meet.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "heddle/mods.h"
#include "problem/refused.h"

namespace heddle::test {
namespace {

using testing::HasSubstr;

TEST(Refusals, ModsOfTheWrongType) {
  refused([](Call& c) { c.options.mask_mod = leaf::q_idx() - leaf::kv_idx(); }, HasSubstr("must be bool"));
  refused([](Call& c) { c.options.score_mod = leaf::q_idx() > leaf::kv_idx(); }, HasSubstr("must be f32 or i32"));
  refused([](Call& c) { c.options.weight_mod = leaf::q_idx() > leaf::kv_idx(); }, HasSubstr("must be f32 or i32"));
  refused([](Call& c) { c.options.mask_mod = leaf::score() > 0.0; }, HasSubstr("cannot read the score"));
  refused([](Call& c) { c.options.weight_mod = leaf::score() * 2.0; }, HasSubstr("cannot read the score"));
}

TEST(Refusals, ValuesOfNamesThatNoModCanRead) {
  for (const char* name : {"score", "q_idx", "True", "and", "clip"}) {
    const std::string meaning = std::string("cannot be named '") + name + "': the name has a meaning of its own";
    refused([&](Call& c) { c.options.bindings.params[name] = 1; }, "a param " + meaning);
    refused([&](Call& c) { c.capture(name, f32s({1})); }, "a capture " + meaning);
  }
  for (const char* name : {"", "a b", "2x"}) {
    const std::string rule = std::string("name is letters, digits and _, not starting with a digit; '") + name;
    refused([&](Call& c) { c.options.bindings.params[name] = 1; }, "a param's " + rule + "' is not");
    refused([&](Call& c) { c.capture(name, f32s({1})); }, "a capture's " + rule + "' is not");
  }
}

TEST(Refusals, NamesWithoutValues) {
  const Capture slopes("slopes", DType::f32, 1);
  refused([&](Call& c) { c.options.score_mod = mods::alibi(slopes); }, "capture 'slopes' was given no tensor");
  refused([&](Call& c) { c.options.mask_mod = leaf::kv_idx() < param("limit", ExprType::i32); },
          "param 'limit' was given no value");
  refused(
      [&](Call& c) {
        c.options.mask_mod = leaf::kv_idx() < param("limit", ExprType::i32);
        c.options.bindings.params["limit"] = 2.5;
      },
      "param 'limit' must be i32, but was given f32");
  refused(
      [&](Call& c) {
        c.options.score_mod = mods::alibi(slopes);
        c.capture("slopes", Tensor::zeros(DType::bf16, {4}));
      },
      "capture 'slopes' must be f32 of rank 1, but was given bf16 of rank 1");
  refused(
      [&](Call& c) {
        c.options.score_mod = mods::alibi(slopes);
        c.capture("slopes", Tensor::zeros(DType::f32, {4, 1}));
      },
      "capture 'slopes' must be f32 of rank 1, but was given f32 of rank 2");
}

TEST(Refusals, CaptureReadsOutside) {
  const auto outside = [](std::string_view read) {
    return testing::AllOf(HasSubstr(std::string(read)), HasSubstr("outside the tensor's extent"));
  };
  refused(
      [](Call& c) {
        c.options.score_mod = mods::alibi(Capture("slopes", DType::f32, 1));
        c.capture("slopes", f32s({1, 2, 3}));
      },
      outside("slopes[h]"));
  refused(
      [](Call& c) {
        c.options.mask_mod = Capture("keep", DType::boolean, 2)(leaf::b(), leaf::kv_idx());
        c.capture("keep", Tensor::zeros(DType::boolean, {2, 7}));
      },
      outside("keep[b, kv_idx]"));
  refused(
      [](Call& c) {  // the table's own values are the indices
        const Capture table("table", DType::i64, 1), weights("weights", DType::f32, 1);
        c.options.weight_mod = weights(table(leaf::kv_idx()));
        c.capture("table", i64s({0, 1, 2, 3, 3, 2, 1, 4}));
        c.capture("weights", f32s({1, 1, 1, 1}));
      },
      outside("weights[table[kv_idx]]"));
  refused(
      [](Call& c) {  // q_start moves q_idx out
        c.options.mask_mod = Capture("rows", DType::boolean, 1)(leaf::q_idx());
        c.capture("rows", Tensor::zeros(DType::boolean, {6}));
        c.options.q_start = c.keep(i32s({0, 1}));
      },
      outside("rows[q_idx]"));
  refused(
      [](Call& c) {
        c.options.weight_mod = Capture("rows", DType::f32, 1)(leaf::q_idx() + param("shift", ExprType::i32));
        c.capture("rows", f32s({1, 1, 1, 1, 1, 1}));
        c.options.bindings.params["shift"] = 1;
      },
      HasSubstr("outside the tensor's extent of 6"));
}

TEST(Refusals, BlockMasks) {
  const MaskShape shape = MaskShape::uniform(2, 4, 6, 8);
  const auto give = [](Call& c, const Expr& mask, const MaskShape& of) {
    c.options.block_mask = std::make_shared<BlockMask>(BlockMask::build(mask, of, {4, 4}));
  };
  refused([&](Call& c) { give(c, mods::causal(), MaskShape::uniform(2, 3, 6, 8)); },
          "block_mask covers 3 heads; q's 4 are accepted, or 1 where the mask does not read h");
  refused([&](Call& c) { give(c, leaf::kv_idx() >= leaf::h(), MaskShape::uniform(2, 1, 6, 8)); },
          "block_mask covers 1 head, and its mask reads h; q's 4 are accepted, or 1 where the mask does not read h");
  refused([&](Call& c) { give(c, mods::causal(), MaskShape::uniform(3, 4, 6, 8)); },
          "block_mask covers 3 sequences; the batch's 2 are accepted");
  refused([](Call& c) { c.options.block_mask = std::make_shared<BlockMask>(); },
          "block_mask covers 0 sequences; the batch's 2 are accepted");
  refused(
      [&](Call& c) { give(c, mods::causal(), MaskShape::uniform(2, 4, 6, 7)); },
      "block_mask was made for sequence 0 with q_begin 0, q_len 6, kv_begin 0, kv_len 7, q_start 0, kv_start 0; this "
      "attention's 0, 6, 0, 8, 0, 0 are accepted");
  refused(
      [&](Call& c) {
        give(c, mods::causal(), shape);
        c.options.mask_mod = leaf::kv_idx() < leaf::q_idx();
      },
      HasSubstr("but mask_mod is kv_idx < q_idx; the same mask is accepted, or no mask_mod"));
  refused(
      [&](Call& c) {
        c.options.block_mask =
            std::make_shared<BlockMask>(BlockMask::build(mods::causal(), shape, {4, 4}).transposed());
      },
      "block_mask is a transposed one; the rows of queries are accepted");
  refused([&](Call& c) { give(c, to_f32(leaf::kv_idx()) * 0.1 < 0.5, shape); },
          "block_mask was made with f32 reals; f64 is accepted for f64 inputs", Call(DType::f64));
}

}  // namespace
}  // namespace heddle::test
