#include "kernels/portable/host_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/gpu/backward_sequences.h"
#include "backend/gpu/sequence_spans.h"
#include "backend/gpu/set_mod_values.h"
#include "backend/portable/portable_config.h"
#include "backend/portable/portable_refuses.h"
#include "engine/planners_mask.h"
#include "families/backward_mma/backward_mma.h"
#include "families/backward_mma/backward_mma_arguments.h"
#include "heddle/check.h"
#include "heddle/error.h"
#include "kernels/portable/host_kernel.h"
#include "problem/lengths_on_device.h"

namespace heddle::test {
namespace {

using Entry = void (*)(const void* params, int kernel, unsigned ctas, unsigned seed);

constexpr int kRowsKernel = -1, kSinksKernel = -2, kClearKernel = -3, kStoreKernel = -4, kWidenKernel = -5,
              kQueriesKernel = -6;  // other numbers are passes

constexpr const char* kBegin = "#include \"lanes.h\"\n#define __shared__ static\n";
constexpr const char* kOfPass = R"(
  if (kernel == {0}) {{
    lanes::launch(ctas, kPass{0}.threads(), kPass{0}.shape().wave, shared::backward_mma_memory(kPass{0}).bytes, seed,
                  [&](char* memory) {{
      {1}(*static_cast<const shared::BackwardMmaParams*>(params), memory).run(static_cast<int>(blockIdx.x));
    }});
  }}
)";
constexpr const char* kOfRows = R"(
  if (kernel == -1 || kernel == -2) {
    static portable::BackwardRows<kRows>::Real shares[portable::kRowShares];
    lanes::launch(ctas, shared::kRowThreads, 32, 0, seed, [&](char*) {
      portable::BackwardRows<kRows> rows(*static_cast<const shared::BackwardRowsParams*>(params), shares);
      kernel == -1 ? rows.run(static_cast<int>(blockIdx.x)) : rows.sum_sinks(static_cast<int>(blockIdx.x));
    });
  }
)";

// Takes the class.
constexpr const char* kOfWiden = R"(
  if (kernel == -5) {{
    const auto& tensors = *static_cast<const shared::MmaWidenParams*>(params);
    lanes::launch(ctas, shared::kSumThreads, 32, 0, seed,
                  [&](char*) {{ {0}::run(tensors, static_cast<int>(blockIdx.x)); }});
  }}
)";

// Takes the class and the number of threads.
constexpr const char* kOfQueries = R"(
  if (kernel == -6) {{
    const auto& rows = *static_cast<const shared::BackwardRowsParams*>(params);
    lanes::launch(ctas, {1}, kPass0.shape().wave, 0, seed,
                  [&](char*) {{ {0}::store(rows, static_cast<int>(blockIdx.x)); }});
  }}
)";

// Takes the class of the sums.
constexpr const char* kOfSums = R"(
  if (kernel == -3 || kernel == -4) {{
    const auto& sums = *static_cast<const shared::MmaSumsParams*>(params);
    lanes::launch(ctas, shared::kSumThreads, 32, 0, seed, [&](char*) {{
      kernel == -3 ? {0}::clear(sums, static_cast<int>(blockIdx.x)) : {0}::store(sums, static_cast<int>(blockIdx.x));
    }});
  }}
)";

std::string text_of(const plan::BackwardMmaKernels& kernels, const plan::BackwardMods& mods,
                    const plan::MmaReads& reads, const BackwardTensors& tensors, const device_text::ModLayout& layout,
                    unsigned seed) {
  // f64's products are other instructions on sm_90.
  const bool differs = !kernels.passes.empty() && kernels.passes.front().fragments == shared::FragmentKind::dmma;
  const std::string architecture =
      differs ? fmt::format("#define __CUDA_ARCH__ {}\n", seed / 2 % 2 == 0 ? 900 : 800) : "";
  std::string text = architecture + kBegin + backward_mma::config_and_mods_text(kernels, mods, reads, layout) +
                     "\nextern \"C\" void run_kernel(const void* params, int kernel, unsigned ctas, unsigned seed) {\n"
                     "  using namespace heddle;\n";
  for (std::size_t i = 0; i < kernels.passes.size(); ++i) {
    text += fmt::format(kOfPass, i, backward_mma::pass_class(kernels, i));
  }
  if (backward_mma::has_rows(kernels)) text += kOfRows;
  if (!kernels.widen.empty()) text += fmt::format(kOfWiden, kernels.widen);
  if (plan::adds_queries(kernels)) {
    text += fmt::format(kOfQueries, backward_mma::stored_queries_class(kernels), plan::stored_queries_threads(kernels));
  }
  if (plan::clears_sums(kernels))
    text += fmt::format(kOfSums, backward_mma::sums_class(kernels, backward_mma::types_of_sums(reads, tensors)));
  return text + "}\n";
}

/// Does the work of list_backward_blocks and fill_backward_gaps before a run: `spans`, one more than there are
/// sequences.
void write_lists(const shared::BackwardListsParams& lists, const std::vector<shared::SequenceSpan>& spans) {
  for (int i = 0; i < lists.count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const int first = shared::first_block_of(spans[at].q_begin, i, lists.padded_blocks);
    const int next = shared::first_block_of(spans[at + 1].q_begin, i + 1, lists.padded_blocks);
    for (int block = first; block < next; ++block) {
      lists.blocks[block] = shared::row_block_of(lists, spans[at], i, block - first);
    }
  }
  if (!lists.packed) return;
  const auto fill = [&](const shared::FilledRows& rows, const auto& holds, int count) {
    for (int row = 0; rows.data != nullptr && row < count; ++row) {
      if (std::any_of(spans.begin(), spans.end() - 1, [&](const auto& span) { return holds(span, row); })) continue;
      for (int head = 0; head < rows.heads; ++head) {
        std::memset(rows.data + head * rows.stride[0] + row * rows.stride[1], 0,
                    static_cast<std::size_t>(rows.row_bytes));
      }
    }
  };
  const auto of_queries = [](const shared::SequenceSpan& span, int row) {
    return row >= span.q_begin && row < span.q_begin + span.q_len;
  };
  const auto of_keys = [](const shared::SequenceSpan& span, int row) {
    return row >= span.kv_begin && row < span.kv_begin + span.kv_len;
  };
  fill(lists.d_q, of_queries, lists.q_rows);
  fill(lists.d_k, of_keys, lists.kv_rows);
  fill(lists.d_v, of_keys, lists.kv_rows);
}

/// The value of kv_start as a param or capture. `kept`: where the host knows the starts.
Bindings kv_start_bindings(const plan::KvStart& start, const problem::AttentionProblem& problem,
                           const AttentionOptions& options, std::vector<std::int32_t>& kept) {
  Bindings own;
  for (const Sequence& sequence : problem.sequences) kept.push_back(static_cast<std::int32_t>(sequence.kv_start));
  if (start.form == plan::KvStart::Form::param) own.params[plan::kKvStartName] = kept.front();
  if (start.form == plan::KvStart::Form::capture) {
    own.captures[plan::kKvStartName] = problem.device_kv_starts
                                           ? *options.kv_start
                                           : ConstTensorView(kept.data(), DType::i32, Dims{std::ssize(kept)}, Dims{1});
  }
  return own;
}

}  // namespace

std::string run_backward_on_host(const BackwardTensors& tensors, const AttentionOptions& options,
                                 const HostBackwardRun& run) {
  const problem::AttentionProblem known = problem::validate(tensors, options);
  const problem::AttentionProblem problem = run.device_lengths ? with_lengths_on_device(known, options) : known;
  const AttentionTensors forward = problem::forward_tensors(tensors);
  const device::Machine machine{};
  const plan::Request request{problem, forward, options, machine, &tensors};
  const device::CudaCaps& caps = known_gpu("a100");
  if (const std::string reason = plan::backward_mma_refuses(request, caps); !reason.empty()) {
    throw Error(ErrorCode::unsupported, reason);
  }
  engine::MaskRows rows;
  plan::Choice choice =
      plan::backward_mma(request, caps, [&](BlockSize block) { return rows(problem, options, block); }).front();
  const plan::BackwardMods mods = plan::backward_mods(problem, plan::OfPlaces::native);
  const plan::MmaReads reads = plan::mma_reads(problem, options.bindings, mods);
  const std::vector<plan::BackwardMmaKernels> all = plan::backward_mma_kernels(
      problem, mods, reads, tensors, {run.fragments, run.fragments, run.fragments, run.fragments});
  const plan::BackwardMmaKernels kernels = all[std::min(run.candidate, all.size() - 1)];
  choice.plan.family_part = kernels;
  const device_text::ModLayout layout = backward_mma::layout_of(mods, reads, problem.precision);
  const backend::PrepareArguments prepared = {
      problem, choice.plan, forward, options, options.bindings, choice.block_mask.get(), &tensors};

  backward_mma::Params params = backward_mma::constant_params(prepared, reads);
  std::vector<shared::SequenceSpan> spans = gpu::spans_of(known);
  std::vector<plan::BackwardSchedule> schedules;
  for (const shared::BackwardMmaConfig& pass : kernels.passes) {
    schedules.push_back(plan::backward_mma_schedule(problem, pass, choice.block_mask.get()));
  }
  const std::vector<shared::RowBlock> blocks = plan::row_blocks(problem);
  params.rows.blocks = blocks.data();
  params.rows.block_count = static_cast<int>(blocks.size());
  std::vector<float> workspace(static_cast<std::size_t>(plan::backward_mma_workspace(problem, kernels).bytes) / 4 + 64);
  std::memset(workspace.data(), 0xff, workspace.size() * 4);
  void* aligned = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(workspace.data()) + 127) / 128 * 128);
  const backend::RunArguments arguments = {forward, &options, &options.bindings, choice.block_mask.get(),
                                           aligned, nullptr,  &tensors};
  backward_mma::set_addresses(kernels, problem, reads, arguments, params);
  std::vector<std::int32_t> kv_starts;
  const Bindings starts = kv_start_bindings(mods.kv_start, problem, options, kv_starts);
  for (std::size_t i = 0; i < params.passes.size(); ++i) {
    params.passes[i].items = schedules[i].items.data();
    params.passes[i].runs = schedules[i].runs.data();
    params.passes[i].mod.sequences = spans.data();
    gpu::set_mod_values(layout, options.bindings, starts, params.passes[i].mod);
  }
  if (run.device_lengths) {
    gpu::BackwardSequencesParams lists = gpu::backward_sequences_params(problem, std::ssize(blocks));
    backward_mma::set_lists_to_read(arguments, problem, kernels, lists, params);
    spans.push_back({});
    spans.back().q_begin = static_cast<int>(problem.q_rows);
    std::ranges::copy(spans, lists.sequences.spans);
    // Numbers of blocks that no sequence has.
    std::fill_n(lists.lists.blocks, blocks.size(), shared::RowBlock{});
    write_lists(lists.lists, spans);
  }

  const auto entry = reinterpret_cast<Entry>(compile_on_host(text_of(kernels, mods, reads, tensors, layout, run.seed)));
  if (!kernels.widen.empty()) {
    entry(&params.widen, kWidenKernel, static_cast<unsigned>(params.widen.ctas), run.seed);
  }
  if (backward_mma::has_rows(kernels)) {
    const auto heads = static_cast<unsigned>(problem.q_heads);
    entry(&params.rows, kRowsKernel, static_cast<unsigned>(blocks.size()) * heads, run.seed);
    if (kernels.rows.sinks) entry(&params.rows, kSinksKernel, heads, run.seed);
  }
  const auto sum_ctas = static_cast<unsigned>(params.sums.ctas);
  if (plan::clears_sums(kernels)) entry(&params.sums, kClearKernel, sum_ctas, run.seed);
  for (std::size_t i = 0; i < params.passes.size(); ++i) {
    const int ctas = plan::backward_mma_ctas(problem, kernels.passes[i], std::ssize(schedules[i].items));
    entry(&params.passes[i], static_cast<int>(i), static_cast<unsigned>(ctas), run.seed);
  }
  if (plan::adds_queries(kernels)) {
    const auto ctas = static_cast<unsigned>(blocks.size()) * static_cast<unsigned>(problem.q_heads);
    entry(&params.rows, kQueriesKernel, ctas, run.seed);
  }
  if (reads.any()) entry(&params.sums, kStoreKernel, sum_ctas, run.seed);
  return backward_mma::name_of(kernels);
}

void run_backward_on_host_and_judge(const CaseSpec& spec, const BackwardSpec& backward, HostBackwardRun run) {
  run.device_lengths = spec.device_lengths;
  AttentionCase attention_case(spec);
  BackwardCase backward_case(attention_case, backward);
  SCOPED_TRACE(backward_case.text());
  backward_case.run_forward();
  for (const Gradient& gradient : backward_case.gradients()) {
    const auto memory = gradient.memory.memory();
    std::memset(memory.data(), 0xff, memory.size());
  }
  SCOPED_TRACE(run_backward_on_host(backward_case.tensors(), attention_case.options(), run));
  for (const Gradient& gradient : backward_case.gradients()) {
    EXPECT_TRUE(gradient.memory.gaps_untouched()) << gradient.name;
  }
  const GradientReport report = check_backward(backward_case.tensors(), attention_case.options());
  EXPECT_TRUE(report.passed) << report.text();
}

}  // namespace heddle::test
