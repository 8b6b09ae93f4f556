// Expressions drawn at random as score, mask and weight mods, against the reference. A dozen share a kernel, which a
// Param tells the one to take: so a kernel's compilation is no measure of how many can be tried, and what a Param
// selects is what runs. HEDDLE_TEST_REDUCED and HEDDLE_TEST_BACKEND as in gpu_grid_test.cc.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>

#include "backend/cuda/jit/cuda_jit.h"
#include "engine/conditioning.h"
#include "expr/random_expression.h"
#include "expr/simplify.h"
#include "heddle/error.h"
#include "kernels/cuda/gpu_test.h"
#include "plan/mods/kernel_mods.h"
#include "shared/mod_values.h"
#include "shared/tile_shape.h"

namespace heddle::test {
namespace {

using expr::Leaf;

/// The part of an attention that a drawn expression becomes.
enum class Kind : int { any, element_term, row_term, key_term, key_factor, slope, distance, weight, mask };
constexpr std::array<Kind, 10> kKinds = {Kind::any,      Kind::any,        Kind::element_term, Kind::row_term,
                                         Kind::key_term, Kind::key_factor, Kind::slope,        Kind::distance,
                                         Kind::weight,   Kind::mask};
constexpr int kOfKernel = 12;  // expressions
// Numbers of keys are computed in few registers.
constexpr int kOfKeyKernel = 3;
constexpr bool is_of_key(Kind kind) { return kind == Kind::key_term || kind == Kind::key_factor; }

Vocabulary vocabulary_of(Kind kind) {
  Vocabulary vocabulary = kind == Kind::any ? Vocabulary() : Vocabulary::mask();
  vocabulary.reads_inside = true;
  vocabulary.extreme_constants = false;
  if (kind == Kind::row_term) vocabulary.leaves = {Leaf::b, Leaf::h, Leaf::q_idx, Leaf::q_token, Leaf::kv_len};
  if (is_of_key(kind)) vocabulary.leaves = {Leaf::b, Leaf::h, Leaf::kv_idx, Leaf::kv_token, Leaf::q_len};
  if (kind == Kind::slope) vocabulary.leaves = {Leaf::b, Leaf::h, Leaf::q_len};
  if (kind == Kind::distance) {
    vocabulary.leaves = {Leaf::kv_idx};
    vocabulary.captures = false;  // its indices would be keys, too
  }
  if (kind == Kind::mask) vocabulary.without = inexact_operations();
  return vocabulary;
}

Expr with_distance_for_key(const Expr& e) {
  return expr::rewrite(e, [](const expr::Node& node, std::span<const Expr> operands) {
    const bool key = node.op == expr::Op::leaf && node.leaf() == Leaf::kv_idx;
    return key ? leaf::kv_idx() - leaf::q_idx() : expr::with_operands(node, operands);
  });
}

/// A term of the score, a weight, a mask, or t itself.
Expr draw(Kind kind, RandomExpressions& source) {
  const int size = 2 + source.below(14);
  if (kind == Kind::mask) return source.draw(ExprType::boolean, size);
  const Expr drawn = source.draw(ExprType::f32, size);
  // A term of the query or of the key alone would be separated from it.
  if (kind == Kind::element_term) return drawn + to_f32((leaf::q_idx() * leaf::kv_idx()) % 3);
  if (kind == Kind::slope) return drawn * to_f32(leaf::kv_idx()) * 0.0625 + source.draw(ExprType::f32, 3);
  return kind == Kind::distance ? with_distance_for_key(drawn) : drawn;
}

void set_mod(AttentionOptions& options, Kind kind, const Expr& drawn) {
  options.score_mod = options.mask_mod = options.weight_mod = Expr();
  if (kind == Kind::weight) {
    options.weight_mod = drawn;
  } else if (kind == Kind::mask) {
    options.mask_mod = drawn;
  } else if (kind == Kind::key_factor) {
    options.score_mod = leaf::score() * drawn;
  } else {
    options.score_mod = kind == Kind::any ? drawn : leaf::score() + drawn;
  }
}

/// drawn[which], of which the last is taken for any other number.
Expr selected(std::span<const Expr> drawn) {
  Expr all = drawn.back();
  for (std::size_t i = drawn.size() - 1; i-- > 0;) {
    all = where(param("which", ExprType::i32) == static_cast<std::int32_t>(i), drawn[i], all);
  }
  return all;
}

/// Counts over all groups.
struct Tally {
  std::mutex mutex;
  std::int64_t drawn = 0, judged = 0, refused = 0, changed = 0, compared = 0, kernels = 0;
  std::map<shared::ScoreForm, int> forms;  // of score_mods
  int of_keys = 0;                         // whose kernels compute numbers of keys
};

/// Expressions of one kind, of which a kernel is made, and the case that they run on.
class Group {
 public:
  Group(int number, Tally& tally)
      : kind_(kKinds[static_cast<std::size_t>(number) % kKinds.size()]),
        source_(static_cast<std::uint64_t>(1000 + number), vocabulary_of(kind_)),
        case_(spec_of(number, kind_)),
        tally_(tally) {
    case_.options().bindings = source_.bindings();
    draw_suitable();
    // With the blocks of a small tile a kernel has few elements a thread and compiles in a tenth of the time. Now and
    // then the tile is the planner's.
    own_blocks_ = number / static_cast<int>(kKinds.size()) % 4 != 3;
  }

  void judge() { judge(drawn_); }

 private:
  static constexpr int kSomeDraws = 120 * kOfKernel;

  static CaseSpec spec_of(int number, Kind kind) {
    const auto pick = [&](std::initializer_list<std::int64_t> values, int salt) {
      return values.begin()[static_cast<std::size_t>(number / salt) % values.size()];
    };
    CaseSpec spec;
    spec.seed = static_cast<std::uint64_t>(100'000 + number);
    spec.threads = 1;
    spec.qk_dim = 200;
    spec.v_dim = 8;
    spec.batch = pick({1, 2}, 1);
    spec.group = pick({2, 1, 3}, 2);
    spec.q_rows = pick({9, 70, 33, 1, 18}, 3);
    spec.kv_rows = pick({129, 40, 150, 64, 3}, 5);
    // The error of two or three rows is that of a few roundings, and may be several times plain's by chance.
    if (spec.q_rows == 1) spec.kv_heads = 12;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = kind == Kind::mask && number % 16 > 8 ? DType::f16 : DType::bf16;
    spec.layout = Layout::bshd;
    return spec;
  }

  /// lse tells small errors of t; then only what amplifies none will do.
  Latitude latitude() const { return {.contracted = true, .amplified = 0x1p-21}; }

  void draw_suitable() {
    Conditioning conditioning(case_.host(), latitude());
    std::int64_t draws = 0;
    const int most = is_of_key(kind_) ? kOfKeyKernel : kOfKernel;
    for (; std::ssize(drawn_) < most && draws < kSomeDraws; ++draws) {
      const Expr next = draw(kind_, source_);
      drawn_.push_back(next);
      if (!fits_kernel() || !varies(next) || !is_good(conditioning)) drawn_.pop_back();
    }
    const std::scoped_lock lock(tally_.mutex);
    tally_.drawn += draws;
  }

  bool fits_kernel() const { return std::ssize(symbols_of(selected(drawn_)).captures) <= shared::kModCaptures; }
  /// Not the same everywhere, as a constant is; scores not the same in all rows, whose error is then that of one; a
  /// mask neither nowhere nor everywhere.
  bool varies(const Expr& e) {
    const Expr simple = expr::simplify(e, expr::Precision::f32);
    if (simple.node()->op == expr::Op::constant) return false;
    if (kind_ == Kind::any && !simple.node()->uses.intersects({Leaf::score, Leaf::q_idx, Leaf::q_token})) return false;
    if (kind_ != Kind::mask) return true;
    const expr::Interpreter attends(e, case_.options().bindings, expr::Precision::f32);
    bool some = false, others = false;
    Conditioning(case_.host()).for_each([&](auto, auto, auto, auto, const expr::Element& at) {
      (attends.boolean(at) ? some : others) = true;
      return !(some && others);
    });
    return some && others;
  }
  /// A weight that is 0 for most keys leaves the error of a few roundings, as few rows do.
  bool leaves_keys(const Expr& weight) {
    const expr::Interpreter evaluate(weight, case_.options().bindings, expr::Precision::f32);
    std::int64_t left = 0, all = 0;
    Conditioning(case_.host()).for_each([&](auto, auto, auto, auto, const expr::Element& at) {
      left += evaluate.real(at) != 0 ? 1 : 0;
      ++all;
      return true;
    });
    return left == 0 || 2 * left >= all;
  }
  bool is_good(Conditioning& conditioning) {
    set_mod(case_.options(), kind_, drawn_.back());
    if (kind_ == Kind::weight && !leaves_keys(drawn_.back())) return false;
    return conditioning.good(case_.options().score_mod, case_.options().weight_mod);
  }

  /// Judges the mods with one kernel; if the compiler makes no good one, with one kernel for either half.
  void judge(std::span<const Expr> mods) {
    if (mods.empty()) return;
    AttentionOptions& options = case_.options();
    set_mod(options, kind_, selected(mods));
    options.bindings.params["which"] = 0;
    options.block_mask = own_blocks_ ? blocks() : nullptr;
    const AttentionOptions there = case_.options_there();
    std::optional<AttentionPlan> plan;
    try {
      plan.emplace(case_.tensors(), there);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::compile) throw;
      return judge_halves(mods, error.what());
    }
    count_kernel();
    for (std::size_t i = 0; i < mods.size(); ++i) {
      run(*plan, there.bindings, static_cast<std::int32_t>(i));
      judge_one(mods[i]);
    }
  }

  void judge_halves(std::span<const Expr> mods, const char* reason) {
    if (mods.size() == 1) {
      fmt::print("refused: {}\n{}\n", print(mods[0]), reason);
      const std::scoped_lock lock(tally_.mutex);
      ++tally_.refused;
      return;
    }
    judge(mods.first(mods.size() / 2));
    judge(mods.subspan(mods.size() / 2));
  }

  std::shared_ptr<const BlockMask> blocks() {
    AttentionOptions& options = case_.options();
    options.block_mask = nullptr;
    const problem::AttentionProblem problem = problem::validate(case_.host().tensors(), options);
    return std::make_shared<BlockMask>(BlockMask::build(options.mask_mod, {problem.q_heads, problem.sequences},
                                                        {shared::kWarpgroupRows, 32}, options.bindings, 1));
  }

  void count_kernel() {
    problem::AttentionProblem problem = problem::validate(case_.host().tensors(), case_.options());
    const std::scoped_lock lock(tally_.mutex);
    ++tally_.kernels;
    if (problem.score_mod.empty()) return;
    const plan::KernelMods mods = plan::kernel_mods(problem);
    ++tally_.forms[mods.form];
    if (mods.has_key_numbers()) ++tally_.of_keys;
  }

  /// Into outputs that are NaN before.
  void run(AttentionPlan& plan, Bindings values, std::int32_t which) {
    values.params["which"] = which;
    if (kind_ == Kind::mask) plan.update({.captures = {}, .params = {{"which", which}}});
    for (const GuardedTensor* output : {&case_.host().o, &case_.host().lse_rows}) {
      std::ranges::fill(output->memory(), std::byte{0xff});
    }
    case_.upload();
    plan.run(case_.tensors(),
             {.workspace = case_.workspace(plan.workspace_bytes()), .bindings = &values, .stream = stream_.handle()});
    stream_.wait();
    case_.download();
  }

  /// By the reference with this expression alone, and no rows.
  void judge_one(const Expr& drawn) {
    SCOPED_TRACE(print(drawn));
    set_mod(case_.options(), kind_, drawn);
    case_.options().block_mask = nullptr;
    test::judge(case_.host());
    const Outputs outputs = outputs_of(case_.host());
    const std::scoped_lock lock(tally_.mutex);
    ++tally_.judged;
    if (last_) ++tally_.compared;
    if (last_ && !(*last_ == outputs)) ++tally_.changed;
    last_ = outputs;
  }

  const Kind kind_;
  RandomExpressions source_;  // owns what its captures are views of
  GpuCase case_;
  Tally& tally_;
  const Stream stream_;
  std::vector<Expr> drawn_;
  bool own_blocks_ = false;
  std::optional<Outputs> last_;
};

TEST(GpuExpressions, AgreeWithTheReference) {
  if (const std::string reason = gpu_missing(); !reason.empty()) GTEST_SKIP() << reason;
  const char* given = std::getenv("HEDDLE_FAMILY");
  const ScopedVariable family("HEDDLE_FAMILY", given != nullptr ? given : "forward_sm90");
  const int groups = reduced() ? 20 : 240, wanted = reduced() ? 150 : 2000;
  const std::int64_t compiled = cuda::jit::counts().compiled;
  Tally tally;
  std::vector<CaseSpec> numbers(static_cast<std::size_t>(groups));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i].seed = i;
  for_each_spec(numbers, [&](const CaseSpec& spec) { Group(static_cast<int>(spec.seed), tally).judge(); });

  fmt::print("{} expressions drawn, {} judged in {} kernels, {} fit none; {} of {} results differ from the last\n",
             tally.drawn, tally.judged, tally.kernels, tally.refused, tally.changed, tally.compared);
  for (const auto& [form, kernels] : tally.forms) fmt::print("form {}: {} kernels\n", static_cast<int>(form), kernels);
  EXPECT_GE(tally.judged, wanted / static_cast<int>(case_part().count));
  EXPECT_LT(tally.drawn, 50 * tally.judged);
  EXPECT_LE(tally.refused, wanted / 50);
  // A Param that selected nothing would give the same again.
  EXPECT_GT(tally.changed, tally.compared * 8 / 10);
  if (case_part().count > 1) return;
  for (const auto form : {shared::ScoreForm::shifted, shared::ScoreForm::tilted, shared::ScoreForm::distant,
                          shared::ScoreForm::added, shared::ScoreForm::mapped}) {
    EXPECT_GT(tally.forms[form], 0) << static_cast<int>(form);
  }
  EXPECT_GT(tally.of_keys, 0);
  if (gpu_backend() == BackendChoice::cuda) {
    // Kernels, not expressions: those that were refused for another tile or fewer expressions, and the masks' rows.
    EXPECT_LT(cuda::jit::counts().compiled - compiled, 4 * groups);
  }
}

}  // namespace
}  // namespace heddle::test
