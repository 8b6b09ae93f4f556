#include "backend/cuda/launch/backward_sm90.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backends.h"
#include "backend/cuda/driver/device.h"
#include "backend/cuda/emit/backward_sm90.h"
#include "backend/cuda/jit/jit.h"
#include "backend/cuda/launch/backward_reads.h"
#include "backend/cuda/launch/backward_sequences.h"
#include "backend/cuda/launch/copied_rows.h"
#include "backend/cuda/launch/sequence_spans.h"
#include "backend/cuda/launch/tensor_map.h"
#include "backend/gpu/device_lists.h"
#include "backend/gpu/kv_start.h"
#include "backend/gpu/mod_values.h"
#include "plan/access/tma.h"
#include "plan/families/backward_sm90.h"
#include "shared/backward_wide_memory.h"

namespace heddle::cuda {
namespace {

using problem::AttentionProblem;
using shared::BackwardSm90Config;

/// Element strides of batch, head and row. A packed tensor's sequences differ in their rows alone.
template <class View, class Rows>
void set_strides(const View& view, bool packed, Rows& rows) {
  for (int axis = 0; axis < 3; ++axis) rows.stride[axis] = view.strides[axis];
  if (packed || view.shape[0] == 1) rows.stride[0] = 0;
}

/// The lists, in device memory; parameters point into it.
class BackwardLists {
 public:
  BackwardLists(int device, const plan::BackwardSchedule& schedule, const std::vector<shared::SequenceSpan>& spans,
                BackwardConstants& constants, shared::BackwardReadsParams& reads) {
    std::vector<char> bytes;
    const std::size_t items = append(bytes, schedule.items), runs = append(bytes, schedule.runs),
                      blocks = append(bytes, schedule.blocks), sequences = append(bytes, spans),
                      first_blocks = append(bytes, schedule.first_blocks), ranks = append(bytes, schedule.ranks);
    memory_ = DeviceMemory(device, bytes.size());
    if (!bytes.empty()) copy_and_wait(device, memory_.data(), bytes.data(), bytes.size());
    const char* base = static_cast<const char*>(memory_.data());
    constants.main.items = reinterpret_cast<const shared::BackwardItem*>(base + items);
    constants.main.runs = reinterpret_cast<const shared::QueryRun*>(base + runs);
    constants.main.ranks = reinterpret_cast<const int*>(base + ranks);
    constants.rows.blocks = reinterpret_cast<const shared::RowBlock*>(base + blocks);
    constants.rows.block_count = static_cast<int>(schedule.blocks.size());
    if (!spans.empty()) reads.first_blocks = reinterpret_cast<const int*>(base + first_blocks);
    if (!spans.empty()) constants.main.mod.sequences = reinterpret_cast<const shared::SequenceSpan*>(base + sequences);
  }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  template <class T>
  static std::size_t append(std::vector<char>& bytes, const std::vector<T>& list) {
    constexpr std::size_t kAlignment = 16;
    const std::size_t begin = (bytes.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes.resize(begin + list.size() * sizeof(T));
    if (!list.empty()) std::memcpy(bytes.data() + begin, list.data(), list.size() * sizeof(T));
    return begin;
  }

  DeviceMemory memory_;
};

/// The main kernel computes something.
bool of_rows(const AttentionProblem& problem) { return problem.wanted.q || problem.wanted.k || problem.wanted.v; }

class BackwardSm90Kernel final : public backend::Kernel {
 public:
  explicit BackwardSm90Kernel(const backend::PrepareArguments& arguments)
      : device_(arguments.plan.device),
        config_(*arguments.plan.backward_sm90),
        problem_(arguments.problem),
        mods_(plan::backward_mods(arguments.problem)),
        reads_(plan::backward_reads(problem_, arguments.options.bindings, mods_.kv_start)),
        reads_memory_(plan::backward_reads_memory(problem_, reads_)),
        layout_(backward_layout(mods_, reads_)),
        source_(emit::backward_sm90(config_, mods_, layout_)),
        cubin_(of_rows(arguments.problem) ? jit::build(source_) : nullptr),
        rows_cubin_(jit::build(emit::backward_rows(config_))),
        rows_module_(device_, rows_cubin_->bytes, jit::compiler_number()),
        kv_start_(backend::cuda_device(), device_, mods_.kv_start, arguments.problem.sequences,
                  arguments.options.kv_start),
        rows_(rows_module_.function("backward_rows", 0)),
        d_q_(rows_module_.function("backward_d_q", 0)),
        sinks_(rows_module_.function("backward_sinks", 0)),
        constants_(backward_constants(arguments)) {
    if (cubin_) {
      module_.emplace(device_, cubin_->bytes, jit::compiler_number());
      main_ = module_->function("backward_sm90", shared::backward_shared_bytes(config_));
    }
    const plan::BackwardSchedule schedule =
        plan::backward_sm90_schedule(arguments.problem, config_, arguments.block_mask);
    ctas_ = static_cast<unsigned>(arguments.plan.grid);
    constants_.main.ctas = arguments.plan.grid;
    constants_.main.tiles = static_cast<int>(schedule.items.size());
    any_steps_ = schedule.steps > 0;
    blocks_ = static_cast<unsigned>(schedule.blocks.size());
    std::vector<shared::SequenceSpan> spans;
    if (config_.by_sequence && !config_.device_lengths)
      spans = spans_of(arguments.problem, constants_.main.operands.kv_len);
    tiles_ = static_cast<unsigned>(schedule.items.size());
    if (reads_.any()) {
      read_kernels_.emplace(arguments, mods_, reads_, layout_);
      reads_params_ = backward_reads_params(arguments, reads_, constants_);
    }
    if (ctas_ > 0 || blocks_ > 0) lists_.emplace(device_, schedule, spans, constants_, reads_params_);
    if (config_.device_lengths && lists_) {
      sequences_.emplace(device_, backward_sequences_params(problem_, config_, constants_, std::ssize(schedule.items),
                                                            std::ssize(schedule.blocks)));
    }
    if (problem_.device_kv_starts) own_kv_start_ = gpu::slot_of(layout_, plan::kKvStartName);
    if (any_steps_ && std::ranges::any_of(arguments.plan.copies, [](const auto& copy) { return copy.has_value(); })) {
      copied_.emplace(arguments);
    }
  }

  void launch(const backend::RunArguments& arguments) const override {
    if (ctas_ == 0 && blocks_ == 0 && !read_kernels_) return;
    check_gradients(*arguments.backward);
    const CopiedTensors::Tensors given = {
        {arguments.tensors.q, arguments.tensors.k, arguments.tensors.v, arguments.backward->d_o}};
    const CopiedTensors::Tensors all = copied_ ? copied_->reached(given, arguments.workspace) : given;
    static constexpr std::array<std::string_view, 4> kNames = {"q", "k", "v", "dO"};
    for (std::size_t i = 0; any_steps_ && i < kNames.size(); ++i) {
      check_address(kNames[i], all.of[i].data, plan::kTmaBytes);
    }
    const ContextScope scope(device_);
    CUtensorMap maps[4] = {};  // not read where there is no step
    if (any_steps_) {
      maps[0] = map_of(all.of[0], false);
      maps[1] = map_of(all.of[1], true);
      maps[2] = map_of(all.of[2], true);
      maps[3] = map_of(all.of[3], false);
    }
    BackwardConstants own = constants_;
    set_addresses(arguments, problem_, config_, own);
    if (sequences_) {
      BackwardSequencesParams params = sequences_->params();
      set_backward_lists(arguments, problem_, config_, params, own);
      sequences_->launch(params, arguments.stream);
    }
    gpu::set_mod_values(layout_, *arguments.bindings, kv_start_.bindings(), own.main.mod);
    if (own_kv_start_ >= 0) own.main.mod.captures[own_kv_start_].data = arguments.options->kv_start->data;
    if (copied_) {
      copied_->launch(given, problem_.packed ? nullptr : own.main.mod.sequences, {}, arguments.workspace,
                      arguments.stream);
    }
    shared::BackwardReadsParams reads = reads_params_;
    if (read_kernels_) {
      char* memory = static_cast<char*>(arguments.workspace) + plan::backward_sm90_workspace(problem_, config_).bytes;
      set_reads(arguments, reads_, reads_memory_, memory, own, reads);
    }
    launch_all(maps, own, reads, arguments.stream);
  }

  std::int64_t held_bytes() const override { return lists_ ? static_cast<std::int64_t>(lists_->bytes()) : 0; }

  nlohmann::ordered_json facts() const override {
    static constexpr std::string_view kFrom[] = {"compiled", "from memory", "from the disk cache"};
    nlohmann::ordered_json facts;
    facts["summary"] = fmt::format("{}: {} CTAs of {} threads, {} bytes of shared memory", source_.name, ctas_,
                                   config_.threads(), shared::backward_shared_bytes(config_));
    facts["name"] = source_.name;
    facts["cache key"] = jit::key_of(source_);
    const jit::Cubin& first = cubin_ ? *cubin_ : *rows_cubin_;
    facts["origin"] = kFrom[static_cast<std::size_t>(first.from)];
    facts["compile ms"] = (cubin_ ? cubin_->compile_ms : 0) + rows_cubin_->compile_ms;
    facts["registers"] = first.registers;
    if (read_kernels_) facts["compile ms of captures' gradients"] = read_kernels_->compile_ms();
    if (read_kernels_ && read_kernels_->pass() != nullptr) {
      facts["registers of captures' gradients"] = read_kernels_->pass()->registers;
    }
    facts["list bytes"] = lists_ ? lists_->bytes() : 0;
    if (copied_) facts["copied bytes"] = copied_->bytes();
    facts["cache"] = jit::cache_notes();
    return facts;
  }

 private:
  /// What rows are read and written at once.
  void check_gradients(const BackwardTensors& tensors) const {
    if (any_steps_ && config_.wide_rows) {
      check_address("o", tensors.o.data, 16);
      check_address("dO", tensors.d_o.data, 16);
    }
    const auto check = [&](std::string_view name, const std::optional<TensorView>& view, bool wide) {
      if (!view || config_.odd_gradients) return;
      check_address(name, view->data, wide ? 16 : 2 * size_of(view->dtype));
    };
    check("dq", tensors.dq, config_.wide_d_q);
    check("dk", tensors.dk, config_.wide_gradients);
    check("dv", tensors.dv, config_.wide_gradients);
  }

  CUtensorMap map_of(ConstTensorView tensor, bool keys) const {
    const shared::Operands& operands = constants_.main.operands;
    const int box_rows = keys ? config_.cta_keys() : shared::kStepQueries;
    if (!config_.by_sequence) return tensor_map(tensor, tensor.data, box_rows);
    if (problem_.packed) tensor = by_sequence(tensor, problem_.batch);
    return tensor_map_before_ends(tensor, tensor.data, box_rows, keys ? operands.kv_len : operands.q_len);
  }

  void launch_all(CUtensorMap (&maps)[4], BackwardConstants& own, shared::BackwardReadsParams& reads,
                  void* stream) const {
    const unsigned heads = static_cast<unsigned>(own.main.q_heads);
    void* rows[] = {&own.rows};
    if (read_kernels_) read_kernels_->clear(reads, stream);
    const Launch of_blocks = {.ctas = blocks_, .height = heads, .threads = shared::kRowThreads};
    if (blocks_ > 0) launch_kernel(rows_, of_blocks, stream, rows, "launching backward_rows");
    if (ctas_ > 0 && main_ != nullptr) {
      void* parameters[] = {&maps[0], &maps[1], &maps[2], &maps[3], &own.main};
      const Launch launch = {.ctas = ctas_,
                             .threads = static_cast<unsigned>(config_.threads()),
                             .shared_bytes = static_cast<unsigned>(shared::backward_shared_bytes(config_))};
      launch_kernel(main_, launch, stream, parameters, "launching backward_sm90");
    }
    if (read_kernels_ && any_steps_) read_kernels_->visit(maps, own.main, reads, tiles_, stream);
    if (config_.d_q && blocks_ > 0) launch_kernel(d_q_, of_blocks, stream, rows, "launching backward_d_q");
    if (config_.sinks) {
      launch_kernel(sinks_, {.ctas = heads, .threads = 32}, stream, rows, "launching backward_sinks");
    }
    if (read_kernels_) read_kernels_->finish(own.main, reads, stream);
  }

  int device_;
  BackwardSm90Config config_;
  AttentionProblem problem_;
  plan::BackwardMods mods_;
  plan::BackwardReads reads_;
  plan::BackwardReadsMemory reads_memory_;
  device_text::ModLayout layout_;
  jit::Source source_;
  std::shared_ptr<const jit::Cubin> cubin_, rows_cubin_;
  std::optional<Module> module_;  // where a gradient of q, k or v is asked for
  Module rows_module_;
  gpu::KvStartValues kv_start_;
  CUfunction main_ = nullptr, rows_, d_q_, sinks_;
  BackwardConstants constants_;
  shared::BackwardReadsParams reads_params_{};
  std::optional<BackwardReadKernels> read_kernels_;  // gradients of captures and params
  unsigned ctas_ = 0, blocks_ = 0, tiles_ = 0;
  bool any_steps_ = false;
  std::optional<BackwardLists> lists_;
  std::optional<BackwardSequences> sequences_;  // where lengths are on the device
  int own_kv_start_ = -1;                       // capture: each run's own vector
  std::optional<CopiedTensors> copied_;
};

}  // namespace

device_text::ModLayout backward_layout(const plan::BackwardMods& mods, const plan::BackwardReads& reads) {
  std::vector<Expr> all = mods.all();
  for (const Expr& read : reads.all()) all.push_back(read);
  return device_text::layout_of(all);
}

BackwardConstants backward_constants(const backend::PrepareArguments& arguments) {
  const AttentionProblem& problem = arguments.problem;
  const BackwardTensors& tensors = *arguments.backward;
  const BackwardSm90Config& config = *arguments.plan.backward_sm90;
  BackwardConstants constants;
  shared::BackwardSm90Params& main = constants.main;
  for (const Sequence& sequence : problem.sequences) {
    main.operands.q_len = std::max(main.operands.q_len, static_cast<int>(sequence.q_len));
    main.operands.kv_len = std::max(main.operands.kv_len, static_cast<int>(sequence.kv_len));
  }
  const auto batched = [&](const ConstTensorView& view) { return view.shape[0] > 1 ? 1 : 0; };
  main.operands.q_batched = batched(tensors.q);
  main.operands.k_batched = batched(tensors.k);
  main.operands.v_batched = batched(tensors.v);
  main.d_o_batched = batched(tensors.d_o);
  main.q_heads = static_cast<int>(problem.q_heads);
  main.padded_keys = problem.packed ? 0 : static_cast<int>(problem.kv_rows);
  const double factor = plan::backward_mods(problem).factor;
  const double unit = config.normalizer == shared::Normalizer::none ? 1 : std::numbers::log2e;
  main.scale = static_cast<float>(problem.scale * factor);
  main.scale_log2 = static_cast<float>(problem.scale * factor * unit);
  main.mod.q_len = main.operands.q_len;
  main.mod.kv_len = main.operands.kv_len;
  if (!problem.sequences.empty()) main.mod.q_start = static_cast<int>(problem.sequences.front().q_start);
  if (tensors.dk) set_strides(*tensors.dk, problem.packed, main.d_k);
  if (tensors.dv) set_strides(*tensors.dv, problem.packed, main.d_v);

  shared::BackwardRowsParams& rows = constants.rows;
  rows.q_heads = main.q_heads;
  rows.d_q_scale = main.scale;
  set_strides(tensors.o, problem.packed, rows.o);
  set_strides(tensors.d_o, problem.packed, rows.d_o);
  if (tensors.lse) set_strides(*tensors.lse, problem.packed, rows.lse);
  if (tensors.d_lse) set_strides(*tensors.d_lse, problem.packed, rows.d_lse);
  if (tensors.lse_rest) set_strides(*tensors.lse_rest, problem.packed, rows.lse_rest);
  rows.unit = config.scores == shared::ScoreForm::plain ? main.scale : 1;  // products themselves are compared
  if (tensors.dq) set_strides(*tensors.dq, problem.packed, rows.d_q_out);
  if (tensors.d_sinks) rows.d_sinks.stride[0] = tensors.d_sinks->strides[0];
  if (arguments.options.sinks) rows.sinks.stride = arguments.options.sinks->strides[0];
  return constants;
}

void set_addresses(const backend::RunArguments& arguments, const problem::AttentionProblem& problem,
                   const shared::BackwardSm90Config& config, BackwardConstants& constants) {
  const BackwardTensors& tensors = *arguments.backward;
  const plan::BackwardSm90Workspace at = plan::backward_sm90_workspace(problem, config);
  char* workspace = static_cast<char*>(arguments.workspace);
  shared::BackwardSm90Params& main = constants.main;
  shared::BackwardRowsParams& rows = constants.rows;
  rows.rows = reinterpret_cast<float*>(workspace + at.rows);
  rows.d_q = reinterpret_cast<float*>(workspace + at.d_q);
  rows.sink_parts = reinterpret_cast<float*>(workspace + at.sinks);
  rows.drawn = reinterpret_cast<unsigned*>(workspace + at.drawn);
  main.drawn = rows.drawn;
  rows.turns = main.turns = reinterpret_cast<unsigned*>(workspace + at.turns);
  main.rows = rows.rows;
  main.d_q = rows.d_q;
  rows.o.data = tensors.o.data;
  rows.d_o.data = tensors.d_o.data;
  rows.lse.data = tensors.lse ? tensors.lse->data : nullptr;
  rows.d_lse.data = tensors.d_lse ? tensors.d_lse->data : nullptr;
  rows.lse_rest.data = tensors.lse_rest ? tensors.lse_rest->data : nullptr;
  rows.d_q_out.data = tensors.dq ? tensors.dq->data : nullptr;
  rows.d_sinks.data = tensors.d_sinks ? tensors.d_sinks->data : nullptr;
  if (arguments.options->sinks) rows.sinks.data = static_cast<const float*>(arguments.options->sinks->data);
  main.d_k.data = tensors.dk ? tensors.dk->data : nullptr;
  main.d_v.data = tensors.dv ? tensors.dv->data : nullptr;
}

std::unique_ptr<backend::Kernel> prepare_backward_sm90(const backend::PrepareArguments& arguments) {
  return std::make_unique<BackwardSm90Kernel>(arguments);
}

}  // namespace heddle::cuda
