// Archives of kernels, from the calls of a process with a compiler to one without: each process has the fake driver,
// and the second one finds every kernel in the archive.
#include "heddle/archive.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/driver/in_child.h"
#include "backend/cuda/launch/cuda_gpu.h"
#include "backend/gpu/mask_rows_launch.h"
#include "backend/gpu/move_rows_launch.h"
#include "backend/jit/recording.h"
#include "expr/simplify.h"
#include "heddle/heddle.h"
#include "launch_case.h"

namespace heddle::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;
using Work = std::function<void()>;

constexpr const char* kSpilling =
    "//log ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
    "//log ptxas         .     0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n"
    "//log ptxas info    : Used 168 registers, used 1 barriers\n";

Tensor there(DType dtype, const Dims& shape) { return Tensor::zeros(dtype, shape).to(kFirst); }
Tensor numbers(std::initializer_list<std::int32_t> values) {
  Tensor made = Tensor::empty(DType::i32, {std::ssize(values)});
  std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(made.data()));
  return made;
}

void plan(const Call& call, const AttentionOptions& options = {}) {
  const CallTensors tensors(call);
  AttentionPlan(tensors.tensors(), options);
}

AttentionOptions with_mask(const Expr& mask) {
  AttentionOptions options;
  options.mask_mod = mask;
  return options;
}

/// Where lengths are: the host's, or on the GPU.
void plan_lengths(const Device& device) {
  const Tensor lengths = numbers({130, 7}).to(device), starts = numbers({0, 3}).to(device);
  AttentionOptions options = with_mask(mods::causal());
  options.kv_lengths = lengths;
  options.q_start = starts;
  plan({}, options);
}

void plan_packed() {
  const Tensor q = numbers({0, 100, 150}).to(kFirst), kv = numbers({0, 30, 130}).to(kFirst);
  AttentionOptions options;
  options.cu_seqlens_q = q;
  options.cu_seqlens_kv = kv;
  options.max_q_len = 100;
  options.max_kv_len = 100;
  plan({.batch = 1}, options);
}

void plan_pages(std::int64_t q_rows) {
  const CallTensors call({.batch = 2, .q_rows = q_rows, .kv_rows = 64}), pages({.batch = 7, .kv_rows = 64});
  const Tensor table = there(DType::i32, {2, 5}), lengths = numbers({257, 1}).to(kFirst);
  AttentionTensors tensors = call.tensors();
  tensors.k = pages.tensors().k;
  tensors.v = pages.tensors().v;
  AttentionOptions options;
  options.page_table = table;
  options.kv_lengths = lengths;
  AttentionPlan(tensors, options);
}

/// Latent attention: the values are the first columns of the keys.
void plan_latent() {
  const CallTensors call({.q_heads = 16, .kv_heads = 1, .q_rows = 1, .dim = 192, .v_dim = 128});
  AttentionTensors tensors = call.tensors();
  tensors.v = slice(tensors.k, 3, 0, 128);
  AttentionPlan(tensors, {});
}

/// An address that TMA does not take.
void plan_copied() {
  const CallTensors call;
  const Tensor memory = there(DType::bf16, {2 * 4 * 150 * 128 + 1});
  AttentionTensors tensors = call.tensors();
  tensors.q = ConstTensorView(static_cast<const char*>(memory.data()) + 2, DType::bf16, {2, 4, 150, 128}, kFirst);
  AttentionPlan(tensors, {});
}

void plan_captures() {
  const Tensor ids = there(DType::i32, {2, 150}), slopes = there(DType::f32, {4}), sinks = there(DType::f32, {4});
  AttentionOptions options = masked_options(ids);
  options.score_mod = leaf::score() + Capture("slopes", DType::f32, 1)(leaf::h()) * to_f32(leaf::kv_idx());
  options.bindings.captures["slopes"] = slopes;
  options.sinks = sinks;
  plan({.kv_rows = 150}, options);
}

void plan_lists() {
  BlockLists lists;
  lists.kv_num_blocks = Tensor::zeros(DType::i32, {1, 1, 2});
  lists.kv_indices = Tensor::zeros(DType::i32, {1, 1, 2, 2});
  static_cast<std::int32_t*>(lists.kv_num_blocks.data())[1] = 1;
  AttentionOptions options = with_mask(mods::causal());
  options.block_mask = std::make_shared<const BlockMask>(
      BlockMask::from_lists(lists, MaskShape::uniform(2, 4, 150, 130), {128, 128}, options.mask_mod));
  plan({}, options);
}

void plan_backward(std::int64_t dim, bool capture) {
  const CallTensors call({.dim = dim});
  const AttentionTensors& forward = call.tensors();
  const Tensor d_o = there(DType::bf16, forward.o.shape), dq = there(DType::bf16, forward.q.shape),
               dk = there(DType::bf16, forward.k.shape), bias = there(DType::f32, {4, 150, 130}),
               d_bias = there(DType::f32, {4, 150, 130});
  BackwardTensors tensors = {.q = forward.q, .k = forward.k, .v = forward.v, .o = forward.o, .d_o = d_o};
  tensors.lse = *forward.lse;
  tensors.dq = dq;
  tensors.dk = dk;
  AttentionOptions options = with_mask(mods::causal());
  if (capture) {
    options.score_mod = leaf::score() + Capture("bias", DType::f32, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
    options.bindings.captures["bias"] = bias;
    tensors.d_captures["bias"] = d_bias;
  }
  AttentionPlan(tensors, options);
}

void merge() {
  const Dims shape = {2, 3, 50, 64}, rows = {2, 3, 50};
  const Tensor a = there(DType::f32, shape), b = there(DType::bf16, shape), lse = there(DType::f32, rows);
  merge_states(std::vector<ConstTensorView>{a, b}, std::vector<ConstTensorView>{lse, lse}, a, {});
}

void append() {
  const Tensor k = there(DType::bf16, {2, 3, 5, 64}), cache = there(DType::e4m3, {2, 3, 50, 64}),
               values = there(DType::e5m2, {2, 3, 50, 64}), lengths = there(DType::i32, {2});
  append_kv({.k = k, .k_cache = cache, .v = k, .v_cache = values.view()}, {.kv_lengths = lengths});
}

void move() {
  const Tensor from = there(DType::bf16, {2, 3, 5, 64}), to = there(DType::f32, {2, 3, 5, 64});
  gpu::move_rows(cuda_gpu(), {.from = from, .to = to, .rows = 5});
}

/// By name, for messages.
std::map<std::string, Work> all_work() {
  return {
      {"plain", [] { plan({}); }},
      {"causal", [] { plan({.rows_first = true}, with_mask(mods::causal())); }},
      {"many tiles", [] { plan(many_tiles(), with_mask(mods::causal())); }},
      {"gaps", [] { plan({.dim = 80, .column_gap = 8, .k_shared = true, .with_lse = false}); }},
      {"wide", [] { plan({.dim = 256}, with_mask(mods::sliding_window(64, 0))); }},
      {"f32", [] { plan({.dtype = DType::f32}); }},
      {"fp8", [] { plan({.dtype = DType::e4m3}); }},
      {"few queries", [] { plan({.q_rows = 1, .kv_rows = 1000}); }},
      {"lengths of the host", [] { plan_lengths({}); }},
      {"lengths of the GPU", [] { plan_lengths(kFirst); }},
      {"packed", plan_packed},
      {"pages", [] { plan_pages(150); }},
      {"pages, few queries", [] { plan_pages(1); }},
      {"latent", plan_latent},
      {"copied", plan_copied},
      {"captures", plan_captures},
      {"lists", plan_lists},
      {"sigmoid", [] { plan({.with_lse = false}, {.scale = 0.5, .normalizer = Normalizer::sigmoid}); }},
      {"backward", [] { plan_backward(128, false); }},
      {"backward of a capture", [] { plan_backward(64, true); }},
      {"wide backward", [] { plan_backward(192, false); }},
      {"merge", merge},
      {"moved rows", move},
      {"append", append},
  };
}

/// Errors, a line each.
std::string do_all() {
  std::string wrong;
  for (const auto& [name, work] : all_work()) {
    try {
      work();
    } catch (const Error& error) {
      wrong += fmt::format("{}: {}\n", name, error.what());
    }
  }
  return wrong;
}

class Archives : public LaunchCase {
 protected:
  void SetUp() override {
    const char* const name = testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = fmt::format("{}/archives-{}-{}", std::getenv("HEDDLE_CACHE_DIR"), getpid(), name);
    path_ = folder_ + ".archive";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  /// A process with a compiler. It has a cache of its own.
  template <class Report>
  std::string with_compiler(const std::string& lines, Report&& report) const {
    return in_child([&]() -> std::string {
      set_up("", FAKE_NVRTC, folder_ + "-compiled");
      setenv("FAKE_NVRTC_LINES", (lines + "//kernels\n").c_str(), 1);
      return report();
    });
  }
  /// A process without one, which uses the archive.
  template <class Report>
  std::string without_compiler(Report&& report) const {
    return in_child([&]() -> std::string {
      set_up(path_, "/nonexistent", folder_ + "-not-compiled");
      return report();
    });
  }
  /// Does the work while its calls are heard, and writes them into an archive.
  std::string write(const std::string& lines, const Work& work, const std::string& gpu = "h200") const {
    return with_compiler(lines, [&] {
      std::string calls;
      set_event_listener([&](const std::string& event) { calls += event + "\n"; });
      work();
      set_event_listener({});
      const std::vector<std::string> gpus = {gpu};
      const ArchiveReport report = write_archive(path_, calls, gpus);
      return fmt::format("{} kernels, {} rejected", report.kernels, report.rejected);
    });
  }

  std::string path_, folder_;

 private:
  static void set_up(const std::string& archive, const char* nvrtc, const std::string& cache) {
    setenv("HEDDLE_ARCHIVE", archive.c_str(), 1);
    setenv("HEDDLE_NVRTC", nvrtc, 1);
    setenv("HEDDLE_CACHE_DIR", cache.c_str(), 1);
    unsetenv("HEDDLE_FAMILY");
  }
};

// The process that made the calls needs the very kernels that the archive gets, and no more.
TEST_F(Archives, HoldEveryKernelOfCalls) {
  EXPECT_EQ(with_compiler(kFigures,
                          [&] {
                            std::string calls;
                            set_event_listener([&](const std::string& event) { calls += event + "\n"; });
                            jit::Recording needed;
                            std::string wrong;
                            {
                              const jit::Recording::Scope scope(needed);
                              wrong = do_all();
                            }
                            set_event_listener({});
                            const std::vector<std::string> gpus = {"h200"};
                            const std::int64_t first = write_archive(path_, calls, gpus).kernels;
                            if (write_archive(path_, calls, gpus).kernels != first) wrong += "another number at once\n";
                            std::map<std::string, int> found;
                            for (const auto& kernel : needed.kernels()) ++found[kernel.name];
                            for (const auto& kernel : read_archive(path_).kernels) --found[kernel.name];
                            for (const auto& [name, count] : found) {
                              if (count != 0) wrong += fmt::format("{}: {} too few\n", name, count);
                            }
                            return wrong;
                          }),
            "");
  EXPECT_EQ(without_compiler([] {
              const std::string wrong = do_all();
              const KernelCounts counts = kernel_counts();
              return wrong + (counts.compiled == 0 && counts.from_disk == 0 && counts.from_archive > 20
                                  ? ""
                                  : fmt::format("{} from archives", counts.from_archive));
            }),
            "");
}

// A process without a compiler passes the kernels that are not made well, as one with a compiler does.
TEST_F(Archives, HoldRejections) {
  EXPECT_THAT(write(kSpilling, [] { plan({}); }), testing::Not(HasSubstr(" 0 rejected")));
  EXPECT_EQ(without_compiler([] {
              const CallTensors tensors(Call{});
              const AttentionPlan plan(tensors.tensors(), {});
              const Json explained = Json::parse(plan.explain_json());
              const bool rejected = explained["rejected"].dump().find("16 bytes are spilled") != std::string::npos;
              return fmt::format("{} {} {} {}", explained["plan"].contains("made_badly"), rejected,
                                 kernel_counts().rejected > 0, explained["kernel"]["origin"].get<std::string>());
            }),
            "true true true from an archive");
}

// Kernels that find a mask's rows on the GPU. The fake driver's find none, so here they are made and not launched.
TEST_F(Archives, HoldKernelsOfMasks) {
  const auto calls = [] {
    plan_captures();
    unsetenv("HEDDLE_HOST_MASKS");  // as where the archive is used
  };
  EXPECT_THAT(write(kFigures, calls), testing::StartsWith("3 kernels"));
  EXPECT_EQ(without_compiler([] {
              const Tensor ids = there(DType::i32, {2, 150});
              const MaskShape shape = MaskShape::uniform(2, 4, 150, 150);
              const gpu::MaskRows rows(cuda_gpu(), 0,
                                       expr::simplify(masked_options(ids).mask_mod, expr::Precision::f32),
                                       plan::kv_start_of(shape.sequences));
              return fmt::format("{} from archives", kernel_counts().from_archive);
            }),
            "1 from archives");
}

TEST_F(Archives, SayWhatTheyLack) {
  EXPECT_EQ(write(kFigures, [] { plan({}); }), "1 kernels, 0 rejected");
  const auto error_of = [](const Work& work) -> std::string {
    try {
      work();
    } catch (const Error& error) {
      return fmt::format("{} {}", static_cast<int>(error.code()), error.what());
    }
    return "nothing was thrown";
  };
  const std::string code = fmt::format("{} ", static_cast<int>(ErrorCode::unsupported));
  EXPECT_THAT(without_compiler([&] { return error_of([] { plan({}, with_mask(mods::causal())); }); }),
              AllOf(testing::StartsWith(code + "no archive has the kernel 'forward_sm90 bf16 d128"),
                    HasSubstr(path_ + " (1 kernels for sm_90a)"),
                    HasSubstr("add this call to the list of `heddle aot`"), HasSubstr("NVRTC cannot be used")));
  EXPECT_THAT(without_compiler([&] { return error_of([] { plan({}, {.score_mod = leaf::score() * 2 + 1}); }); }),
              HasSubstr(code));
  EXPECT_EQ(write(
                kFigures, [] { plan({}); }, "a100"),
            "1 kernels, 0 rejected");
  EXPECT_THAT(without_compiler([&] { return error_of([] { plan({}); }); }),
              HasSubstr("name a GPU of sm_90a to `heddle aot`"));
  std::filesystem::resize_file(path_, 100);
  EXPECT_THAT(without_compiler([&] { return error_of([] { plan({}); }); }),
              AllOf(testing::StartsWith(fmt::format("{} the archive ", static_cast<int>(ErrorCode::io))),
                    HasSubstr("bytes short; a whole file that `heddle aot` wrote is accepted")));
}

}  // namespace
}  // namespace heddle::cuda
