#include "kernels/portable/host_kernel.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include "backend/gpu/sequence_spans.h"
#include "backend/gpu/set_mod_values.h"
#include "backend/portable/portable_arguments.h"
#include "backend/portable/portable_config.h"
#include "backend/portable/portable_refuses.h"
#include "backend/portable/portable_text.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "device/known_gpus.h"
#include "engine/planners_mask.h"
#include "families/forward_mma/forward_mma.h"
#include "heddle/error.h"
#include "sample.h"

namespace heddle::test {
namespace {

using shared::ForwardMmaConfig;
using Entry = void (*)(const shared::ForwardMmaParams&, unsigned ctas, unsigned seed);

constexpr const char* kEnd = R"(
#include "{0}"
#include "portable/forward_mma/forward.cuh"
extern "C" void run_kernel(const heddle::shared::ForwardMmaParams& params, unsigned ctas, unsigned seed) {{
  using namespace heddle;
  lanes::launch(ctas, kConfig.threads(), kConfig.shape().wave, shared::forward_mma_memory(kConfig).bytes, seed,
                [&](char* memory) {{
    portable::Forward<kConfig, portable::{1}<kConfig>, GeneratedMods>(params, memory)
        .run(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  }});
}}
)";

std::string text_of(const ForwardMmaConfig& config, const plan::KernelMods& mods, const device_text::ModLayout& layout,
                    const device::CudaCaps& caps) {
  const bool differs = config.converts() || config.fragments == shared::FragmentKind::dmma;
  const std::string architecture = differs ? fmt::format("#define __CUDA_ARCH__ {}{}0\n", caps.major, caps.minor) : "";
  return architecture + "#include \"lanes.h\"\n" + portable::config_and_mods_text(config, mods, layout) +
         fmt::format(kEnd, portable::fragments_header(config.fragments), portable::fragments_class(config.fragments));
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::map<std::string, void*>& kernels() {
  static std::map<std::string, void*> all;
  return all;
}

/// The tensors of a case. Captures are not among them: a case with mods runs on the host only.
std::vector<KernelMemory> memory_of(const AttentionCase& c) {
  std::vector<KernelMemory> memory;
  const auto add_tensor = [&](const char* name, const GuardedTensor& tensor, bool written) {
    memory.push_back({name, tensor.memory().data(), tensor.memory().size(), written, false});
  };
  add_tensor("q", c.q, false);
  add_tensor("k", c.k, false);
  add_tensor("v", c.v, false);
  add_tensor("o", c.o, true);
  if (c.tensors().lse) add_tensor("lse", c.lse_rows, true);
  if (c.tensors().lse_rest) add_tensor("lse_rest", c.lse_rest_rows, true);
  if (c.tensors().max_scores) add_tensor("max_scores", c.max_score_rows, true);
  return memory;
}

template <class T>
void add(std::vector<KernelMemory>& memory, const char* name, const std::vector<T>& list) {
  memory.push_back({name, const_cast<T*>(list.data()), list.size() * sizeof(T), false, false});
}

}  // namespace

Bindings kv_start_bindings(const plan::KvStart& start, const problem::AttentionProblem& problem, Tensor& kept) {
  Bindings own;
  if (start.form == plan::KvStart::Form::param) {
    own.params[plan::kKvStartName] = static_cast<std::int32_t>(problem.sequences.front().kv_start);
  }
  if (start.form == plan::KvStart::Form::capture) {
    kept = Tensor::empty(DType::i32, {std::ssize(problem.sequences)});
    for (std::size_t i = 0; i < problem.sequences.size(); ++i) {
      static_cast<std::int32_t*>(kept.data())[i] = static_cast<std::int32_t>(problem.sequences[i].kv_start);
    }
    own.captures[plan::kKvStartName] = kept;
  }
  return own;
}

const device::CudaCaps& known_gpu(std::string_view name) {
  return std::ranges::find(device::kKnownGpus, name, &device::KnownGpu::name)->caps;
}

// A kernel stays loaded.
void* compile_on_host(const std::string& text) {
  namespace fs = std::filesystem;
  void*& entry = kernels()[text];
  if (entry != nullptr) return entry;
  const fs::path stem = fs::path(HEDDLE_BUILD_DIR) / fmt::format("kernel-{}-{}", getpid(), kernels().size());
  const std::string source = stem.string() + ".cc", library = stem.string() + ".so", log = stem.string() + ".log";
  std::ofstream(source) << text;
  const std::string command = fmt::format("{} -o '{}' '{}' >'{}' 2>&1", HEDDLE_KERNEL_COMPILER, library, source, log);
  if (std::system(command.c_str()) != 0) throw std::runtime_error(command + "\n" + contents(log));
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  for (const std::string& file : {source, library, log}) fs::remove(file);
  return entry = dlsym(handle, "run_kernel");
}

int compiled_on_host() { return static_cast<int>(kernels().size()); }

int cases_on_host(int count) {
  if (takes_all()) return count * 10;
  return std::max(1, count / (is_reduced() ? 10 : 5));
}

namespace {

/// `c`: the case whose tensors these are, if they are one's.
std::string plan_and_run(const AttentionTensors& tensors, const AttentionOptions& options, const HostRun& run,
                         const AttentionCase* c) {
  const problem::AttentionProblem problem = problem::validate(tensors, options);
  problem::validate_bindings(problem, options.bindings);
  const device::CudaCaps& caps = known_gpu(run.gpu);
  if (std::string reason = plan::forward_mma_refuses(problem, options, caps); !reason.empty()) {
    throw Error(ErrorCode::unsupported, reason);
  }
  engine::MaskRows rows;
  std::vector<plan::Choice> choices = plan::forward_mma(problem, tensors, options, caps,
                                                        [&](BlockSize block) { return rows(problem, options, block); });
  const bool wide = run.fragments == shared::FragmentKind::gfx9;  // 32 keys a fragment
  if (wide)
    std::erase_if(choices, [](const plan::Choice& offered) {
      return offered.plan.part<shared::ForwardMmaConfig>().kv_block < 32;
    });
  const auto has_table = [](shared::FragmentKind kind) {
    return shared::fragments_of(kind).of_many_rows || kind == shared::FragmentKind::dmma;
  };
  std::erase_if(choices, [&](const plan::Choice& offered) {
    const shared::FragmentKind planned = offered.plan.part<shared::ForwardMmaConfig>().fragments;
    return has_table(run.fragments) ? planned != run.fragments : has_table(planned);
  });
  const auto of_fragments = [&](ForwardMmaConfig config) {
    config.fragments = run.fragments;
    if (!config.shape().ring) config.stages = 1;
    if (run.fragments == shared::FragmentKind::fma) config.shared_queries = true;
    if (wide) config.key_waves = std::min(config.key_waves, config.kv_block / 32);
    // Twice as many rows a fragment as it was planned with.
    while (wide && config.rows() > (config.packs() ? 64 : 128)) config.row_waves /= 2;
    return config;
  };
  // AMD's chips, whose fragments have values by columns, lend a workgroup 64 KiB.
  std::erase_if(choices, [&](const plan::Choice& offered) {
    const ForwardMmaConfig config = of_fragments(offered.plan.part<shared::ForwardMmaConfig>());
    return config.shape().transposed && shared::forward_mma_memory(config).bytes > 65536;
  });
  if (choices.empty()) throw Error(ErrorCode::unsupported, "no kernel is made of these fragments");
  plan::Choice& choice = choices[std::min(choices.size() - 1, static_cast<std::size_t>(run.candidate))];
  ForwardMmaConfig config = of_fragments(choice.plan.part<shared::ForwardMmaConfig>());
  if (run.splits) config.splits = *run.splits;
  choice.plan.family_part = config;
  const plan::TileSchedule schedule =
      plan::forward_mma_schedule(problem, config, choice.block_mask.get(), caps, choice.plan.order);

  const backend::PrepareArguments prepared = {problem, choice.plan,      tensors,
                                              options, options.bindings, choice.block_mask.get()};
  shared::ForwardMmaParams params{};
  portable::set_constants(prepared, params);
  params.listed.q_heads = static_cast<int>(problem.q_heads);
  portable::set_addresses(config, {tensors, &options, &options.bindings, nullptr, nullptr}, params);
  if (config.converts()) params.descales = portable::descales_of(options);
  if (problem.listed_pages) params.table.starts.data = problem.page_starts.data();
  params.tiles.items = schedule.items.data();
  params.tiles.item_count = static_cast<int>(schedule.items.size());
  params.tiles.runs = schedule.runs.data();
  params.fills = {schedule.fills.data(), static_cast<int>(schedule.fills.size()), schedule.unattending_fills};
  const std::vector<shared::SequenceSpan> spans = gpu::spans_of(problem);
  params.mod.sequences = spans.data();
  const auto layout = device_text::layout_of(choice.plan.mods.of_kernel(false), problem.precision);
  Tensor starts;
  gpu::set_mod_values(layout, options.bindings, kv_start_bindings(choice.plan.mods.kv_start, problem, starts),
                      params.mod);
  // The workspace has arbitrary content.
  const shared::SplitMemory split = shared::split_memory(config, params.tiles.item_count);
  std::vector<std::byte> workspace(static_cast<std::size_t>(split.bytes) + 256, std::byte{0xff});
  auto* base = workspace.data() + (256 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 256);
  params.tiles.tickets = reinterpret_cast<shared::TicketWord*>(base);
  params.tiles.launch = 77;
  params.parts = base + split.parts;

  const int ctas = std::max(1, params.tiles.item_count * config.splits);
  if (run.execute && c != nullptr) {
    std::vector<KernelMemory> memory = memory_of(*c);
    add(memory, "tiles", schedule.items);
    add(memory, "runs", schedule.runs);
    add(memory, "fills", schedule.fills);
    add(memory, "sequences", spans);
    memory.push_back({"workspace", base, static_cast<std::size_t>(split.bytes), true, true});
    run.execute({config, portable::config_and_mods_text(config, choice.plan.mods, layout), params, ctas, memory});
  } else {
    const auto entry = reinterpret_cast<Entry>(compile_on_host(text_of(config, choice.plan.mods, layout, caps)));
    for (int slice = 0; slice < config.value_slices; ++slice) {
      forward_mma::stand_at_slice(config, slice, problem.v_dim, problem.o_dtype, params);
      entry(params, static_cast<unsigned>(ctas), c != nullptr ? static_cast<unsigned>(c->spec().seed) : run.seed);
    }
  }
  // A graph that repeats the run begins with what it left.
  for (int i = 0; config.splits_keys() && i < params.tiles.item_count; ++i) EXPECT_EQ(params.tiles.tickets[i], 0U);
  return forward_mma::name_of(config);
}

}  // namespace

std::string run_on_host(AttentionCase& c, const HostRun& run) {
  return plan_and_run(c.tensors(), c.options(), run, &c);
}
std::string run_on_host(const AttentionTensors& tensors, const AttentionOptions& options, const HostRun& run) {
  return plan_and_run(tensors, options, run, nullptr);
}

void run_on_host_and_judge(AttentionCase& c, const HostRun& run) {
  SCOPED_TRACE(c.spec().text());
  SCOPED_TRACE(run_on_host(c, run));
  judge(c);
}

}  // namespace heddle::test
