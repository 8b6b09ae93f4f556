#include "kernels/cuda/emulated_backward.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "backend/gpu/backward_sequences.h"
#include "backend/gpu/sequence_spans.h"
#include "backend/gpu/set_mod_values.h"
#include "families/backward_sm90/backward_reads_launch.h"
#include "families/backward_sm90/backward_reads_text.h"
#include "families/backward_sm90/backward_sm90.h"
#include "families/backward_sm90/backward_sm90_arguments.h"
#include "families/backward_sm90/shared/backward_wide_memory.h"
#include "families/backward_sm90/tile_shares.h"
#include "kernels/cuda/planned_backward.h"
#include "plan/hopper/sm90_chip.h"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

// As emulated/ptx/tma.cuh has it.
struct Map {
  const char* base;
  long long extents[5], steps[5];
  int rank, box_rows;
};
struct alignas(64) MapBytes {
  char opaque[128];
};

std::string contents(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::shared_ptr<void> load(const std::string& text) {
  static std::map<std::string, std::shared_ptr<void>> known;
  std::shared_ptr<void>& library = known[text];
  if (library) return library;
  const fs::path stem = fs::path(HEDDLE_BUILD_DIR) / fmt::format("emulated-{}-{}", getpid(), known.size());
  const std::string source = stem.string() + ".cc", object = stem.string() + ".so", log = stem.string() + ".log";
  std::ofstream(source) << text;
  const std::string command = fmt::format("{} -o '{}' '{}' >'{}' 2>&1", HEDDLE_KERNEL_COMPILER, object, source, log);
  if (std::system(command.c_str()) != 0) throw std::runtime_error(command + "\n" + contents(log));
  void* handle = dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  for (const std::string& file : {source, object, log}) fs::remove(file);
  library = {handle, dlclose};
  return library;
}

constexpr const char* kProducts = R"(namespace heddle {
inline void score_product(float (&d)[32], unsigned long long a, unsigned long long b, int accumulate) {
  ptx::ask({d, nullptr, a, b, accumulate != 0, 64, false});
}
inline void held_score_product(float (&d)[32], const unsigned* a, unsigned long long b, int accumulate) {
  ptx::ask({d, a, 0, b, accumulate != 0, 64, false});
}
template <int kCount>
void gradient_product(float (&d)[kCount], const unsigned* a, unsigned long long b, int accumulate) {
  ptx::ask({d, a, 0, b, accumulate != 0, 2 * kCount, true});
}
template <int kCount>
void query_product(float (&d)[kCount], unsigned long long a, unsigned long long b, int accumulate) {
  ptx::ask({d, nullptr, a, b, accumulate != 0, 2 * kCount, true});
}
}  // namespace heddle
)";
constexpr const char* kRunMain = R"(
constexpr int kCtas = heddle::kConfig.tile_ctas();  // of a cluster
alignas(1024) char dynamic[kCtas * emulated::Cta::kSharedBytes];
extern "C" void run(const heddle::ptx::TensorMap* maps, const heddle::shared::BackwardSm90Params* params, int ctas,
                    bool together, unsigned seed) {
  const auto prepare = [](emulated::Cta& cta) {
    cta.multiply = [](auto& group) { heddle::ptx::multiply(heddle::kConfig.f16, group); };
  };
  const auto kernel = [&] { backward_sm90(maps[0], maps[1], maps[2], maps[3], *params); };
  if (together) return emulated::run_together(ctas, heddle::kConfig.threads(), dynamic, seed, prepare, kernel);
  for (int block = ctas - kCtas; block >= 0; block -= kCtas) {
    emulated::block_index = {static_cast<unsigned>(block), 0};
    emulated::Cta cta(heddle::kConfig.threads(), dynamic, seed + block, kCtas);
    cta.make_current();
    prepare(cta);
    cta.run(kernel);
  }
}
)";
constexpr const char* kRunLists = R"(
char shared_memory[emulated::Cta::kSharedBytes];
extern "C" void run(const heddle::shared::SequencesParams* sequences, const heddle::shared::BackwardListsParams* lists,
                    unsigned seed) {
  const auto launch = [&](int ctas, int threads, const auto& kernel) {
    for (int block = ctas - 1; block >= 0; --block) {
      emulated::block_index = {static_cast<unsigned>(block), 0};
      emulated::Cta cta(threads, shared_memory, seed + block);
      cta.make_current();
      cta.run(kernel);
    }
  };
  const int threads = heddle::shared::kBackwardListThreads;
  launch(1, heddle::shared::kSpanThreads, [&] { place_sequences(*sequences); });
  launch(lists->count, threads, [&] { list_backward_blocks(*lists); });
  launch((lists->item_count + threads - 1) / threads, threads, [&] { list_backward_tiles(*lists); });
  if (lists->packed) launch(lists->count + 1, threads, [&] { fill_backward_gaps(*lists); });
}
)";
constexpr const char* kRunReads = R"(
alignas(1024) char dynamic[emulated::Cta::kSharedBytes];
extern "C" void run(const heddle::ptx::TensorMap* maps, const heddle::shared::BackwardSm90Params* params,
                    const heddle::shared::BackwardReadsParams* reads, int ctas, unsigned seed) {
  for (int block = ctas - 1; block >= 0; --block) {
    emulated::block_index = {static_cast<unsigned>(block), 0};
    emulated::Cta cta(heddle::kConfig.threads(), dynamic, seed + block);
    cta.make_current();
    cta.multiply = [](auto& group) { heddle::ptx::multiply(heddle::kConfig.f16, group); };
    cta.run([&] { backward_reads(maps[0], maps[1], maps[2], maps[3], *params, *reads); });
  }
}
)";
constexpr const char* kRunSums = R"(
char shared_memory[emulated::Cta::kSharedBytes];
extern "C" void run(const heddle::shared::BackwardSm90Params* params, const heddle::shared::BackwardReadsParams* reads,
                    int kernel, int ctas, int shares, unsigned seed) {
  for (int share = 0; share < shares; ++share) {
    for (int block = ctas - 1; block >= 0; --block) {
      emulated::block_index = {static_cast<unsigned>(block), static_cast<unsigned>(share)};
      emulated::Cta cta(heddle::shared::kReadThreads, shared_memory, seed + block);
      cta.make_current();
      cta.run([&] {
        if (kernel == 0) clear_reads(*reads);
        if (kernel == 1) collect_reads(*params, *reads, shares);
        if (kernel == 2) scatter_reads(*params, *reads, shares);
        if (kernel == 3) store_reads(*reads);
      });
    }
  }
}
)";
constexpr const char* kRunRows = R"(
char shared_memory[emulated::Cta::kSharedBytes];
extern "C" void run(const heddle::shared::BackwardRowsParams* params, int kernel, int blocks, int heads,
                    unsigned seed) {
  for (int head = 0; head < heads; ++head) {
    for (int block = 0; block < blocks; ++block) {
      emulated::block_index = {static_cast<unsigned>(block), static_cast<unsigned>(head)};
      emulated::Cta cta(kernel == 2 ? 32 : heddle::shared::kRowThreads, shared_memory, seed + block);
      cta.make_current();
      const auto run = kernel == 0 ? backward_rows : kernel == 1 ? backward_d_q : backward_sinks;
      cta.run([&] { run(*params); });
    }
  }
}
)";

/// With the products of an emulated CTA in the place of the generated ones.
std::string main_text(const std::string& source, const char* run) {
  const std::string begin = "namespace heddle {\n\n__device__ __forceinline__ void score_product(",
                    end = "}  // namespace heddle\n";
  const std::size_t from = source.find(begin), to = source.find(end, from) + end.size();
  if (from == std::string::npos) throw std::runtime_error("no products in the text");
  return "#define __shared__\n" + source.substr(0, from) + kProducts + source.substr(to) + run;
}
std::string rows_text(const std::string& source) {
  return "#define __shared__ static\n#include \"mods/instructions.cuh\"\n" + source + kRunRows;
}

std::string lists_text(const std::string& source) {
  return "#define __shared__ static\n#include \"mods/instructions.cuh\"\n" + source + kRunLists;
}

/// Does the work of a launcher's list kernels before a run.
void write_lists(const problem::AttentionProblem& problem, const shared::BackwardSm90Config& config,
                 const backend::RunArguments& arguments, const plan::BackwardSchedule& schedule,
                 backward_sm90::BackwardConstants& constants, unsigned seed) {
  constants.main.tiles = static_cast<int>(schedule.items.size());
  gpu::BackwardSequencesParams params =
      backward_sm90::backward_sequences_params(problem, config, constants, std::ssize(schedule.blocks));
  backward_sm90::set_lists_to_read(arguments, problem, config, params, constants);
  using Run = void (*)(const shared::SequencesParams*, const shared::BackwardListsParams*, unsigned);
  const auto library =
      load(lists_text(gpu::cuda_dialect().source("backward_lists", gpu::kBackwardListsText, "sm_90a").text));
  reinterpret_cast<Run>(dlsym(library.get(), "run"))(&params.sequences, &params.lists, seed);
}

MapBytes map_of(ConstTensorView tensor, const problem::AttentionProblem& problem, bool by_sequence, int box_rows,
                long long longest) {
  Map map{};
  if (problem.packed) tensor = gpu::by_sequence(tensor, problem.batch);
  const auto step = [&](int axis) { return tensor.strides[axis] * size_of(tensor.dtype); };
  map.base = static_cast<const char*>(tensor.data);
  map.box_rows = box_rows;
  if (by_sequence) {
    map.rank = 5;
    map.base -= longest * step(2);
    const long long extents[5] = {tensor.shape[3], longest, tensor.shape[2] + 1, tensor.shape[1], tensor.shape[0]};
    const long long steps[5] = {2, step(2), step(2), step(1), step(0)};
    std::memcpy(map.extents, extents, sizeof extents);
    std::memcpy(map.steps, steps, sizeof steps);
  } else {
    map.rank = 4;
    const long long extents[4] = {tensor.shape[3], tensor.shape[2], tensor.shape[1], tensor.shape[0]};
    const long long steps[4] = {2, step(2), step(1), step(0)};
    std::memcpy(map.extents, extents, sizeof extents);
    std::memcpy(map.steps, steps, sizeof steps);
  }
  MapBytes bytes{};
  std::memcpy(&bytes, &map, sizeof map);
  return bytes;
}

/// Configurations in which a warpgroup of its own computes dQ, if there are some and they are asked for; else the
/// others.
std::vector<shared::BackwardSm90Config> configs_for(const PlannedBackward& planned, bool d_q_apart) {
  std::vector<shared::BackwardSm90Config> configs;
  for (const plan::Choice& choice : planned.choices) configs.push_back(choice.plan.part<shared::BackwardSm90Config>());
  std::erase_if(configs, [](const shared::BackwardSm90Config& config) { return config.d_q_apart; });
  std::vector<shared::BackwardSm90Config> apart = plan::with_d_q_apart(configs.front());
  return d_q_apart && !apart.empty() ? apart : configs;
}

struct Reads {
  const backend::PrepareArguments& prepared;
  const backend::RunArguments& arguments;
  const plan::BackwardMods& mods;
  const plan::BackwardReads& reads;
  const device_text::ModLayout& layout;
  const plan::BackwardSchedule& schedule;
};

/// Does the launcher's work for gradients of captures and params.
void sum_reads(const Reads& at, const MapBytes (&maps)[4], const backward_sm90::BackwardConstants& constants,
               unsigned seed) {
  const problem::AttentionProblem& problem = at.prepared.problem;
  const BackwardTensors& tensors = *at.arguments.backward;
  const shared::BackwardSm90Config main = at.prepared.plan.part<shared::BackwardSm90Config>(),
                                   config = plan::reads_config(main, at.reads);
  shared::BackwardReadsParams params = backward_sm90::backward_reads_params(at.prepared, at.reads, constants);
  params.ctas = 3;
  if (!problem.device_lengths) params.first_blocks = at.schedule.first_blocks.data();
  char* memory = static_cast<char*>(at.arguments.workspace) + plan::backward_sm90_workspace(problem, main).bytes;
  backward_sm90::set_reads(at.arguments, at.reads, plan::backward_reads_memory(problem, at.reads), memory, constants,
                           params);
  const std::vector<shared::StorageType> types = backward_sm90::types_of_reads(at.reads, tensors);
  using RunSums =
      void (*)(const shared::BackwardSm90Params*, const shared::BackwardReadsParams*, int, int, int, unsigned);
  const auto sums = load("#include \"mods/instructions.cuh\"\n" +
                         backward_sm90::sums_source(config, at.reads, types, at.layout).text + kRunSums);
  const auto run_sums = reinterpret_cast<RunSums>(dlsym(sums.get(), "run"));
  run_sums(&constants.main, &params, 0, params.ctas, 1, seed);
  if (at.reads.visits_pairs()) {
    using RunPass =
        void (*)(const MapBytes*, const shared::BackwardSm90Params*, const shared::BackwardReadsParams*, int, unsigned);
    const auto pass =
        load(main_text(backward_sm90::reads_source(config, at.mods, at.reads, types, at.layout).text, kRunReads));
    for (const backward_sm90::ReadRound& round : backward_sm90::rounds_of(problem, at.reads)) {
      params.round_batch = round.batch;
      params.round_head = round.head;
      reinterpret_cast<RunPass>(dlsym(pass.get(), "run"))(maps, &constants.main, &params,
                                                          static_cast<int>(at.schedule.items.size()), seed);
    }
  }
  const backward_sm90::ReadGrid grid = backward_sm90::read_grid(problem);
  for (const int kernel : {1, 2}) {
    run_sums(&constants.main, &params, kernel, static_cast<int>(grid.ctas), static_cast<int>(grid.shares), seed);
  }
  run_sums(&constants.main, &params, 3, params.ctas, 1, seed);
}

/// The fewest slots, and no time for tiles to end before others convert their units.
void shrink(plan::DqRingShape& ring) {
  ring.bundle = 1;
  ring.last = std::min<std::int64_t>(ring.sections - 1, 1);
  ring.slots = std::min<std::int64_t>(ring.in_turns(), 2);
}

/// Cuts each tile into shares of which the last ones have a step each.
void cut(int shares, plan::BackwardSm90Schedule& schedule) {
  const std::vector<shared::BackwardItem> whole = std::exchange(schedule.items, {});
  for (const shared::BackwardItem& item : whole) {
    const int count = std::min(shares, item.steps);
    for (int i = 0; i < std::max(count, 1); ++i) {
      shared::BackwardItem share = item;
      if (count > 1) {
        const int first = i == 0 ? 0 : item.steps - count + i;
        share = plan::share_of(item, first, i == 0 ? item.steps - count + 1 : 1, schedule);
        share.share = shared::share_word(schedule.share_places, i, count);
      }
      schedule.items.push_back(share);
    }
    if (count > 1) schedule.share_places += count;
  }
}

}  // namespace

void run_emulated_backward(const BackwardTensors& tensors, const AttentionOptions& options, const EmulatedRun& run) {
  const PlannedBackward planned = plan_backward(tensors, options, run.device_lengths);
  const problem::AttentionProblem& problem = planned.problem;
  const AttentionTensors forward = problem::forward_tensors(tensors);
  const plan::Choice& choice = planned.choices.front();
  plan::Plan plan = choice.plan;
  const std::vector<shared::BackwardSm90Config> configs = configs_for(planned, run.d_q_apart);
  shared::BackwardSm90Config config = run.last_choice ? configs.back() : configs.front();
  if (config.wide && run.other_loads) config.shared_loads = !config.shared_loads;
  const bool cuts = run.shares > 0 && plan::takes_shares(problem, config);
  if (cuts) config.ring = config.shares = false;
  if (run.ring) config.ring = *run.ring && config.has_converters() && plan::takes_d_q_ring(problem, config);
  EXPECT_LE(shared::backward_shared_bytes(config), plan::kSm90SharedMemory);  // kSharedBytes is more
  plan.family_part = config;
  const plan::BackwardMods mods = plan::backward_sm90_mods(problem, config);
  plan::BackwardReads reads = plan::backward_reads(problem, options.bindings, mods.kv_start);
  reads.apart = reads.apart && !run.mixed_partials;
  const device_text::ModLayout layout = backward_sm90::backward_layout(mods, reads);

  const backend::PrepareArguments prepared = {
      problem, plan, forward, options, options.bindings, choice.block_mask.get(), &tensors};
  backward_sm90::BackwardConstants own = backward_sm90::backward_constants(prepared);
  plan::DqRingShape ring = plan::d_q_ring_shape(problem, config);
  if (run.small_ring) shrink(ring);
  plan::BackwardSm90Schedule schedule =
      plan::backward_sm90_schedule(problem, config, choice.block_mask.get(), plan.multiprocessors, ring);
  if (cuts) {
    cut(run.shares, schedule);
    config.shares = true;
  }
  if (run.small_ring) backward_sm90::set_ring(ring, prepared, own);
  const std::vector<shared::SequenceSpan> spans = gpu::spans_of(problem);
  own.main.items = schedule.items.data();
  own.main.runs = schedule.runs.data();
  own.main.ranks = schedule.ranks.data();
  own.rows.blocks = schedule.blocks.data();
  own.rows.block_count = static_cast<int>(schedule.blocks.size());
  own.main.ring.turns = schedule.turns.data();
  own.main.ring.blocks = schedule.blocks.data();
  own.main.mod.sequences = spans.data();
  const std::int64_t bytes = plan::backward_sm90_workspace(problem, config).bytes;
  plan.workspace_bytes = bytes + plan::backward_reads_memory(problem, reads).bytes +
                         plan::tile_shares_memory(config, schedule.share_places).bytes;
  std::vector<float> workspace(static_cast<std::size_t>(plan.workspace_bytes) / 4 + 64);
  std::memset(workspace.data(), 0xff, workspace.size() * 4);
  void* aligned = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(workspace.data()) + 127) / 128 * 128);
  const backend::RunArguments arguments = {forward, &options, &options.bindings, choice.block_mask.get(),
                                           aligned, nullptr,  &tensors};
  backward_sm90::set_addresses(arguments, problem, config, own);
  backward_sm90::set_shares(config, schedule.share_places, static_cast<char*>(aligned) + bytes, own);
  Bindings starts;
  std::vector<std::int32_t> kv_starts;  // where the host knows them
  for (const Sequence& sequence : problem.sequences) kv_starts.push_back(static_cast<std::int32_t>(sequence.kv_start));
  if (mods.kv_start.form == plan::KvStart::Form::param) starts.params[plan::kKvStartName] = kv_starts.front();
  if (mods.kv_start.form == plan::KvStart::Form::capture) {
    starts.captures[plan::kKvStartName] =
        problem.device_kv_starts ? *options.kv_start
                                 : ConstTensorView(kv_starts.data(), DType::i32, Dims{std::ssize(kv_starts)}, Dims{1});
  }
  gpu::set_mod_values(layout, options.bindings, starts, own.main.mod);

  using RunMain = void (*)(const MapBytes*, const shared::BackwardSm90Params*, int, bool, unsigned);
  using RunRows = void (*)(const shared::BackwardRowsParams*, int, int, int, unsigned);
  const auto main_library = load(main_text(backward_sm90::main_source(config, mods, layout).text, kRunMain)),
             rows_library = load(rows_text(backward_sm90::rows_source(config).text));
  const auto run_main = reinterpret_cast<RunMain>(dlsym(main_library.get(), "run"));
  const auto run_rows = reinterpret_cast<RunRows>(dlsym(rows_library.get(), "run"));
  const auto map = [&](const ConstTensorView& tensor, bool keys) {
    return map_of(tensor, problem, config.by_sequence, keys ? config.cta_keys() : shared::kStepQueries,
                  keys ? own.main.tensors.kv_len : own.main.tensors.q_len);
  };
  const MapBytes maps[4] = {map(tensors.q, false), map(tensors.k, true), map(tensors.v, true), map(tensors.d_o, false)};
  const int blocks = own.rows.block_count, heads = own.main.q_heads;
  if (config.device_lengths) write_lists(problem, config, arguments, schedule, own, run.seed);
  run_rows(&own.rows, 0, blocks, heads, run.seed);
  // Fewer CTAs than tiles: they draw.
  own.main.tiles = static_cast<int>(schedule.items.size());
  own.main.ctas = schedule.blocks.empty() || !config.draws() ? own.main.tiles : (own.main.tiles + 1) / 2;
  const bool of_rows = problem.wanted.q || problem.wanted.k || problem.wanted.v;
  if (of_rows) {
    const bool together = config.ordered || config.ring || run.together;
    run_main(maps, &own.main, own.main.ctas * config.tile_ctas(), together, run.seed);
  }
  if (reads.any()) {
    sum_reads({prepared, arguments, mods, reads, layout, schedule}, maps, own, run.seed);
  }
  if (config.d_q && !config.ring) run_rows(&own.rows, 1, blocks, heads, run.seed);
  if (config.sinks) run_rows(&own.rows, 2, heads, 1, run.seed);
}

}  // namespace heddle::test
