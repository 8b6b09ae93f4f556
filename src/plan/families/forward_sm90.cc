#include "plan/families/forward_sm90.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "base/environment.h"
#include "expr/node.h"
#include "heddle/error.h"
#include "plan/families/forward_sm90_access.h"
#include "plan/families/forward_sm90_copies.h"
#include "plan/families/forward_sm90_costs.h"
#include "plan/families/forward_sm90_mods.h"
#include "plan/families/forward_sm90_packed.h"
#include "plan/families/forward_sm90_stored.h"
#include "plan/families/forward_sm90_streamed.h"
#include "shared/sequences.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;
using shared::ForwardSm90Config;

constexpr std::int64_t kTicketBytes = shared::kLineBytes;  // for one TicketWord

// A packed kernel's predicted time has to be so many times shorter for it to be taken, and where the group's heads
// leave a warpgroup idle so many times more: neither was measured.
constexpr double kPackingGain = 1.05, kIdleGain = 1.1;
// And one that reads copies of pages, for which a caller has to find memory.
constexpr double kCopyGain = 1.05;
// A capture that is read element by element makes a kernel take 3 to 5 times as long; one in tiles 1.3 to 1.7 times.
constexpr double kElementReads = 2.5;
// And a spare kernel's, where a mask's bits are stored: its finer blocks may leave out more, but the table's partial
// steps are dearer than these are in any kernel.
constexpr double kSpareGain = 1.1;

std::string describe(const ForwardSm90Config& config) {
  if (config.packs()) {
    return fmt::format("{} x {} keys, {} warpgroups", describe_packed(config), config.kv_block, config.warpgroups);
  }
  return fmt::format("{} queries x {} keys, {} warpgroups", config.rows(), config.kv_block, config.warpgroups);
}
/// The same, and of pages whether they are copied, or their rows gathered.
std::string describe(const Plan& plan) {
  const bool copied = plan.copies[1] && plan.copies[1]->paged;
  const std::string_view rows = copied ? ", of copied pages" : plan.sm90->gathers() ? ", of gathered rows" : "";
  return fmt::format("{}{}", describe(*plan.sm90), rows);
}

shared::Fp8 fp8_of(DType dtype) {
  if (dtype == DType::e4m3) return shared::Fp8::e4m3;
  return dtype == DType::e5m2 ? shared::Fp8::e5m2 : shared::Fp8::none;
}

/// Whether a capture comes in tiles.
struct Streaming {
  bool streams = false;
  std::optional<TensorCopy> copy{};  // of which they come
  std::string reason{};              // why there is a copy, or why they do not come
};
Streaming streaming_of(const AttentionProblem& problem, const ForwardSm90Mods& mods, const Bindings& bindings) {
  // In 8 bits the warp that would load the tiles transposes values.
  if (!mods.streamed || size_of(problem.q_dtype) == 1) return {};
  const ConstTensorView& view = bindings.captures.at(mods.streamed->capture);
  if (view.count() == 0) return {};
  if (std::string reason = refuses_copy(*mods.streamed, view); !reason.empty()) return {.reason = std::move(reason)};
  std::string reason = refuses_streaming(*mods.streamed, view);
  if (reason.empty()) return {.streams = true};
  const TensorCopy copy = copy_for(in_tiles(*mods.streamed, view, tile_reach(problem)));
  const std::int64_t most = most_copy_bytes();
  if (copy.bytes() <= most) return {.streams = true, .copy = copy, .reason = std::move(reason)};
  return {.reason = fmt::format("{}; a copy would take {} bytes, and up to {} are taken ({})", reason, copy.bytes(),
                                most, base::name_of(base::Option::copy_bytes))};
}

shared::Normalizer normalizer_of(const AttentionProblem& problem) {
  switch (problem.normalizer) {
    case Normalizer::softmax:
      return shared::Normalizer::softmax;
    case Normalizer::none:
      return shared::Normalizer::none;
    case Normalizer::sigmoid:
      break;
  }
  return shared::Normalizer::sigmoid;
}

/// `packed`: queries of each of several heads; or 0.
ForwardSm90Config config_for(const ForwardSm90Kernel& kernel, const AttentionProblem& problem,
                             const ForwardSm90Mods& mods, const ForwardSm90Access& access, bool streams, int packed) {
  ForwardSm90Config config = kernel.config(static_cast<int>(problem.qk_dim), static_cast<int>(problem.v_dim));
  config.packed_queries = packed;
  config.f16 = problem.q_dtype == DType::f16;
  config.q_fp8 = fp8_of(problem.q_dtype);
  config.k_fp8 = fp8_of(problem.k_dtype);
  config.v_fp8 = fp8_of(problem.v_dtype);
  if (config.fp8()) config.weight_exponent = forward_sm90_weight_exponent(problem, mods);
  config.lse = problem.with_lse;
  config.by_sequence = problem.page_rows > 0 || problem::sequences_differ(problem);
  config.device_lengths = problem.device_lengths;
  config.sinks = problem.with_sinks;
  config.normalizer = normalizer_of(problem);
  config = access.in(config_with(config, mods));
  return streams ? with_streamed_tiles(config, mods.streamed->dtype).value_or(config) : config;
}

// Empty when a warpgroup's queries and the tile's keys divide the blocks of the caller's mask, if there is one, a step
// has bits for the number of any block of keys, and shared memory has room for what the mods tabulate.
std::string misfit(const ForwardSm90Config& config, const AttentionProblem& problem, const BlockMask* callers) {
  const std::int64_t last_key = std::int64_t{shared::kMaxKvBlocks} * config.kv_block;
  if (problem.kv_rows > last_key) return fmt::format("takes up to {} rows of k", last_key);
  const int bytes = shared::forward_sm90_memory(config).bytes;
  if (bytes > shared::kSm90SharedMemory) {
    return fmt::format("needs {} bytes of shared memory of {}", bytes, shared::kSm90SharedMemory);
  }
  if (config.gathers() && config.warpgroups == 3) {
    return fmt::format("gathers rows, which takes more than the {} registers of its producer",
                       config.producer_registers());
  }
  if (config.packs()) {
    if (std::string reason = refuses_packing(config, problem, callers); !reason.empty()) return reason;
  }
  if (callers == nullptr) return {};
  const BlockSize block = callers->block();
  if (block.q % shared::kWarpgroupRows != 0) {
    return fmt::format("a warpgroup's {} queries do not divide the {} of a block of block_mask", shared::kWarpgroupRows,
                       block.q);
  }
  if (block.kv % config.kv_block != 0) {
    return fmt::format("{} keys do not divide the {} of a block of block_mask", config.kv_block, block.kv);
  }
  return {};
}

// Registers that hold what a mod computes before its scores are told apart: addresses and values of reads, the steps
// of divisions and of draws. Comparisons and sums of the indices take their turn in the same few. Fitted to what
// bench_forward_sm90_registers finds: of 91 kernels one more spills than is expected.
int mod_registers(const Expr& mod, const expr::Node* streamed) {
  constexpr int kRead = 3, kDivision = 2, kDraw = 7;
  if (mod.empty()) return 0;
  int registers = 0;
  for (const expr::Node* node : expr::post_order(mod)) {
    switch (node->op) {
      case expr::Op::read:
      case expr::Op::at:
        registers += node == streamed ? 0 : kRead;
        break;
      case expr::Op::floor_div:
      case expr::Op::mod:
        registers += kDivision;
        break;
      case expr::Op::random_uniform:
        registers += kDraw;
        break;
      default:
        break;
    }
  }
  return registers;
}

double moved_bytes(const AttentionProblem& problem) {
  std::int64_t rows = 0, keys = 0;
  for (const Sequence& sequence : problem.sequences) {
    rows += sequence.q_len;
    keys = problem.shared_kv ? std::max(keys, sequence.kv_len) : keys + sequence.kv_len;
  }
  const std::int64_t row_bytes =
      problem.qk_dim * size_of(problem.q_dtype) + problem.v_dim * size_of(problem.o_dtype) + (problem.with_lse ? 4 : 0);
  const std::int64_t key_bytes = problem.qk_dim * size_of(problem.k_dtype) + problem.v_dim * size_of(problem.v_dtype);
  const std::int64_t bytes = rows * problem.q_heads * row_bytes + keys * problem.kv_heads * key_bytes;
  return static_cast<double>(bytes);
}

struct Candidate {
  Choice choice;
  bool may_spill = false;
  bool weighs_each = false;  // though others only drop
  bool masks_each = false;   // though others have its bits stored
  bool reads_each = false;   // element of a capture, though of others it comes in tiles
  bool copies_more = false;  // of pages than others
  double computing = 0;      // seconds, however long memory takes
  StoredBlocks stored;       // of the mask
  double seconds() const { return choice.plan.predicted->seconds; }
  /// That the others' are held against.
  double weighed_seconds() const {
    const ForwardSm90Config& config = *choice.plan.sm90;
    const double gain = copies_more ? kCopyGain : 1;
    if (config.stores_mask() && is_spare(config)) return seconds() * gain * kSpareGain;
    if (!config.packs()) return seconds() * gain;
    const bool idles = choice.plan.packed_heads <= (config.warpgroups - 1) * config.warpgroup_heads();
    return seconds() * gain * kPackingGain * (idles ? kIdleGain : 1);
  }
};

Candidate plan_for(const AttentionProblem& problem, const ForwardSm90Config& config, const ForwardSm90Mods& mods,
                   const ForwardSm90Access& access, const Bindings& bindings, const device::CudaCaps& caps,
                   const RowsOf& rows_of) {
  Candidate candidate;
  Plan& plan = candidate.choice.plan;
  plan.backend = BackendChoice::cuda;
  plan.family = "forward_sm90";
  plan.tile = {config.rows(), config.kv_block};
  plan.device = caps.index;
  plan.sm90 = config;
  if (config.packs()) plan.packed_heads = static_cast<int>(std::min<std::int64_t>(config.heads(), problem.group()));
  plan.order.batch_inside =
      config.streamed_bytes > 0 && mods.streamed->serves_every_batch(bindings.captures.at(mods.streamed->capture));
  candidate.choice.block_mask = rows_of({shared::kWarpgroupRows, config.kv_block});

  TileSchedule schedule = forward_sm90_schedule(problem, config, candidate.choice.block_mask.get(), caps, plan.order);
  const double bytes =
      moved_bytes(problem) + static_cast<double>(shared::stored_bytes(schedule.stored.places, config.warpgroups));
  candidate.computing = forward_sm90_seconds(schedule);
  if (mods.streamed && config.streamed_bytes == 0) candidate.computing *= kElementReads;
  plan.grid = schedule.grid;
  plan.multiprocessors = caps.multiprocessors;
  // Other bindings may make any tile attend something.
  const std::int64_t tiles = forward_sm90_tiles(problem, config);
  plan.workspace_bytes = tiles > caps.multiprocessors ? kTicketBytes : 0;
  if (config.device_lengths) plan.workspace_bytes = shared::sequences_memory(problem.batch, tiles).bytes;
  plan.predicted = {
      .seconds = std::max(candidate.computing, bytes / kSm90Rates.memory_bytes_per_second),
      .flops = 2.0 * static_cast<double>(problem.qk_dim + problem.v_dim) * static_cast<double>(schedule.elements),
      .bytes = bytes};
  plan.access = access.reasons;
  add_copies(plan, problem, access.copies);
  candidate.stored = std::move(schedule.stored);
  candidate.may_spill = forward_sm90_registers(config, mods) > config.consumer_registers();
  candidate.weighs_each = mods.drops && !config.dropped;
  candidate.masks_each = mods.stores_mask && config.mask == shared::MaskForm::direct;
  return candidate;
}

/// The table's, and where a capture of f32 is streamed those that are for it alone.
std::vector<ForwardSm90Kernel> kernels_for(const ForwardSm90Mods& mods, bool streams, bool fp8) {
  const std::span<const ForwardSm90Kernel> table = forward_sm90_kernels(fp8), wide = kForwardSm90WideCaptureKernels;
  std::vector<ForwardSm90Kernel> kernels(table.begin(), table.end());
  if (streams && mods.streamed->dtype == DType::f32) {
    kernels.insert(kernels.end(), wide.begin(), wide.end());
  }
  return kernels;
}

/// The kernels whose tiles divide the caller's blocks; where queries are few, each packed, too. The spare ones come
/// only where no other fits, or where mods compute enough for each element, or o of 8-bit products is stored in such a
/// way, that the compiler may refuse all others; and where the mask's bits are stored, for their finer blocks.
std::vector<ForwardSm90Config> configs_for(const AttentionProblem& problem, const ForwardSm90Mods& mods,
                                           const ForwardSm90Access& access, bool streams,
                                           const AttentionOptions& options, std::vector<std::string>& rejected) {
  const bool fp8 = size_of(problem.k_dtype) == 1;
  const HeadDims native = native_dims({static_cast<int>(problem.qk_dim), static_cast<int>(problem.v_dim)}, fp8);
  std::vector<int> packed = packed_queries(problem);
  packed.insert(packed.begin(), 0);  // one head's
  std::vector<ForwardSm90Config> configs;
  for (const bool spare : {false, true}) {
    if (spare && !configs.empty() && !mods.heavy() && !mods.stores_mask && !(fp8 && access.odd_o)) break;
    for (const ForwardSm90Kernel& kernel : kernels_for(mods, streams, fp8)) {
      if (!(dims_of(kernel) == native) || kernel.spare != spare) continue;
      for (const int queries : packed) {
        const ForwardSm90Config config = config_for(kernel, problem, mods, access, streams, queries);
        const std::string reason = misfit(config, problem, options.block_mask.get());
        if (reason.empty()) {
          configs.push_back(config);
        } else {
          rejected.push_back(fmt::format("{}: {}", describe(config), reason));
          if (queries == 0) break;
        }
      }
    }
  }
  if (streams) std::erase_if(configs, [](const ForwardSm90Config& config) { return config.streamed_bytes == 0; });
  return configs;
}

struct Candidates {
  std::vector<Candidate> all;
  std::vector<std::string> rejected;
  /// Of the most that one of them stores of the mask.
  std::int64_t stored_bytes() const {
    std::int64_t most = 0;
    for (const Candidate& candidate : all) {
      most = std::max<std::int64_t>(
          most, shared::stored_bytes(candidate.stored.places, candidate.choice.plan.sm90->warpgroups));
    }
    return most;
  }
};

Candidates candidates_for(const AttentionProblem& problem, const ForwardSm90Mods& mods,
                          const ForwardSm90Accesses& accesses, const AttentionOptions& options,
                          const device::CudaCaps& caps, const RowsOf& rows_of) {
  Candidates candidates = {.all = {}, .rejected = accesses.rejected};
  const Streaming streaming = streaming_of(problem, mods, options.bindings);
  std::int64_t least = std::numeric_limits<std::int64_t>::max();  // that some way copies of q, k and v
  for (const ForwardSm90Access& access : accesses.ways) least = std::min(least, room_of(access.copies));
  bool copies_more = false;
  const auto add = [&](const ForwardSm90Access& access, bool streams) {
    const std::size_t before = candidates.all.size();
    for (const ForwardSm90Config& config : configs_for(problem, mods, access, streams, options, candidates.rejected)) {
      candidates.all.push_back(plan_for(problem, config, mods, access, options.bindings, caps, rows_of));
      candidates.all.back().reads_each = !streams && streaming.streams;
      candidates.all.back().copies_more = copies_more;
    }
    return candidates.all.size() > before;
  };
  for (const ForwardSm90Access& access : accesses.ways) {
    copies_more = room_of(access.copies) > least;
    // Element by element, a capture of all pairs costs several times its tiles, but not what any copy of it does.
    if (streaming.streams && add(streaming.copy ? access.with_copy(*streaming.copy, streaming.reason) : access, true) &&
        !streaming.copy) {
      continue;
    }
    add(access.because(streaming.reason), false);
  }
  // Ways that differ in what is read reject the same tiles.
  std::vector<std::string> once;
  for (std::string& reason : candidates.rejected) {
    if (std::ranges::find(once, reason) == once.end()) once.push_back(std::move(reason));
  }
  candidates.rejected = std::move(once);
  if (candidates.all.empty()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("no kernel of forward_sm90 fits: {}", fmt::join(candidates.rejected, "; ")));
  }
  return candidates;
}

/// What kernels of 16 bits do faster and those of 8 bits do not.
void append_left_out(const AttentionProblem& problem, const ForwardSm90Mods& mods, std::vector<std::string>& rejected) {
  if (fp8_of(problem.q_dtype) == shared::Fp8::none) return;
  if (mods.streamed) {
    rejected.push_back(fmt::format(
        "tiles of capture '{}', so each element is read: q is {}, and the warp that would load them transposes values",
        mods.streamed->capture, name(problem.q_dtype)));
  }
  if (mods.drops) {
    rejected.push_back(fmt::format("masks of draws, so each is compared: q is {}, and four weights share a register",
                                   name(problem.q_dtype)));
  }
}

// Why `other` stands behind `first`.
std::string compare(const Candidate& other, const Candidate& first, const ForwardSm90Mods& mods) {
  const ForwardSm90Config& config = *other.choice.plan.sm90;
  if (other.weighs_each && !first.weighs_each) {
    return fmt::format("{}: {} does not divide its keys, so draws would be compared one by one",
                       describe(other.choice.plan), shared::kKeysOfDraw);
  }
  if (other.masks_each && !first.masks_each) {
    return fmt::format("{}: words have bits for 128 keys, so the mask would be evaluated for each pair",
                       describe(other.choice.plan));
  }
  if (other.reads_each && !first.reads_each) {
    return fmt::format("{}: would read capture '{}' element by element", describe(other.choice.plan),
                       mods.streamed->capture);
  }
  if (other.may_spill && !first.may_spill) {
    return fmt::format("{}: needs about {} registers of the {} that a thread has", describe(other.choice.plan),
                       forward_sm90_registers(config, mods), config.consumer_registers());
  }
  if (other.seconds() < first.seconds()) {
    return fmt::format("{}: predicted {:.4g} ms, too little faster", describe(other.choice.plan),
                       other.seconds() * 1e3);
  }
  return fmt::format("{}: predicted {:.4g} ms, {:.1f} % slower", describe(other.choice.plan), other.seconds() * 1e3,
                     100 * (other.seconds() / first.seconds() - 1));
}

}  // namespace

int forward_sm90_registers(const ForwardSm90Config& config, const ForwardSm90Mods& mods) {
  constexpr int kOthers = 26;  // fitted like those of mods
  const int scores = config.kv_block / 2, weights = config.kv_block * config.element_bytes() / 8,
            output = config.v_columns() / 2;
  // They take their turns.
  int most = 0;
  const expr::Node* streamed = config.streamed_bytes > 0 ? mods.streamed->read.node() : nullptr;
  for (const Expr& mod : mods.of_kernel(config)) {
    if (!config.dropped || mod.node() != mods.weight.node()) most = std::max(most, mod_registers(mod, streamed));
  }
  // What is done to each score or weight is done to several at once.
  if (config.capped) most += 7;
  if (config.scores == shared::ScoreForm::mapped ||
      (config.scores == shared::ScoreForm::added && streamed == nullptr)) {
    most += 16;
  }
  if (streamed != nullptr) most += 4;
  if (config.weighted) most += 12;
  return scores + weights + output + kOthers + most;
}

std::vector<Choice> forward_sm90(const AttentionProblem& problem, const AttentionTensors& tensors,
                                 const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of) {
  const ForwardSm90Accesses accesses = forward_sm90_accesses(tensors, problem);
  ForwardSm90Mods mods = forward_sm90_mods(problem);
  std::string unstored = refuses_storing(problem, options.block_mask.get());
  mods.stores_mask = masks_by_values(mods) && unstored.empty();
  const RowsOf once = remembering(rows_of);
  Candidates found = candidates_for(problem, mods, accesses, options, caps, once);
  if (std::string reason = refuses_bytes(found.stored_bytes()); !reason.empty()) {
    unstored = std::move(reason);
    mods.stores_mask = false;  // other kernels may then be the better ones
    found = candidates_for(problem, mods, accesses, options, caps, once);
  }
  std::vector<Candidate>& candidates = found.all;
  std::vector<std::string>& rejected = found.rejected;
  for (Candidate& candidate : candidates) {
    Plan& plan = candidate.choice.plan;
    plan.mask = describe_stored_mask(*plan.sm90, mods, candidate.stored, unstored);
  }
  append_left_out(problem, mods, rejected);
  std::ranges::stable_sort(candidates, {}, [](const Candidate& candidate) {
    return std::tuple(candidate.weighs_each, candidate.masks_each, candidate.may_spill, candidate.weighed_seconds(),
                      candidate.computing);
  });

  std::vector<Choice> choices;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    std::vector<std::string>& reasons = candidates[i].choice.plan.rejected;
    reasons = rejected;
    for (std::size_t j = i + 1; j < candidates.size(); ++j) {
      reasons.push_back(compare(candidates[j], candidates[i], mods));
    }
  }
  for (Candidate& candidate : candidates) choices.push_back(std::move(candidate.choice));
  return choices;
}

}  // namespace heddle::plan
