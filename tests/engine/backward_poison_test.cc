// NaN and infinity in elements that take no part change no bit of a gradient. (Memory around every view is poisoned in
// all cases of the backward's grid.)
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/backward_case.h"
#include "engine/poison.h"
#include "heddle/mods.h"

namespace heddle::test {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

const Chooses kAll = [](auto...) { return true; };

// Rows of gradients that a poison may reach: [b, head, row] of dq, dk and dv; [0, head, position] of the captures
// "of_query" and "of_key"; [0, head, 0] of the sinks.
struct Reach {
  Chooses dq = kNone, dk = kNone, dv = kNone, of_query = kNone, of_key = kNone, sinks = kNone;
};

// Values of the gradients in rows that `reach` does not choose.
using Unreached = std::map<std::string, std::vector<double>>;
Unreached unreached(const BackwardCase& c, const Reach& reach) {
  const std::map<std::string, const Chooses*> chosen = {{"dq", &reach.dq},
                                                        {"dk", &reach.dk},
                                                        {"dv", &reach.dv},
                                                        {"d_captures['of_query']", &reach.of_query},
                                                        {"d_captures['of_key']", &reach.of_key},
                                                        {"d_sinks", &reach.sinks}};
  Unreached values;
  for (const Gradient& gradient : c.gradients()) {
    const ConstTensorView view = gradient.view;
    const Tensor all = copy(view, DType::f64);
    const auto* x = static_cast<const double*>(all.data());
    const int rank = view.rank();
    const std::int64_t batch = rank == 4 ? view.shape[0] : 1, heads = view.shape[rank == 4 ? 1 : 0],
                       rows = rank == 1 ? 1 : view.shape[rank - (rank == 4 ? 2 : 1)],
                       columns = rank == 4 ? view.shape[3] : 1;
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t row = 0; row < rows; ++row, x += columns) {
          if (!(*chosen.at(gradient.name))(b, h, row)) {
            values[gradient.name].insert(values[gradient.name].end(), x, x + columns);
          }
        }
      }
    }
  }
  return values;
}

// "" or where they differ first.
std::string difference(const Unreached& clean, const Unreached& poisoned) {
  for (const auto& [name, values] : clean) {
    const std::vector<double>& others = poisoned.at(name);
    const auto [own, other] = std::ranges::mismatch(values, others);
    if (own == values.end() && other == others.end()) continue;
    return fmt::format("{}: number {} of {} was {} and is {}", name, own - values.begin(), values.size(), *own, *other);
  }
  return "";
}

bool holds_no_nan(const Unreached& values) {
  return std::ranges::all_of(
      values, [](const auto& named) { return std::ranges::none_of(named.second, [](double x) { return x != x; }); });
}

void expect_zero_rows(const BackwardCase& c, const std::string& name, const Chooses& rows) {
  const TensorView& view = c.gradient(name).view;
  for (std::int64_t b = 0; b < view.shape[0]; ++b) {
    for (std::int64_t h = 0; h < view.shape[1]; ++h) {
      for (std::int64_t i = 0; i < view.shape[2]; ++i) {
        if (!rows(b, h, i)) continue;
        for (std::int64_t d = 0; d < view.shape[3]; ++d) EXPECT_EQ(get_element(view, {b, h, i, d}), 0) << name;
      }
    }
  }
}

void poison_d_lse(const BackwardCase& c, const std::function<bool(std::int64_t h, std::int64_t i)>& chosen) {
  const GuardedTensor& d_lse = c.d_lse_rows;
  d_lse.for_each_element([&](const Dims& at, std::int64_t offset) {
    if (chosen(at[1], at[3])) base::store_element(d_lse.view().data, d_lse.view().dtype, offset, kNaN);
  });
}

// score + of_query[h, q_idx] + of_key[h, kv_idx]
Expr with_captures(AttentionCase& c) {
  const auto make = [&](const char* name) {
    const Tensor tensor = Tensor::empty(DType::f32, {c.spec().q_heads(), std::max<std::int64_t>(1, c.positions())});
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = normal(c.rng());
    c.capture(name, tensor);
    return Capture(name, DType::f32, 2);
  };
  const Capture of_query = make("of_query"), of_key = make("of_key");
  return leaf::score() + of_query(leaf::h(), leaf::q_idx()) + of_key(leaf::h(), leaf::kv_idx());
}

// Small and odd sizes in every type; the reference, to which types are all the same, takes two. One thread, because the
// reference's sums have an order only then.
std::vector<CaseSpec> backward_specs(BackendChoice backend) {
  std::vector<DType> dtypes = {DType::f64, DType::bf16};
  if (backend != BackendChoice::reference) {
    dtypes.insert(dtypes.end(), {DType::f32, DType::f16, DType::e4m3, DType::e5m2});
  }
  std::vector<CaseSpec> specs;
  for (const DType dtype : dtypes) {
    for (const auto& [rows, keys] : {std::pair(3, 150), std::pair(66, 65), std::pair(130, 40)}) {
      CaseSpec spec;
      spec.seed = 1000 + static_cast<std::uint64_t>(rows);
      spec.batch = 2;
      spec.group = 2;
      spec.q_rows = rows;
      spec.kv_rows = keys;
      spec.qk_dim = 12;
      spec.v_dim = 9;
      spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
      spec.threads = 1;
      specs.push_back(spec);
    }
  }
  return specs;
}

class BackwardPoison : public testing::TestWithParam<BackendChoice> {
 protected:
  using Prepares = std::function<void(AttentionCase&)>;
  using Poisons = std::function<void(AttentionCase&, BackwardCase&)>;

  // Gradients that `reach` does not choose are the same, and free of NaN, after `poison` as before. `also`: further
  // checks of the second result.
  void expect_unreached(
      const CaseSpec& spec, const Prepares& prepare, const Poisons& poison, const Reach& reach,
      const std::function<void(const BackwardCase&)>& also = [](const BackwardCase&) {}) const {
    AttentionCase attention_case(spec);
    attention_case.options().score_mod = with_captures(attention_case);
    prepare(attention_case);
    BackwardCase backward_case(attention_case, {});
    SCOPED_TRACE(backward_case.text());
    backward_case.run_forward();
    backward_case.run(GetParam());
    const Unreached clean = unreached(backward_case, reach);
    EXPECT_TRUE(holds_no_nan(clean));
    poison(attention_case, backward_case);
    backward_case.run_forward();
    backward_case.run(GetParam());
    EXPECT_EQ(difference(clean, unreached(backward_case, reach)), "");
    also(backward_case);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, BackwardPoison, testing::ValuesIn(backward_backends()),
                         [](const auto& at) { return std::string(name(at.param)); });

TEST_P(BackwardPoison, KeysAndValuesThatNothingAttends) {
  const Chooses unattended = [](auto, auto, std::int64_t j) { return j % 5 == 2 || (j >= 20 && j < 34); };
  const Expr attends = (leaf::kv_idx() % 5 != 2) & ((leaf::kv_idx() < 20) | (leaf::kv_idx() >= 34));
  for (const CaseSpec& spec : backward_specs(GetParam())) {
    for (const bool by_score : {false, true}) {
      for (const auto tensor : {&AttentionCase::k, &AttentionCase::v}) {
        expect_unreached(
            spec,
            [&](AttentionCase& c) {
              AttentionOptions& options = c.options();
              if (by_score) options.score_mod = where(attends, options.score_mod, -kInfinite);
              if (!by_score) options.mask_mod = attends;
            },
            [&](AttentionCase& c, BackwardCase&) { poison_rows(c.*tensor, unattended); }, {},
            [&](const BackwardCase& c) {
              expect_zero_rows(c, "dk", unattended);
              expect_zero_rows(c, "dv", unattended);
            });
      }
    }
  }
}

// Rows are known to be finite by panels of 64: one is not, in the second panel of its tile.
TEST_P(BackwardPoison, OneRowBehindAFinitePanel) {
  const Chooses one = [](auto, auto, std::int64_t row) { return row == 100; };
  for (CaseSpec spec : backward_specs(GetParam())) {
    if (spec.kv_rows != 150) continue;
    spec.q_rows = 130;
    expect_unreached(
        spec, [](AttentionCase& c) { c.options().mask_mod = leaf::kv_idx() != 100; },
        [&](AttentionCase& c, BackwardCase&) { poison_rows(c.k, one), poison_rows(c.v, one); }, {});
    expect_unreached(
        spec, [](AttentionCase& c) { c.options().mask_mod = leaf::q_idx() != 100; },
        [&](AttentionCase& c, BackwardCase& backward) { poison_rows(c.q, one), poison_rows(backward.d_o, one); }, {});
  }
}

// Without a sink even their d_lse counts nowhere.
TEST_P(BackwardPoison, QueriesThatAttendNothing) {
  const Chooses blind = [](auto, auto, std::int64_t i) { return i % 3 == 1; };
  for (CaseSpec spec : backward_specs(GetParam())) {
    for (const char* sinks : {"none", "normal"}) {
      spec.sinks = sinks;
      expect_unreached(
          spec, [](AttentionCase& c) { c.options().mask_mod = leaf::q_idx() % 3 != 1; },
          [&](AttentionCase& c, BackwardCase& backward) {
            poison_rows(c.q, blind);
            poison_rows(backward.d_o, blind, spec.q_rows > 100 ? kInfinite : kNaN);
            if (spec.sinks != "none") return;
            poison_d_lse(backward, [](auto, std::int64_t i) { return i % 3 == 1; });
          },
          {}, [&](const BackwardCase& c) { expect_zero_rows(c, "dq", blind); });
    }
  }
}

// Mods are not asked about masked elements: neither what they would give there counts, nor its derivatives.
TEST_P(BackwardPoison, ScoresAndWeightsOfMaskedElements) {
  const Expr masked = leaf::kv_idx() > leaf::q_idx() + 3;
  for (const double poison : {kNaN, kInfinite}) {
    for (CaseSpec spec : backward_specs(GetParam())) {
      for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::none, Normalizer::sigmoid}) {
        spec.normalizer = normalizer;
        expect_unreached(
            spec,
            [&](AttentionCase& c) {  // with numbers there, since mods may change the order of sums
              c.options().mask_mod = !masked;
              c.options().weight_mod = where(masked, 2.0, 1.0);
            },
            [&](AttentionCase& c, BackwardCase&) {
              AttentionOptions& options = c.options();
              options.score_mod = where(masked, poison * options.score_mod, options.score_mod);
              options.weight_mod = where(masked, Expr(poison), Expr(1.0));
            },
            {});
      }
    }
  }
}

// dO and d_lse of a row reach its dq and the keys that it attends; d_lse no dv.
TEST_P(BackwardPoison, RowsOfDOAndDLseReachOnlyTheirOwn) {
  const auto poisoned = [](std::int64_t h, std::int64_t i) { return h == 1 && i % 11 == 4; };
  for (const CaseSpec& spec : backward_specs(GetParam())) {
    std::int64_t last = -1;
    for (std::int64_t i = 0; i < spec.q_rows; ++i) last = poisoned(1, i) ? i : last;
    Reach reach;
    reach.dq = reach.of_query = [&](auto, std::int64_t h, std::int64_t i) { return poisoned(h, i); };
    reach.dk = [&](auto, std::int64_t h, std::int64_t j) { return h == 0 && j <= last; };
    reach.of_key = [&](auto, std::int64_t h, std::int64_t j) { return h == 1 && j <= last; };
    const auto causal = [](AttentionCase& c) { c.options().mask_mod = mods::causal(); };
    expect_unreached(
        spec, causal, [&](AttentionCase&, BackwardCase& backward) { poison_d_lse(backward, poisoned); }, reach);
    reach.dv = reach.dk;
    expect_unreached(
        spec, causal,
        [&](AttentionCase&, BackwardCase& backward) {
          poison_rows(backward.d_o, [&](auto, std::int64_t h, std::int64_t i) { return poisoned(h, i); });
        },
        reach);
  }
}

// Queries, keys and values reach what their document has, and there what the reference says.
TEST_P(BackwardPoison, DocumentsReachOnlyThemselves) {
  const Chooses poisoned = [](auto, auto, std::int64_t row) { return row / 5 % 4 == 2 && row % 5 == 3; };
  const Chooses document = [](auto, auto, std::int64_t row) { return row / 5 % 4 == 2; };
  const Reach reach = {document, document, document, document, document, kAll};
  for (const CaseSpec& spec : backward_specs(GetParam())) {
    for (const auto tensor : {&AttentionCase::q, &AttentionCase::k, &AttentionCase::v}) {
      for (const double poison : {kNaN, kInfinite}) {
        expect_unreached(
            spec,
            [](AttentionCase& c) {
              c.options().mask_mod = floor_div(leaf::q_idx(), 5) == floor_div(leaf::kv_idx(), 5);
            },
            [&](AttentionCase& c, BackwardCase&) { poison_rows(c.*tensor, poisoned, poison); }, reach,
            [](const BackwardCase& c) { c.judge(); });
      }
    }
  }
}

// Row i does not attend key j where i + j is a multiple of 3, whatever keeps it from that.
TEST_P(BackwardPoison, WhateverKeepsAnElementAway) {
  const Expr attends = (leaf::q_idx() + leaf::kv_idx()) % 3 != 0;
  const Chooses third = [](auto, auto, std::int64_t row) { return row % 3 == 0; };
  const Chooses others = [](auto, auto, std::int64_t row) { return row % 3 != 0; };
  for (const CaseSpec& spec : backward_specs(GetParam())) {
    for (const std::string how : {"mask", "score", "blocks"}) {
      const auto keep_away = [&](AttentionCase& c) {
        AttentionOptions& options = c.options();
        if (how == "mask") options.mask_mod = attends;
        if (how == "score") options.score_mod = where(attends, options.score_mod, -kInfinite);
        if (how != "blocks") return;
        const MaskShape shape = MaskShape::uniform(spec.batch, spec.q_heads(), spec.q_rows, spec.kv_rows);
        const BlockMask rows = BlockMask::build(attends, shape, {1, 1}, {}, 1);
        options.block_mask = std::make_shared<BlockMask>(BlockMask::from_lists(rows.to_lists(), shape, {1, 1}));
      };
      SCOPED_TRACE(how);
      for (const auto tensor : {&AttentionCase::k, &AttentionCase::v}) {
        expect_unreached(spec, keep_away, [&](AttentionCase& c, BackwardCase&) { poison_rows(c.*tensor, third); },
                         {others, kAll, kAll, others, kAll, kAll});
      }
      expect_unreached(spec, keep_away,
                       [&](AttentionCase&, BackwardCase& backward) { poison_rows(backward.d_o, third); },
                       {third, others, others, third, others, kAll});
    }
  }
}

TEST_P(BackwardPoison, BatchEntriesAndHeadsReachOnlyThemselves) {
  const auto poison_all = [](AttentionCase& c, BackwardCase& backward, const Chooses& queries, const Chooses& keys) {
    for (const GuardedTensor* tensor : {&c.q, &backward.d_o}) poison_rows(*tensor, queries);
    for (const GuardedTensor* tensor : {&c.k, &c.v}) poison_rows(*tensor, keys);
  };
  const auto as_it_is = [](AttentionCase&) {};
  for (CaseSpec spec : backward_specs(GetParam())) {
    const Chooses entry = [](std::int64_t b, auto...) { return b == 1; };
    expect_unreached(spec, as_it_is,
                     [&](AttentionCase& c, BackwardCase& backward) { poison_all(c, backward, entry, entry); },
                     {entry, entry, entry, kAll, kAll, kAll});
    spec.kv_heads = 2;
    const Chooses head = [](auto, std::int64_t h, auto) { return h == 0; };
    const Chooses group = [](auto, std::int64_t h, auto) { return h < 2; };
    expect_unreached(spec, as_it_is,
                     [&](AttentionCase& c, BackwardCase& backward) { poison_all(c, backward, group, head); },
                     {group, head, head, group, group, group});
  }
}

TEST_P(BackwardPoison, SequencesOfAPackedBatchReachOnlyThemselves) {
  for (CaseSpec spec : backward_specs(GetParam())) {
    spec.sequences = "packed";
    AttentionCase drawn(spec);
    const auto q_ends = static_cast<const std::int32_t*>(drawn.options().cu_seqlens_q->data);
    const auto kv_ends = static_cast<const std::int64_t*>(drawn.options().cu_seqlens_kv->data);
    const std::int64_t last = drawn.sequences() - 1;
    const Chooses q_rows = [&](auto, auto, std::int64_t i) { return i >= q_ends[last]; };
    const Chooses kv_rows = [&](auto, auto, std::int64_t j) { return j >= kv_ends[last]; };
    expect_unreached(
        spec, [](AttentionCase&) {},
        [&](AttentionCase& c, BackwardCase& backward) {
          for (const GuardedTensor* tensor : {&c.q, &backward.d_o}) poison_rows(*tensor, q_rows);
          for (const GuardedTensor* tensor : {&c.k, &c.v}) poison_rows(*tensor, kv_rows);
        },
        {q_rows, kv_rows, kv_rows, kAll, kAll, kAll});
  }
}

// Rows past a sequence's end are NaN in the case already; here every other content of them gives the same bits.
TEST_P(BackwardPoison, PaddingPastTheLengths) {
  for (CaseSpec spec : backward_specs(GetParam())) {
    spec.sequences = "lengths";
    const auto clear = [](const GuardedTensor& tensor, const auto* lengths, int row_axis) {
      tensor.for_each_element([&](const Dims& at, std::int64_t offset) {
        if (at[row_axis] >= lengths[at[0]]) {
          base::store_element(tensor.view().data, tensor.view().dtype, offset, 1);
        }
      });
    };
    AttentionCase drawn(spec);
    const auto q_lengths = static_cast<const std::int32_t*>(drawn.options().q_lengths->data);
    const auto kv_lengths = static_cast<const std::int64_t*>(drawn.options().kv_lengths->data);
    expect_unreached(
        spec, [](AttentionCase&) {},
        [&](AttentionCase& c, BackwardCase& backward) {
          clear(c.q, q_lengths, 2);
          clear(backward.d_o, q_lengths, 2);
          clear(backward.d_lse_rows, q_lengths, 3);
          clear(c.k, kv_lengths, 2);
          clear(c.v, kv_lengths, 2);
        },
        {},
        [&](const BackwardCase& c) {
          expect_zero_rows(c, "dq", [&](std::int64_t b, auto, std::int64_t i) { return i >= q_lengths[b]; });
          expect_zero_rows(c, "dk", [&](std::int64_t b, auto, std::int64_t j) { return j >= kv_lengths[b]; });
          expect_zero_rows(c, "dv", [&](std::int64_t b, auto, std::int64_t j) { return j >= kv_lengths[b]; });
        });
  }
}

// Captures and their gradients end at a page that nothing may touch; lanes outside the problem stay inside all the
// same.
TEST_P(BackwardPoison, CapturesAreTouchedInside) {
  for (const CaseSpec& given : backward_specs(GetParam())) {
    CaseSpec spec = given;
    spec.q_start = "ahead";
    AttentionCase c(spec);
    const auto fill = [](const GuardedTensor& tensor) {
      tensor.for_each_element([&](const Dims& at, std::int64_t offset) {
        base::store_element(tensor.view().data, tensor.view().dtype, offset, static_cast<double>((at[3] / 7) % 5));
      });
    };
    const GuardedTensor ids(DType::i64, {1, 1, 1, c.positions()}, Layout::bhsd),
        by_key(DType::f16, {1, 1, 1, spec.kv_rows}, Layout::bhsd),
        bias(DType::bf16, {spec.batch, spec.q_heads(), spec.q_rows, spec.kv_rows}, Layout::bhsd);
    for (const GuardedTensor* tensor : {&ids, &by_key, &bias}) fill(*tensor);
    const auto vector_of = [](const GuardedTensor& tensor) {
      const TensorView view = tensor.view();
      return TensorView(view.data, view.dtype, Dims{view.shape[3]});
    };
    c.options().bindings.captures = {{"ids", vector_of(ids)}, {"by_key", vector_of(by_key)}, {"bias", bias.view()}};
    c.options().mask_mod = mods::documents(Capture("ids", DType::i64, 1));
    c.options().score_mod = leaf::score() + Capture("by_key", DType::f16, 1)(leaf::kv_idx()) +
                            Capture("bias", DType::bf16, 4)(leaf::b(), leaf::h(), leaf::q_token(), leaf::kv_idx());
    BackwardCase backward_case(c, {});
    run_and_judge(backward_case, GetParam());
  }
}

}  // namespace
}  // namespace heddle::test
