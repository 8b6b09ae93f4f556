#include "kernels/portable/host_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <vector>

#include "backend/gpu/sequence_spans.h"
#include "backend/gpu/set_mod_values.h"
#include "backend/portable/portable_text.h"
#include "engine/deck.h"
#include "expr/interpret.h"
#include "families/decode_mma/decode_mma.h"
#include "families/decode_mma/decode_mma_arguments.h"
#include "families/decode_mma/decode_mma_keys.h"
#include "families/decode_mma/decode_mma_shared_keys.h"
#include "families/decode_mma/shared/decode_mma_memory.h"
#include "heddle/error.h"
#include "kernels/portable/host/described_rows.h"
#include "kernels/portable/host_kernel.h"
#include "kernels/portable/key_poison.h"
#include "sample.h"

namespace heddle::test {
namespace {

using expr::Leaf;
using shared::ForwardMmaConfig;
using Entry = long long (*)(const shared::DecodeMmaBoxParams&, unsigned ctas, unsigned seed);

constexpr const char* kEnd = R"(
#include "{0}"
#include "portable/decode_mma/decode.cuh"
extern "C" long long run_kernel(const heddle::shared::DecodeMmaBoxParams& params, unsigned ctas, unsigned seed) {{
  using namespace heddle;
  lanes::copied_bytes = 0;
  lanes::launch(ctas, kConfig.threads(), kConfig.shape().wave, shared::decode_mma_memory(kConfig).bytes, seed,
                [&](char* memory) {{
    const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
    portable::Decode<kConfig, portable::{1}<kConfig>, GeneratedMods, MaskKeys>(params, memory, cta % params.tiles)
        .run(cta / params.tiles, ctas / params.tiles);
  }});
  return lanes::copied_bytes;
}}
)";

constexpr const char* kSharedKeysEnd = R"(
#include "{0}"
#include "portable/decode_mma/shared_keys.cuh"
extern "C" long long run_kernel(const heddle::shared::DecodeMmaBoxParams& params, unsigned ctas, unsigned seed) {{
  using namespace heddle;
  lanes::copied_bytes = 0;
  lanes::launch(ctas, kConfig.threads(), kConfig.shape().wave, shared::decode_mma_memory(kConfig).bytes, seed,
                [&](char* memory) {{
    const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
    portable::SharedKeys<kConfig, portable::{1}<kConfig>, GeneratedMods, MaskKeys>(params, memory, cta % params.tiles)
        .run(cta / params.tiles, ctas / params.tiles);
  }});
  return lanes::copied_bytes;
}}
)";

/// `architecture`: "900"
std::string text_of(const ForwardMmaConfig& config, const plan::KernelMods& mods, const device_text::ModLayout& layout,
                    const std::string& architecture) {
  return fmt::format("#define __CUDA_ARCH__ {}\n#include \"lanes.h\"\n", architecture) +
         decode_mma::config_and_mods(config, mods, layout) +
         fmt::format(fmt::runtime(config.shares_alone() ? kSharedKeysEnd : kEnd),
                     portable::fragments_header(config.fragments), portable::fragments_class(config.fragments));
}

/// The plan to run.
plan::Plan plan_of(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                   const AttentionOptions& options, const DecodeRun& run) {
  const device::CudaCaps& caps = known_gpu(run.gpu);
  if (std::string reason = plan::decode_mma_refuses(problem, tensors, options, caps); !reason.empty()) {
    throw Error(ErrorCode::unsupported, reason);
  }
  std::vector<plan::Choice> choices =
      plan::decode_mma(problem, tensors, options, caps, [](BlockSize) { return nullptr; });
  if (run.by_warpgroups) {
    std::ranges::stable_partition(
        choices, [](const plan::Choice& choice) { return choice.plan.part<ForwardMmaConfig>().by_warpgroups(); });
  }
  if (run.of_two_kernels) {
    std::ranges::stable_partition(
        choices, [](const plan::Choice& choice) { return choice.plan.part<ForwardMmaConfig>().shares_elsewhere(); });
  }
  plan::Plan plan = choices[std::min(choices.size() - 1, static_cast<std::size_t>(run.candidate))].plan;
  auto& config = plan.part<ForwardMmaConfig>();
  if (run.lengths_there) {
    config.by_sequence = config.device_lengths = true;
    config.tested_heads = plan::decode_mma_tested_heads(plan.mods, config);
  }
  if (run.gangs) plan.grid = *run.gangs * plan::decode_mma_tiles(problem, config);
  return plan;
}

/// The workspace of a run, of any content before.
struct Workspace {
  std::vector<std::byte> memory;
  void* base;
  explicit Workspace(long long bytes)
      : memory(static_cast<std::size_t>(bytes) + 256, std::byte{0xff}),
        base(memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256)) {}
};

/// All elements become NaN: a run that repeats another one must store them anew.
void forget_rows(const TensorView& o) {
  const std::int64_t size = size_of(o.dtype);
  for (std::int64_t i = 0; i < o.shape[0] * o.shape[1] * o.shape[2]; ++i) {
    const std::int64_t row = i % o.shape[2], head = i / o.shape[2] % o.shape[1], entry = i / o.shape[2] / o.shape[1];
    const std::int64_t at = entry * o.strides[0] + head * o.strides[1] + row * o.strides[2];
    std::memset(static_cast<std::byte*>(o.data) + at * size, 0xff, static_cast<std::size_t>(size * o.shape[3]));
  }
}

/// Which keys the tiles of a sequence read.
class KeysRead {
 public:
  KeysRead(const problem::AttentionProblem& problem, const plan::Plan& plan, const Bindings& bindings)
      : problem_(problem), config_(plan.part<ForwardMmaConfig>()) {
    if (config_.tested_heads > 0) mask_.emplace(problem.mask_mod, bindings, expr::Precision::f32);
  }

  /// Calls visit(kv head, key) for those of a run of sequence b, for each tile.
  template <class Visit>
  void for_each(std::size_t b, const shared::KeyRun& run, Visit&& visit) const {
    const int block = config_.block_keys();
    const int tiles = plan::decode_mma_tiles(problem_, config_);
    const int of_kv_head = tiles / static_cast<int>(problem_.kv_heads);
    for (int tile = 0; tile < tiles; ++tile) {
      for (int first = run.begin / config_.run_step() * config_.run_step(); first < run.end; first += block) {
        const int begin = std::max(first, run.begin), end = std::min(first + block, run.end);
        if (mask_ && !leaves_some(b, tile, of_kv_head, begin, end)) continue;
        for (int key = begin; key < end; ++key) visit(tile / of_kv_head, key);
      }
    }
  }

 private:
  bool leaves_some(std::size_t b, int tile, int of_kv_head, int begin, int end) const {
    const Sequence& own = problem_.sequences[b];
    const int query_tiles = plan::decode_mma_query_tiles(problem_, config_), group = static_cast<int>(problem_.group());
    const int first_head = tile / of_kv_head * group + tile % of_kv_head / query_tiles * config_.packed_heads;
    const int last_head = std::min(first_head + config_.packed_heads, (tile / of_kv_head + 1) * group);
    const std::int64_t first_query = config_.tile_queries * (tile % query_tiles);
    const std::int64_t queries = config_.tile_queries > 0 ? first_query + config_.tile_queries : own.q_len;
    expr::Element at;
    at[Leaf::b] = static_cast<int>(b);
    at[Leaf::q_len] = static_cast<int>(own.q_len);
    at[Leaf::kv_len] = static_cast<int>(own.kv_len);
    at[Leaf::q_start] = static_cast<int>(own.q_start);
    for (int head = first_head; head < last_head; ++head) {
      for (std::int64_t query = first_query; query < std::min(queries, own.q_len); ++query) {
        for (int key = begin; key < end; ++key) {
          at[Leaf::h] = head;
          at[Leaf::q_idx] = static_cast<int>(own.q_start + query);
          at[Leaf::q_token] = static_cast<int>(own.q_begin + query);
          at[Leaf::kv_idx] = key;
          at[Leaf::kv_token] = static_cast<int>(own.kv_begin + key);
          if (mask_->boolean(at)) return true;
        }
      }
    }
    return false;
  }

  const problem::AttentionProblem& problem_;
  const ForwardMmaConfig& config_;
  std::optional<expr::Interpreter> mask_;
};

/// Poisons what no tile reads, and returns the bytes that are to be read of the rest.
long long poison(AttentionCase& c, const problem::AttentionProblem& problem, const plan::Plan& plan,
                 const Bindings& bindings) {
  const auto& config = plan.part<ForwardMmaConfig>();
  const std::vector<shared::KeyRuns> runs = plan::decode_mma_runs(problem, plan.mods, bindings);
  const KeysRead read(problem, plan, bindings);
  std::set<std::array<std::int64_t, 3>> kept;
  long long keys = 0;
  for (std::size_t b = 0; b < runs.size(); ++b) {
    const shared::KeyRuns own = held(runs[b], config.kv_block, config.run_step());
    for (const shared::KeyRun& run : {own.first, own.second}) {
      read.for_each(b, run, [&](int kv_head, int key) {
        const auto [entry, row] = c.row_of_key(static_cast<std::int64_t>(b), key);
        kept.insert({entry, kv_head, row});
        ++keys;
      });
    }
  }
  poison_but(c, kept);
  return keys * (config.qk_dim + (config.wide() ? 0 : config.v_dim)) * config.kv_element_bytes();
}

}  // namespace

namespace {

void describe(const ConstTensorView& keys, const ForwardMmaConfig& config, int longest, shared::KeyMap& map) {
  const std::int64_t size = size_of(keys.dtype);
  const DescribedRows rows = {static_cast<const char*>(keys.data),
                              keys.strides[2] * size,
                              keys.strides[1] * size,
                              keys.strides[0] * size,
                              static_cast<int>(keys.shape[3] * size),
                              longest,
                              config.box_rows()};
  std::memcpy(map.opaque, &rows, sizeof rows);
}

/// `c`: the case whose tensors these are, if they are one's.
std::string plan_and_run(const AttentionTensors& tensors, const AttentionOptions& options, const DecodeRun& run,
                         AttentionCase* c) {
  problem::AttentionProblem problem = problem::validate(tensors, options);
  problem::validate_bindings(problem, options.bindings);
  const plan::Plan plan = plan_of(problem, tensors, options, run);
  const auto& config = plan.part<ForwardMmaConfig>();
  std::string name =
      fmt::format("{}, {} CTAs{}", decode_mma::name_of(config), plan.grid, run.lengths_there ? ", lengths there" : "");
  SCOPED_TRACE(name);
  problem.device_lengths = run.lengths_there;
  shared::DecodeMmaBoxParams params{
      decode_mma::constant_params({problem, plan, tensors, options, options.bindings, nullptr}), {}, {}, 0, 0};
  if (run.gangs && config.shares_elsewhere()) params.prefix_gangs = *run.gangs;
  const shared::DecodeMmaWorkspace sizes =
      shared::decode_mma_workspace(config, plan.grid, problem.batch, params.tiles, params.prefix_gangs);
  const Workspace workspace(sizes.bytes);
  decode_mma::set_addresses(config, {tensors, &options, &options.bindings, nullptr, workspace.base}, plan.grid, params);
  if (config.boxes) {
    decode_mma::set_box_numbers(config, tensors.k, params);
    describe(tensors.k, config, params.longest, params.first);
    if (options.k_rest) describe(*options.k_rest, config, params.longest, params.rest);
  }
  const ForwardMmaConfig of_shared = config.prefixed() ? plan::shared_keys_config(config) : config;
  if (config.shares_elsewhere()) {
    decode_mma::set_box_numbers(of_shared, tensors.k, params);
    describe(tensors.k, of_shared, params.longest, params.first);
    describe(tensors.v, of_shared, params.longest, params.rest);
  }
  if (problem.listed_pages) params.table.starts.data = problem.page_starts.data();
  if (run.lengths_there) params.lengths.page_starts = params.table.starts;
  const std::vector<shared::SequenceSpan> spans = gpu::spans_of(problem);
  if (!run.lengths_there) params.mod.sequences = spans.data();
  if (config.prefixed() && !run.lengths_there) {
    params.prefix_group = {problem.prefix_group.data(), 1, 1};
    params.prefix_len = {problem.prefix_len.data(), 1, 1};
  }
  const auto layout = device_text::layout_of(plan.mods.of_kernel(false));
  Tensor starts;
  gpu::set_mod_values(layout, options.bindings, kv_start_bindings(plan.mods.kv_start, problem, starts), params.mod);
  const device::CudaCaps& caps = known_gpu(run.gpu);
  const std::string architecture = fmt::format("{}", 100 * caps.major + 10 * caps.minor);
  const auto compile = [&](const ForwardMmaConfig& each) {
    return reinterpret_cast<Entry>(compile_on_host(text_of(each, plan.mods, layout, architecture)));
  };
  const Entry entry = compile(config), before = config.shares_elsewhere() ? compile(of_shared) : nullptr;
  const long long bytes = run.poisons ? poison(*c, problem, plan, options.bindings) : 0;
  const auto seed = static_cast<unsigned>(c != nullptr ? c->spec().seed : run.seed);
  for (int i = 0; i < run.runs; ++i) {
    params.launch = 77;  // as a graph that repeats a run has it
    if (i > 0) forget_rows(tensors.o);
    if (before != nullptr) before(params, static_cast<unsigned>(params.prefix_gangs * params.tiles), seed);
    const long long read = entry(params, static_cast<unsigned>(plan.grid), seed + static_cast<unsigned>(i));
    EXPECT_TRUE(!run.poisons || read == bytes) << read << " bytes were read, not " << bytes;
  }
  return name;
}

}  // namespace

void run_decode_on_host_and_judge(AttentionCase& c, const DecodeRun& run) {
  SCOPED_TRACE(plan_and_run(c.tensors(), c.options(), run, &c));
  judge(c);
}

void run_decode_grid_on_host(const DecodeGrid& grid, const std::function<CaseSpec()>& draw) {
  Deck<int> gangs(grid.gangs, grid.seed + 1), candidates(grid.candidates, grid.seed + 2),
      runs(grid.runs, grid.seed + 3), there(grid.lengths_there, grid.seed + 5);
  Deck<std::string_view> gpus(grid.gpus, grid.seed + 4);
  const int cases = takes_all() ? cases_on_host(grid.count) : (cases_on_host(grid.count) + 1) / 2;
  for (int i = 0; i < cases; ++i) {
    const CaseSpec spec = draw();
    SCOPED_TRACE(spec.text());
    AttentionCase c(spec);
    c.options().batch_invariant = grid.batch_invariant;
    std::string_view gpu = gpus.deal();
    // 99 KB have no room for chunks of such rows: another family takes them there.
    if (grid.batch_invariant && gpu == "l4" && std::max(spec.qk_dim, spec.v_dim) > 192) gpu = "h200";
    run_decode_on_host_and_judge(c, {.gpu = gpu,
                                     .candidate = candidates.deal(),
                                     .by_warpgroups = grid.by_warpgroups,
                                     .of_two_kernels = grid.of_two_kernels,
                                     .gangs = gangs.deal(),
                                     .lengths_there = there.deal() == 1,
                                     .runs = runs.deal(),
                                     .poisons = grid.poisons && spec.mask != "document_from"});
  }
}

std::string run_decode_on_host(const AttentionTensors& tensors, const AttentionOptions& options, const DecodeRun& run) {
  return plan_and_run(tensors, options, run, nullptr);
}

}  // namespace heddle::test
