#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "backend/portable/portable_config.h"
#include "backend/portable/portable_refuses.h"
#include "families/backward_mma/backward_mma.h"
#include "families/backward_mma/backward_mma_costs.h"
#include "families/backward_mma/shared/backward_mma_config.h"
#include "families/backward_mma/shared/backward_mma_params.h"
#include "heddle/error.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;
using shared::BackwardMmaConfig;

bool is_accepted(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}

std::string refuse_types(const Request& request) {
  const AttentionProblem& problem = request.problem;
  const BackwardTensors& tensors = *request.backward;
  const DType product = product_type(problem, tensors);
  if (has_widened(problem) && product != DType::f16 && product != DType::bf16) {
    return fmt::format("dO is {}; f16 and bf16 are accepted beside q of 8 bits", name(product));
  }
  if (tensors.d_o.dtype != product) {
    return fmt::format("dO is {}; {}, q's type, is accepted", name(tensors.d_o.dtype), name(problem.q_dtype));
  }
  for (const auto& [what, view] : {std::pair("dq", &tensors.dq), std::pair("dk", &tensors.dk),
                                   std::pair("dv", &tensors.dv), std::pair("d_sinks", &tensors.d_sinks)}) {
    if (*view && !is_accepted((*view)->dtype)) {
      return fmt::format("{} is {}; f16, bf16, f32 and f64 are accepted", what, name((*view)->dtype));
    }
  }
  return {};
}

std::string refuse_pages(const AttentionProblem& problem) {
  if (problem.page_rows == 0) return {};
  return fmt::format("k and v are pages of {} rows; k and v without a page table are accepted", problem.page_rows);
}

MmaReads reads_of(const Request& request) {
  return mma_reads(request.problem, request.options.bindings, backward_mods(request.problem, OfPlaces::native));
}

std::string refuse_blocks(const AttentionOptions& options) {
  if (options.block_mask == nullptr) return {};
  const BlockSize block = options.block_mask->block();
  if (block.q % shared::kBackwardBlock == 0 && block.kv % shared::kBackwardBlock == 0) return {};
  return fmt::format("the block mask has blocks of {} x {}; multiples of {} x {} are accepted", block.q, block.kv,
                     shared::kBackwardBlock, shared::kBackwardBlock);
}

std::string refuse_sizes(const AttentionProblem& problem) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  const std::int64_t blocks = count_row_blocks(problem) * problem.q_heads;
  const std::int64_t tiles = count_tiles_of(problem, TileRows::keys, {1, shared::kBackwardBlock}) * 4;
  if (std::max(blocks, tiles) <= kMost) return {};
  return fmt::format("{} rows of q and {} of k in {} and {} heads make {} tiles; up to {} are accepted", problem.q_rows,
                     problem.kv_rows, problem.q_heads, problem.kv_heads, std::max(blocks, tiles), kMost);
}

template <class Caps>
std::string refuses_on(const Request& request, const Caps& caps, const LargestDims& largest) {
  const AttentionProblem& problem = request.problem;
  std::string reason = portable_refuses(problem, request.options, caps, largest);
  if (!reason.empty()) return reason;
  std::array<std::string, 5> reasons = {refuse_types(request), refuse_pages(problem),
                                        refuses_mma_reads(reads_of(request)), refuse_blocks(request.options),
                                        refuse_sizes(problem)};
  const auto found = std::ranges::find_if(reasons, [](const std::string& each) { return !each.empty(); });
  return found == reasons.end() ? std::string() : std::move(*found);
}

std::string describe_kernels(const BackwardMmaKernels& kernels) {
  std::vector<std::string> passes;
  for (const BackwardMmaConfig& pass : kernels.passes) {
    passes.push_back(fmt::format("{} {} x {}", name_of_pass(pass), pass.rows(), pass.step));
  }
  return fmt::format("{}", fmt::join(passes, ", "));
}

void describe(const AttentionProblem& problem, const BackwardMmaKernels& kernels, const BackwardMods& mods,
              const MmaReads& reads, Plan& plan) {
  plan.forms.score = describe_derivative(mods);
  if (!mods.mask.empty()) plan.forms.mask = "computed for each pair of a partial block";
  if (!mods.weight.empty()) plan.forms.weight = "computed for each pair, by every pass";
  plan.forms.places = describe_places(mods.places);
  for (const BackwardMmaConfig& pass : kernels.passes) {
    if (pass.finds_parts() || (!pass.of_keys && !problem.wanted.q)) continue;  // it is there for sums of reads alone
    if (pass.adds_d_q) {
      plan.gradients.push_back(
          "dq: tiles of keys add to sums in f32, in any order; bits may differ from run to run. dk and dv: in "
          "registers "
          "of one CTA, over the queries of all query heads of the group; the same bits in each run. S and dP are "
          "recomputed once");
      continue;
    }
    plan.gradients.push_back(
        fmt::format("{}: in registers of {}, {}{}; S{} recomputed; the same bits in each run", name_of_pass(pass),
                    pass.slices > 1 ? fmt::format("{} CTAs that share its columns", pass.slices) : "one CTA",
                    pass.of_keys ? "over the queries of all query heads of the group" : "over the keys",
                    pass.all_sequences ? ", sequence after sequence" : "", pass.d_qk ? " and dP are" : " is"));
  }
  for (std::string& sentence : describe_mma_reads(reads)) plan.gradients.push_back(std::move(sentence));
  if (problem.wanted.sinks) {
    plan.gradients.push_back(
        "d_sinks: -sum exp(sink - lse) delta, 64 rows at a time, in order; the same bits in each run");
  }
}

TileRows rows_of_pass(const BackwardMmaConfig& pass) { return pass.of_keys ? TileRows::keys : TileRows::queries; }

/// A tile's items of all sequences, in the order of these, beside each other; the tiles with the most steps first.
std::vector<shared::BackwardItem> beside_each_other(std::vector<shared::BackwardItem> items, std::int64_t sequences) {
  std::ranges::sort(
      items, {}, [](const shared::BackwardItem& item) { return std::tuple(item.kv_head, item.kv_tile, item.batch); });
  std::vector<std::pair<std::int64_t, std::size_t>> tiles;  // steps, below 0; the first item
  for (std::size_t first = 0; first < items.size(); first += static_cast<std::size_t>(sequences)) {
    tiles.emplace_back(0, first);
    for (std::int64_t i = 0; i < sequences; ++i) tiles.back().first -= items[first + static_cast<std::size_t>(i)].steps;
  }
  std::ranges::sort(tiles);
  std::vector<shared::BackwardItem> ordered;
  for (const auto& [steps, first] : tiles) {
    const auto begin = items.begin() + static_cast<std::ptrdiff_t>(first);
    ordered.insert(ordered.end(), begin, begin + static_cast<std::ptrdiff_t>(sequences));
  }
  return ordered;
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// The schedules of a problem's passes, each made once.
class Schedules {
 public:
  Schedules(const AttentionProblem& problem, std::shared_ptr<const BlockMask> block_mask)
      : problem_(problem), block_mask_(std::move(block_mask)) {}
  bool has(const BackwardMmaKernels& kernels) const {
    return std::ranges::all_of(kernels.passes, [&](const auto& pass) { return found_.contains(key_of(pass)); });
  }
  const BackwardSchedule& of(const BackwardMmaConfig& pass) {
    const auto [at, is_new] = found_.try_emplace(key_of(pass));
    if (is_new) at->second = backward_mma_schedule(problem_, pass, block_mask_.get());
    return at->second;
  }

 private:
  static std::pair<bool, int> key_of(const BackwardMmaConfig& pass) { return {pass.of_keys, pass.tile().rows()}; }

  const AttentionProblem& problem_;
  std::shared_ptr<const BlockMask> block_mask_;
  std::map<std::pair<bool, int>, BackwardSchedule> found_;
};

std::string standing_after(const Plan& other, const Plan& first) {
  const std::string what = describe_kernels(other.part<BackwardMmaKernels>()),
                    of_first = describe_kernels(first.part<BackwardMmaKernels>());
  if (!other.predicted || !first.predicted) {
    return fmt::format("{}: stands after {} in the table of the family; no time is predicted", what, of_first);
  }
  return fmt::format("{}: stands after {} in the table of the family; predicted {:.4g} ms, {:.2f} times its time", what,
                     of_first, 1e3 * other.predicted->seconds, other.predicted->seconds / first.predicted->seconds);
}

std::vector<Choice> choices_of(const Request& request, const device::GpuCaps& caps, const PortableRates* rates,
                               MmaTarget target, const RowsOf& rows_of) {
  const AttentionProblem& problem = request.problem;
  const BackwardMods mods = backward_mods(problem, OfPlaces::native);
  const MmaReads reads = reads_of(request);
  std::vector<Choice> choices;
  std::vector<std::string> rejected;
  const std::shared_ptr<const BlockMask> block_mask = rows_of({shared::kBackwardBlock, shared::kBackwardBlock});
  Schedules schedules(problem, block_mask);
  for (const BackwardMmaKernels& kernels : backward_mma_kernels(problem, mods, reads, *request.backward, target)) {
    if (const std::string reason = backward_mma_misfit(kernels, caps.shared_memory_bytes); !reason.empty()) {
      rejected.push_back(fmt::format("{}: {}", describe_kernels(kernels), reason));
      continue;
    }
    Choice choice;
    Plan& plan = choice.plan;
    choice.block_mask = block_mask;
    plan.device = caps.index;
    plan.multiprocessors = caps.multiprocessors;
    plan.family_part = kernels;
    plan.workspace_bytes = backward_mma_workspace(problem, kernels).bytes;
    plan.tile = {shared::kBackwardBlock, shared::kBackwardBlock};
    for (const BackwardMmaConfig& pass : kernels.passes) {
      const std::int64_t items = count_tiles_of(problem, rows_of_pass(pass), pass.tile());
      plan.grid = std::max(plan.grid, backward_mma_ctas(problem, pass, items));
      plan.tile = pass.of_keys ? BlockSize{pass.step, pass.rows()} : BlockSize{pass.rows(), pass.step};
    }
    // Under a mask a schedule takes milliseconds, so only the first kernels' are made.
    if (has_known_times(kernels, rates) && (choices.empty() || schedules.has(kernels))) {
      plan.predicted = backward_mma_prediction(
          problem, kernels,
          [&](const BackwardMmaConfig& pass) -> const BackwardSchedule& { return schedules.of(pass); },
          caps.multiprocessors, *rates);
    }
    describe(problem, kernels, mods, reads, plan);
    if (!kernels.widen.empty()) {
      plan.access.push_back(fmt::format("tensors of 8 bits: copied to {}, which is exact, {} bytes",
                                        name(product_type(problem, *request.backward)), kernels.copies.bytes));
    }
    choices.push_back(std::move(choice));
  }
  if (choices.empty()) {
    throw Error(ErrorCode::unsupported, fmt::format("no kernel of backward_mma fits: {}", fmt::join(rejected, "; ")));
  }
  for (std::size_t i = 0; i < choices.size(); ++i) {
    choices[i].plan.rejected = rejected;
    for (std::size_t j = i + 1; j < choices.size(); ++j) {
      choices[i].plan.rejected.push_back(standing_after(choices[j].plan, choices[i].plan));
    }
  }
  return choices;
}

}  // namespace

std::string backward_mma_misfit(const BackwardMmaKernels& kernels, std::int64_t shared_memory_bytes) {
  for (const BackwardMmaConfig& pass : kernels.passes) {
    const int bytes = shared::backward_mma_memory(pass).bytes;
    if (bytes > shared_memory_bytes) {
      return fmt::format("{} needs {} bytes of shared memory of {}", name_of_pass(pass), bytes, shared_memory_bytes);
    }
  }
  return {};
}

std::string backward_mma_refuses(const Request& request, const device::CudaCaps& caps) {
  return refuses_on(request, caps, kDimsOfSlices);
}
std::string backward_mma_refuses(const Request& request, const device::AmdCaps& caps) {
  return refuses_on(request, caps, kDimsOfRegisters);
}

std::vector<Choice> backward_mma(const Request& request, const device::CudaCaps& caps, const RowsOf& rows_of) {
  return choices_of(request, caps, portable_rates(caps), nvidia_target(caps), rows_of);
}
std::vector<Choice> backward_mma(const Request& request, const device::AmdCaps& caps, const RowsOf& rows_of) {
  return choices_of(request, caps, nullptr, amd_target(caps.architecture), rows_of);
}

BackwardSchedule backward_mma_schedule(const AttentionProblem& problem, const BackwardMmaConfig& pass,
                                       const BlockMask* block_mask) {
  BackwardSchedule schedule = backward_schedule(problem, rows_of_pass(pass), pass.tile(), false, block_mask);
  if (pass.all_sequences) schedule.items = beside_each_other(schedule.items, problem.batch);
  return schedule;
}

int backward_mma_ctas(const AttentionProblem& problem, const BackwardMmaConfig& pass, std::int64_t items) {
  return static_cast<int>(pass.all_sequences ? items / problem.batch : items) * pass.ctas_of_item();
}

bool adds_queries(const BackwardMmaKernels& kernels) {
  return !kernels.passes.empty() && kernels.passes.front().adds_d_q;
}
int stored_queries_threads(const BackwardMmaKernels& kernels) {
  const shared::Fragments shape = kernels.passes.front().shape();
  return shared::kBackwardBlock / shape.rows * shape.wave;
}
bool clears_sums(const BackwardMmaKernels& kernels) { return kernels.sum_elements > 0 || adds_queries(kernels); }

bool has_spans(const BackwardMmaKernels& kernels) {
  return !kernels.passes.empty() && kernels.passes.front().by_sequence;
}

shared::BackwardListsMemory backward_mma_lists(const AttentionProblem& problem) {
  return shared::backward_lists_memory(problem.batch, count_row_blocks(problem), 0);
}

BackwardMmaWorkspace backward_mma_workspace(const AttentionProblem& problem, const BackwardMmaKernels& kernels) {
  const std::int64_t blocks = count_row_blocks(problem) * problem.q_heads;
  BackwardMmaWorkspace workspace{};
  const bool softmax = kernels.rows.normalizer == shared::Normalizer::softmax;
  const std::int64_t real = shared::real_bytes(kernels.rows.storage);
  workspace.sinks = softmax ? aligned(blocks * shared::portable_numbers(kernels.rows.lse_rest) * real) : 0;
  workspace.lists = workspace.sinks + (kernels.rows.sinks ? aligned(blocks * real) : 0);
  workspace.sums = workspace.lists + (problem.device_lengths ? aligned(backward_mma_lists(problem).bytes) : 0);
  workspace.largest = workspace.sums + aligned(kernels.sum_elements * real);
  workspace.integers = workspace.largest + aligned(std::int64_t{kernels.ordered_sums} * 8);
  const int words = kernels.ordered_sums > 0 ? shared::words_of_integers(static_cast<int>(real)) : 0;
  workspace.d_q = workspace.integers + aligned(kernels.sum_elements * words * 8);
  workspace.copies = workspace.d_q;
  if (adds_queries(kernels)) workspace.copies += aligned(blocks * shared::d_q_floats(kernels.passes.front()) * 4);
  workspace.bytes = workspace.copies + aligned(kernels.copies.bytes);
  return workspace;
}

}  // namespace heddle::plan
