// The words of stored masks, by the kernel that finds them, compiled by the host's compiler: each thread of each
// warpgroup finds at the address that forward_sm90 computes what the mask says of its rows and columns, in every
// partial step of every tile; and nothing else is written.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/device_text/bound_values.h"
#include "backend/device_text/host_program.h"
#include "backend/gpu/stored_mask_launch.h"
#include "expr/interpret.h"
#include "families/forward_sm90/forward_sm90.h"
#include "heddle/mods.h"
#include "plan/hopper.h"
#include "plan/mods/stored_mask_choice.h"
#include "shared/stored_mask.h"

namespace heddle::gpu::test {

using device_text::layout_of;
using device_text::ModLayout;
using device_text::test::bound_values;
using device_text::test::load_on_host;

namespace {

using heddle::test::HopperCall;
using shared::ForwardSm90Config;
using shared::MaskWords;

/// Around the text of the source. CTAs and threads come in an order of their own, which must not matter.
constexpr const char* kBegin = R"(#include "mods/instructions.cuh"
#define __global__
#define __grid_constant__
#define __launch_bounds__(threads)
inline struct { unsigned x, y; } blockIdx, gridDim;
)";
constexpr const char* kEnd = R"(
extern "C" void store_all(const heddle::shared::StoredMaskParams& params, unsigned runs, unsigned shares) {
  gridDim.x = runs, gridDim.y = shares;
  for (blockIdx.x = runs; blockIdx.x-- > 0;) {
    for (blockIdx.y = 0; blockIdx.y < shares; ++blockIdx.y) {
      for (threadIdx.x = params.warpgroups * 128; threadIdx.x-- > 0;) store_mask(params);
    }
  }
}
)";
using StoreAll = void (*)(const shared::StoredMaskParams&, unsigned, unsigned);

constexpr MaskWords kUnwritten = {{0x12345678, 0x9ABCDEF0}};
bool is_unwritten(const MaskWords& words) {
  return words.row[0] == kUnwritten.row[0] && words.row[1] == kUnwritten.row[1];
}

/// A mask, and values of what it reads.
struct Masked {
  Expr mask;
  Bindings bindings;
};

class StoredMaskValues : public testing::Test {
 protected:
  StoredMaskValues() {
    std::mt19937 random(7);
    for (int i = 0; i < kLongest; ++i) {
      ids_.push_back(i / 70 + (i % 97 == 0 ? 1 : 0));
      enter_.push_back(static_cast<std::int32_t>(random() % 300));
      last_.push_back(enter_.back() + static_cast<std::int32_t>(random() % 200));
    }
    for (int i = 0; i < kHeads * kBatch; ++i) widths_.push_back(20 + 31 * i);
  }
  Bindings bindings() const {
    Bindings all;
    all.captures["ids"] = {ids_.data(), DType::i32, Dims{kLongest}};
    all.captures["enter"] = {enter_.data(), DType::i32, Dims{kLongest}};
    all.captures["last"] = {last_.data(), DType::i32, Dims{kLongest}};
    all.captures["widths"] = {widths_.data(), DType::i32, Dims{kBatch, kHeads}};
    all.params["before"] = 150;
    return all;
  }
  /// The bindings that `mask` reads.
  Bindings bindings_of(const Expr& mask) const {
    Bindings own;
    const Bindings all = bindings();
    for (const auto& [name, declared] : symbols_of(mask).captures) own.captures[name] = all.captures.at(name);
    for (const auto& [name, type] : symbols_of(mask).params) own.params[name] = all.params.at(name);
    return own;
  }

  static constexpr int kLongest = 700, kHeads = 2, kBatch = 3;
  Capture ids{"ids", DType::i32, 1}, enter{"enter", DType::i32, 1}, last{"last", DType::i32, 1},
      widths{"widths", DType::i32, 2};

 private:
  std::vector<std::int32_t> ids_, enter_, last_, widths_;
};

/// Runs the kernel as a launch does, into memory with guards around it.
std::vector<MaskWords> words_of(const problem::AttentionProblem& problem, const ForwardSm90Config& config,
                                const plan::StoredBlocks& blocks, const Bindings& bindings,
                                const std::vector<shared::SequenceSpan>& spans, unsigned shares) {
  constexpr std::size_t kGuard = 4096;
  const Expr mask = plan::kernel_mods(problem).mask;
  ModLayout layout = layout_of({mask});
  layout.by_sequence = config.by_sequence;
  const std::shared_ptr<void> library = load_on_host(kBegin + gpu::stored_mask_text(mask, layout) + kEnd);
  const auto store_all = reinterpret_cast<StoreAll>(dlsym(library.get(), "store_all"));
  const std::size_t count =
      static_cast<std::size_t>(shared::stored_bytes(blocks.room, config.warpgroups)) / sizeof(MaskWords);
  std::vector<MaskWords> words(count + 2 * kGuard, kUnwritten);
  shared::StoredMaskParams params{.runs = blocks.runs.data(),
                                  .words = words.data() + kGuard,
                                  .kv_block = config.kv_block,
                                  .warpgroups = config.warpgroups,
                                  .mod = bound_values(layout, bindings)};
  const Sequence& first = problem.sequences.front();
  params.mod.q_len = static_cast<int>(first.q_len);
  params.mod.kv_len = static_cast<int>(first.kv_len);
  params.mod.q_start = static_cast<int>(first.q_start);
  params.mod.sequences = spans.data();
  store_all(params, static_cast<unsigned>(blocks.runs.size()), shares);
  for (std::size_t i = 0; i < kGuard; ++i) {
    EXPECT_TRUE(is_unwritten(words[i]) && is_unwritten(words[count + kGuard + i])) << "written outside";
  }
  words.erase(words.begin(), words.begin() + kGuard);
  words.resize(count);
  return words;
}

/// Compares a thread's words with the mask, row by row and column by column.
class Judge {
 public:
  Judge(const problem::AttentionProblem& problem, const Bindings& bindings)
      : problem_(problem), mask_(problem.mask_mod, bindings, expr::Precision::f32) {}

  /// Expects the mask in the elements before the sequence's ends; words that differ are one failure.
  void expect(const MaskWords& words, const shared::WorkItem& item, int first_row, int block, int kv_block,
              int thread) {
    const int lane = thread % 32, row = first_row + 16 * (thread / 32) + lane / 4;
    const Sequence& at = problem_.sequences[static_cast<std::size_t>(item.batch)];
    for (int bit = 0; bit < kv_block / 4; ++bit) {
      for (int r = 0; r < 2; ++r) {
        const int i = row + 8 * r, j = block * kv_block + 2 * (lane % 4) + shared::mask_column(bit);
        if (i >= at.q_len || j >= at.kv_len) continue;
        const bool said = (words.row[r] >> bit & 1) != 0;
        if (said != attends(at, item, i, j)) {
          ADD_FAILURE() << fmt::format("batch {}, head {}, query {}, key {}: said {}", item.batch, item.head, i, j,
                                       said);
          return;
        }
        ++elements;
      }
    }
  }
  std::int64_t elements = 0;

 private:
  bool attends(const Sequence& at, const shared::WorkItem& item, int i, int j) const {
    using expr::Leaf;
    expr::Element element;
    element[Leaf::b] = item.batch;
    element[Leaf::h] = item.head;
    element[Leaf::q_idx] = static_cast<std::int32_t>(i + at.q_start);
    element[Leaf::kv_idx] = j;
    element[Leaf::q_token] = static_cast<std::int32_t>(i + at.q_begin);
    element[Leaf::kv_token] = static_cast<std::int32_t>(j + at.kv_begin);
    element[Leaf::q_len] = static_cast<std::int32_t>(at.q_len);
    element[Leaf::kv_len] = static_cast<std::int32_t>(at.kv_len);
    element[Leaf::q_start] = static_cast<std::int32_t>(at.q_start);
    return mask_.boolean(element);
  }

  const problem::AttentionProblem& problem_;
  expr::Interpreter mask_;
};

/// Walks the tiles as producer and consumers do.
void expect_every_step_has_its_words(const problem::AttentionProblem& problem, const ForwardSm90Config& config,
                                     const plan::TileSchedule& schedule, const Bindings& bindings,
                                     const std::vector<MaskWords>& words) {
  Judge judge(problem, bindings);
  std::vector<bool> read(words.size(), false);
  ASSERT_EQ(schedule.mask_words_at.size(), schedule.items.size());
  for (std::size_t n = 0; n < schedule.items.size(); ++n) {
    const shared::WorkItem& item = schedule.items[n];
    const auto kv_len = static_cast<int>(problem.sequences[static_cast<std::size_t>(item.batch)].kv_len);
    for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
      const shared::KvRun& run = schedule.runs[static_cast<std::size_t>(r)];
      for (int step = run.begin; step < run.end; ++step) {
        const int block = config.descending ? (kv_len - 1) / config.kv_block - step : step;
        for (int w = 0; w < config.warpgroups; ++w) {
          if ((run.flags & shared::kStepPartial << w) == 0) continue;
          for (int thread = 0; thread < 128; ++thread) {
            const long long at = shared::stored_word(schedule.mask_words_at[n] + block, config.warpgroups, w, thread);
            ASSERT_GE(at, 0);
            ASSERT_LT(at, std::ssize(words));
            read[static_cast<std::size_t>(at)] = true;
            judge.expect(words[static_cast<std::size_t>(at)], item, item.q_tile * config.rows() + 64 * w, block,
                         config.kv_block, thread);
          }
        }
      }
    }
  }
  EXPECT_GT(judge.elements, 1000);
  for (std::size_t i = 0; i < words.size(); ++i) {
    ASSERT_EQ(is_unwritten(words[i]), !read[i]) << "word " << i << " is " << (read[i] ? "missing" : "nobody's");
  }
}

void expect_words(HopperCall call, const Bindings& bindings, const plan::ForwardSm90Kernel& kernel, bool descending,
                  unsigned shares, std::int64_t q_block = shared::kWarpgroupRows) {
  call.options.bindings = bindings;
  const problem::AttentionProblem problem = call.problem();
  SCOPED_TRACE(fmt::format("{} by {} x {}{}, blocks of {} queries", print(call.mask), kernel.config().rows(),
                           kernel.kv_block, descending ? ", descending" : "", q_block));
  plan::KernelMods mods = plan::kernel_mods(problem);
  ASSERT_TRUE(plan::masks_by_values(mods));
  mods.stores_mask = true;
  ForwardSm90Config config = plan::config_with(kernel.config(), mods);
  ASSERT_TRUE(config.stores_mask());
  config.descending = descending;
  config.by_sequence = problem::sequences_differ(problem);
  const std::shared_ptr<const BlockMask> rows = call.rows_of({q_block, kernel.kv_block});
  const plan::TileSchedule schedule = plan::forward_sm90_schedule(problem, config, rows.get(), heddle::test::h200());
  std::vector<shared::SequenceSpan> spans;
  for (const Sequence& at : problem.sequences) {
    spans.push_back({.q_begin = static_cast<int>(at.q_begin),
                     .q_len = static_cast<int>(at.q_len),
                     .kv_len = static_cast<int>(at.kv_len),
                     .q_start = static_cast<int>(at.q_start),
                     .kv_begin = static_cast<int>(at.kv_begin),
                     .kv_end = 0,
                     .kv_before = 0,
                     .q_end = 0});
  }
  const std::vector<MaskWords> words = words_of(problem, config, schedule.stored, bindings, spans, shares);
  expect_every_step_has_its_words(problem, config, schedule, bindings, words);
}

HopperCall call_of(const Expr& mask) {
  HopperCall call{.batch = 3, .q_heads = 2, .kv_heads = 1, .q_rows = 333, .kv_rows = 490, .dim = 64};
  call.mask = mask;
  return call;
}

TEST_F(StoredMaskValues, AreWhereEveryStepLoadsThem) {
  const std::vector<Expr> masks = {
      mods::documents(ids) && mods::causal(),  // some rows' blocks are full between partial ones
      mods::tree(enter, last),
      leaf::q_idx() - leaf::kv_idx() < widths(leaf::b(), leaf::h()) && leaf::kv_idx() % 3 != 1,  // no row is shared
      ids(leaf::kv_idx()) == 2 || leaf::q_idx() - leaf::kv_idx() <= param("before", ExprType::i32)};
  std::size_t n = 0;
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    if (kernel.qk_dim != kernel.v_dim || kernel.spare) continue;
    const Expr& mask = masks[n++ % masks.size()];
    expect_words(call_of(mask), bindings_of(mask), kernel, n % 2 == 0, static_cast<unsigned>(n % 3 + 1));
  }
}

// Lengths, starts and places of their own.
TEST_F(StoredMaskValues, OfSequencesThatDiffer) {
  const std::int32_t q_lengths[] = {333, 70, 200}, kv_lengths[] = {301, 490, 64}, starts[] = {0, 100, 7};
  const std::int32_t q_ends[] = {0, 100, 230, 333}, kv_ends[] = {0, 250, 251, 490};
  const Expr mask = mods::documents(ids) && leaf::q_idx() + leaf::kv_len() - leaf::q_len() >= leaf::kv_idx();
  const Expr by_token = ids(leaf::q_token()) == ids(leaf::kv_token()) && mods::causal();
  for (const plan::ForwardSm90Kernel& kernel : {plan::kForwardSm90Kernels[0], plan::kForwardSm90Kernels[7]}) {
    for (const bool descending : {false, true}) {
      HopperCall lengths = call_of(mask);
      lengths.options.q_lengths = ConstTensorView(q_lengths, DType::i32, {3});
      lengths.options.kv_lengths = ConstTensorView(kv_lengths, DType::i32, {3});
      lengths.options.q_start = ConstTensorView(starts, DType::i32, {3});
      expect_words(lengths, bindings_of(mask), kernel, descending, 2);
      HopperCall packed = call_of(by_token);
      packed.batch = 1;
      packed.options.cu_seqlens_q = ConstTensorView(q_ends, DType::i32, {4});
      packed.options.cu_seqlens_kv = ConstTensorView(kv_ends, DType::i32, {4});
      expect_words(packed, bindings_of(by_token), kernel, descending, 2);
    }
  }
}

// Tiles that walk the same row of a mask of larger blocks have bits of their own.
TEST_F(StoredMaskValues, OfLargerBlocksOfQueries) {
  const Expr mask = mods::documents(ids) && mods::causal();
  for (const plan::ForwardSm90Kernel& kernel : {plan::kForwardSm90Kernels[0], plan::kForwardSm90Kernels[1]}) {
    expect_words(call_of(mask), bindings_of(mask), kernel, false, 3, 384);
  }
}

}  // namespace
}  // namespace heddle::gpu::test
