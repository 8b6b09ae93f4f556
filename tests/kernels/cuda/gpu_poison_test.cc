// Scores far apart, NaN, infinities and poison on the cuda backend. (Memory around every view is poisoned in all cases
// of its grid.)
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "engine/poison.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "heddle/mods.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class GpuPoison : public GpuTest {};

// Two tiles and a few steps of each kernel of the family, with one type; of the first of a head dimension with either.
std::vector<CaseSpec> specs_of_kernels() {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 0;
  plan::HeadDims dims = {0, 0};
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    const bool first = !(std::exchange(dims, plan::dims_of(kernel)) == dims_of(kernel));
    for (const DType dtype : {DType::bf16, DType::f16}) {
      if (!first && (dtype == DType::f16) != (kernel.kv_block == 64)) continue;
      CaseSpec spec;
      spec.seed = ++seed;
      spec.threads = 1;
      spec.batch = 2;
      spec.group = 2;
      spec.qk_dim = kernel.qk_dim;
      spec.v_dim = kernel.v_dim;
      spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
      spec.q_rows = kernel.config().rows() + 5;
      spec.kv_rows = 3 * kernel.kv_block + 7;
      spec.layout = seed % 2 == 0 ? Layout::bhsd : Layout::bshd;
      spec.rows = "given";
      spec.tile = {kernel.config().rows(), kernel.kv_block};
      spec.block = {shared::kWarpgroupRows, kernel.kv_block};
      specs.push_back(spec);
    }
  }
  if (reduced()) specs = {specs[1], specs[5], specs.back()};
  return specs;
}

void store(const GuardedTensor& tensor, const Dims& at, double x) {
  const Dims& strides = tensor.view().strides;
  std::int64_t offset = 0;
  for (int axis = 0; axis < 4; ++axis) offset += at[axis] * strides[axis];
  base::store_element(tensor.view().data, tensor.view().dtype, offset, x);
}

// A case with another mask than the named ones, and the rows that such a mask has in the kernel's blocks.
std::unique_ptr<GpuCase> case_with_mask(const CaseSpec& spec, const Expr& mask) {
  auto c = std::make_unique<GpuCase>(spec);
  c->options().mask_mod = mask;
  const MaskShape shape = MaskShape::uniform(spec.batch, spec.q_heads(), spec.q_rows, spec.kv_rows);
  c->options().block_mask = std::make_shared<BlockMask>(BlockMask::build(mask, shape, *spec.block, {}, 1));
  return c;
}

// `poison` changes no bit of the outputs, and none of them is NaN.
void expect_unreached(const CaseSpec& spec, const Expr& mask, const std::function<void(AttentionCase&)>& poison) {
  const auto c = case_with_mask(spec, mask);
  c->run();
  const auto clean = rows_of(c->host(), kNone);
  for (const auto& row : clean) {
    for (double x : row) ASSERT_EQ(x, x);
  }
  poison(c->host());
  c->run();
  EXPECT_EQ(rows_of(c->host(), kNone), clean);
}

// Inputs that `change` spoils give what the reference gives for them.
void expect_as_the_reference(const CaseSpec& spec, const Expr& mask,
                             const std::function<void(AttentionCase&)>& change) {
  const auto c = case_with_mask(spec, mask);
  change(c->host());
  c->run_and_judge();
}

TEST_F(GpuPoison, KeysThatNothingAttends) {
  const Chooses unattended = [](auto, auto, std::int64_t j) { return j % 5 == 2 || (j >= 30 && j < 64); };
  const Expr mask = (leaf::kv_idx() % 5 != 2) & ((leaf::kv_idx() < 30) | (leaf::kv_idx() >= 64));
  for_each_spec(specs_of_kernels(), [&](const CaseSpec& spec) {
    expect_unreached(spec, mask, [&](AttentionCase& c) { poison_rows(c.k, unattended); });
  });
}

TEST_F(GpuPoison, KeysAndValuesOfBlocksThatNothingAttends) {
  const Chooses inside = [](auto, auto, std::int64_t j) { return j >= 50 + 128 && j < 500 - 128; };
  const Expr mask = (leaf::kv_idx() < 50) | (leaf::kv_idx() >= 500);
  for_each_spec(specs_of_kernels(), [&](CaseSpec spec) {
    spec.kv_rows = 530;
    spec.batch = 1;
    expect_unreached(spec, mask, [&](AttentionCase& c) {
      poison_rows(c.k, inside);
      poison_rows(c.v, inside);
    });
  });
}

// Keys past the end, and those that the mask excludes, have a weight_mod of NaN.
TEST_F(GpuPoison, WeightsOfKeysThatDoNotAttend) {
  const Expr nan = std::numeric_limits<double>::quiet_NaN(), excluded = leaf::kv_idx() % 5 == 2;
  for_each_spec(specs_of_kernels(), [&](const CaseSpec& spec) {
    if (spec.tile->q > 2 * shared::kWarpgroupRows) return;  // three warpgroups leave a weight_mod too few registers
    for (const bool masked : {false, true}) {
      const auto c = case_with_mask(spec, masked ? !excluded : Expr());
      const Expr there = leaf::kv_idx() < leaf::kv_len();
      c->options().weight_mod = where(masked ? there & !excluded : there, 0.5, nan);
      c->run_and_judge();
    }
  });
}

TEST_F(GpuPoison, QueriesThatAttendNothing) {
  const Chooses blind = [](auto, auto, std::int64_t i) { return i % 3 == 1; };
  for_each_spec(specs_of_kernels(), [&](const CaseSpec& spec) {
    expect_unreached(spec, leaf::q_idx() % 3 != 1, [&](AttentionCase& c) { poison_rows(c.q, blind); });
  });
}

TEST_F(GpuPoison, QueriesReachOnlyThemselves) {
  const Chooses poisoned = [](auto, std::int64_t h, std::int64_t i) { return h == 1 && i % 11 == 4; };
  for_each_spec(specs_of_kernels(), [&](const CaseSpec& spec) {
    expect_as_the_reference(spec, {}, [&](AttentionCase& c) { poison_rows(c.q, poisoned); });
  });
}

TEST_F(GpuPoison, KeysReachOnlyQueriesThatAttendThem) {
  for_each_spec(specs_of_kernels(), [&](const CaseSpec& spec) {
    expect_as_the_reference(spec, mods::causal(), [&](AttentionCase& c) {
      poison_rows(c.k, [](auto, auto, std::int64_t j) { return j == 60; });
    });
  });
}

TEST_F(GpuPoison, BatchEntriesAndHeadsReachOnlyThemselves) {
  for_each_spec(specs_of_kernels(), [&](CaseSpec spec) {
    spec.kv_heads = 2;
    expect_as_the_reference(spec, {}, [&](AttentionCase& c) {
      const Chooses one = [](std::int64_t b, std::int64_t h, auto) { return b == 1 && h == 0; };
      for (const GuardedTensor* tensor : {&c.q, &c.k, &c.v}) poison_rows(*tensor, one);
    });
  });
}

/// The kernels of specs_of_kernels() on several sequences; `sequences` names the kind.
std::vector<CaseSpec> specs_of_sequences(const std::string& sequences) {
  std::vector<CaseSpec> specs = specs_of_kernels();
  for (CaseSpec& spec : specs) {
    spec.sequences = sequences;
    spec.batch = sequences == "packed" ? 1 : 3;
    spec.kv_rows += 100;
  }
  return specs;
}

// NaN in all of one sequence changes no bit of the others.
TEST_F(GpuPoison, SequencesOfAPackedBatchReachOnlyThemselves) {
  for_each_spec(specs_of_sequences("packed"), [](const CaseSpec& spec) {
    GpuCase gpu(spec);
    AttentionCase& c = gpu.host();
    const auto* q_ends = static_cast<const std::int32_t*>(c.options().cu_seqlens_q->data);
    const auto* kv_ends = static_cast<const std::int64_t*>(c.options().cu_seqlens_kv->data);
    for (std::int64_t s = 0; s < c.sequences(); ++s) {
      const Chooses q_rows = [&](auto, auto, std::int64_t i) { return i >= q_ends[s] && i < q_ends[s + 1]; };
      const Chooses kv_rows = [&](auto, auto, std::int64_t j) { return j >= kv_ends[s] && j < kv_ends[s + 1]; };
      GpuCase fresh(spec);
      fresh.run();
      const auto clean = rows_of(fresh.host(), q_rows);
      for (const auto& row : clean) {
        for (double x : row) ASSERT_EQ(x, x);
      }
      poison_rows(fresh.host().q, q_rows);
      poison_rows(fresh.host().k, kv_rows);
      poison_rows(fresh.host().v, kv_rows);
      fresh.run();
      EXPECT_EQ(rows_of(fresh.host(), q_rows), clean) << "sequence " << s;
    }
  });
}

// Rows past a sequence's end are NaN in the case already; every other content of them gives the same bits.
TEST_F(GpuPoison, PaddingPastTheLengths) {
  for_each_spec(specs_of_sequences("lengths"), [](const CaseSpec& spec) {
    GpuCase gpu(spec);
    AttentionCase& c = gpu.host();
    gpu.run();
    const auto poisoned = rows_of(c, kNone);
    for (const auto& row : poisoned) {
      for (double x : row) ASSERT_EQ(x, x);
    }
    const auto clear = [](const GuardedTensor& tensor, const auto* lengths) {
      tensor.for_each_element([&](const Dims& at, std::int64_t offset) {
        if (at[2] >= lengths[at[0]]) base::store_element(tensor.view().data, tensor.view().dtype, offset, 1);
      });
    };
    clear(c.q, static_cast<const std::int32_t*>(c.options().q_lengths->data));
    clear(c.k, static_cast<const std::int64_t*>(c.options().kv_lengths->data));
    clear(c.v, static_cast<const std::int64_t*>(c.options().kv_lengths->data));
    gpu.run();
    EXPECT_EQ(rows_of(c, kNone), poisoned);
  });
}

TEST_F(GpuPoison, SingleInfinitiesAndNaN) {
  struct Element {
    const GuardedTensor AttentionCase::*tensor;
    std::int64_t row;
    double x;
  };
  std::vector<Element> elements;
  for (const double x : {kInfinity, -kInfinity, kNaN}) {
    for (const std::int64_t row : {std::int64_t{0}, std::int64_t{3}, std::int64_t{-1}}) {
      for (auto tensor : {&AttentionCase::q, &AttentionCase::k, &AttentionCase::v})
        elements.push_back({tensor, row, x});
    }
  }
  for_each_spec(specs_of_kernels(), [&](CaseSpec spec) {
    spec.batch = 1;
    for (std::size_t i = spec.seed % 3; i < elements.size(); i += reduced() ? 9 : 3) {
      const Element& element = elements[i];
      expect_as_the_reference(spec, {}, [&](AttentionCase& c) {
        const GuardedTensor& tensor = c.*element.tensor;
        const std::int64_t rows = tensor.view().shape[2];
        store(tensor, {0, 0, element.row < 0 ? rows - 1 : element.row, 5}, element.x);
      });
    }
  });
}

// Keys of the last steps whose scores are far above, or far below, those of the first.
TEST_F(GpuPoison, ScoresThatGrowLate) {
  std::vector<CaseSpec> specs;
  for (const CaseSpec& spec : specs_of_kernels()) {
    for (const double late : {0.01, 10.0, 60.0, 1000.0}) {
      specs.push_back(spec);
      specs.back().late = late;
      specs.back().spread = late > 100 ? 30 : 1;
    }
  }
  const Expr masks[] = {Expr(), mods::causal_lower_right(), (leaf::q_idx() % 2 == 0) | (leaf::kv_idx() >= 200),
                        (leaf::q_idx() % 2 == 0) | (leaf::kv_idx() < 20)};
  for_each_spec(specs, [&](const CaseSpec& spec) {
    expect_as_the_reference(spec, masks[(spec.seed + static_cast<std::uint64_t>(spec.late)) % 4],
                            [](AttentionCase&) {});
  });
}

// One row of one tile alone, in the first, a middle and the last tile of a long list.
TEST_F(GpuPoison, OneRowWhoseScoresGrowLate) {
  for_each_spec(specs_of_kernels(), [&](CaseSpec spec) {
    spec.kv_heads = 2;
    spec.rows = "built";
    spec.block.reset();
    spec.tile.reset();
    GpuCase gpu(spec);
    AttentionCase& c = gpu.host();
    for (const std::int64_t row : {std::int64_t{0}, spec.q_rows / 2, spec.q_rows - 1}) {
      for (std::int64_t d = 0; d < spec.qk_dim; ++d) {
        const double x = get_element(c.q.view(), {row % 2, 2, row, d});
        store(c.k, {row % 2, 1, spec.kv_rows - 1, d}, 8 * x);
      }
    }
    gpu.run_and_judge();
  });
}

// All scores equal, all very large, all very small: exact averages.
TEST_F(GpuPoison, ConstantScores) {
  for_each_spec(specs_of_kernels(), [&](const CaseSpec& spec) {
    for (const double x : {0.0, 60.0, -60.0}) {
      expect_as_the_reference(spec, {}, [&](AttentionCase& c) {
        for (const GuardedTensor* tensor : {&c.q, &c.k}) {
          tensor->for_each_element([&](const Dims&, std::int64_t offset) {
            base::store_element(tensor->view().data, tensor->view().dtype, offset, tensor == &c.q ? 60 : x);
          });
        }
      });
    }
  });
}

}  // namespace
}  // namespace heddle::test
