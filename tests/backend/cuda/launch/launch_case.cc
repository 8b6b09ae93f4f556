#include "launch_case.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "backend/cuda/jit/cuda_jit.h"
#include "heddle/mods.h"

namespace heddle::cuda {
namespace {

/// One folder for all tests of the program, so that each kernel is compiled once.
class Folder : public testing::Environment {
 public:
  void SetUp() override {
    path_ = (std::filesystem::temp_directory_path() / "heddle-launch-XXXXXX").string();
    ASSERT_NE(::mkdtemp(path_.data()), nullptr);
    ::setenv("HEDDLE_CACHE_DIR", path_.c_str(), 1);
    ::setenv("HEDDLE_CUDA_DRIVER", FAKE_DRIVER, 1);
    ::unsetenv("HEDDLE_DUMP");
    if (std::getenv("HEDDLE_TEST_FULL") == nullptr) {
      ::setenv("HEDDLE_NVRTC", FAKE_NVRTC, 1);
      ::setenv("FAKE_NVRTC_LINES", (std::string(kFigures) + "//kernels\n").c_str(), 1);
    }
    // The launches are forward_sm90's; the planner gives few queries to another family.
    ::setenv("HEDDLE_FAMILY", "forward_sm90", 1);
    // The fake driver's kernels find no rows.
    ::setenv("HEDDLE_HOST_MASKS", "1", 1);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

 private:
  std::string path_;
};
[[maybe_unused]] const auto* const folder = testing::AddGlobalTestEnvironment(new Folder);

}  // namespace

void LaunchCase::SetUp() {
  ASSERT_EQ(driver_missing(), "");
  const std::string missing = jit::compiler_missing();
  if (missing.empty()) return;
  if (std::getenv("HEDDLE_REQUIRE_NVRTC") != nullptr) FAIL() << missing;
  GTEST_SKIP() << missing;
}

const FakeDriver& fake() { return *fake_driver(FAKE_DRIVER); }

std::string work_done() {
  const jit::Counts built = jit::counts();
  return fmt::format("{} allocations, {} frees, {} modules, {} unloads, {} copies, {} waits, {} kernels built",
                     fake().allocations.load(), fake().frees.load(), fake().modules.load(), fake().unloads.load(),
                     fake().copies.load(), fake().synchronizes.load(),
                     built.compiled + built.from_memory + built.from_disk);
}

const FakeLaunch& last_launch() { return fake().launched[(fake().forwards - 1) % kFakeLaunchesKept]; }

CallTensors::CallTensors(const Call& call) : workspace_(Tensor::empty_on(call.device, DType::u8, {64})) {
  const std::int64_t v_dim = call.v_dim == 0 ? call.dim : call.v_dim;
  tensors_.q = allocate(call, call.dtype, call.q_shared ? 1 : call.batch, call.q_heads, call.q_rows, call.dim);
  tensors_.k = allocate(call, call.dtype, call.k_shared ? 1 : call.batch, call.kv_heads, call.kv_rows, call.dim);
  tensors_.v = allocate(call, call.dtype, call.v_shared ? 1 : call.batch, call.kv_heads, call.kv_rows, v_dim);
  // Gaps behind rows, so that no two tensors have the same strides.
  constexpr std::int64_t kGap = 6;
  const DType o_dtype = call.o_dtype.value_or(size_of(call.dtype) == 1 ? DType::bf16 : call.dtype);
  tensors_.o = slice(allocate(call, o_dtype, call.batch, call.q_heads, call.q_rows + kGap, v_dim), 2, 0, call.q_rows);
  if (!call.with_lse) return;
  owned_.push_back(Tensor::empty_on(call.device, DType::f32, {call.batch, call.q_heads, call.q_rows + kGap}));
  tensors_.lse = slice(owned_.back().view(), 2, 0, call.q_rows);
}

TensorView CallTensors::allocate(const Call& call, DType dtype, std::int64_t batch, std::int64_t heads,
                                 std::int64_t rows, std::int64_t dim) {
  const bool rows_first = call.rows_first;
  owned_.push_back(Tensor::empty_on(
      call.device, dtype, {batch, rows_first ? rows : heads, rows_first ? heads : rows, dim + call.column_gap}));
  const TensorView own = slice(owned_.back().view(), 3, 0, dim);
  return rows_first ? permute(own, {0, 2, 1, 3}) : own;
}

Call many_tiles() { return {.batch = 3, .q_heads = 64, .kv_heads = 8}; }

AttentionOptions masked_options(const ConstTensorView& ids) {
  AttentionOptions options;
  options.mask_mod = mods::documents(Capture("ids", DType::i32, 2)) &&
                     leaf::q_idx() + param("shift", ExprType::i32) >= leaf::kv_idx() &&
                     to_f32(leaf::kv_idx()) < param("limit", ExprType::f32);
  options.bindings.captures["ids"] = ids;
  options.bindings.params["shift"] = 3;
  options.bindings.params["limit"] = 100.5;
  return options;
}

Planned planned(const AttentionPlan& plan) {
  const nlohmann::json json = nlohmann::json::parse(plan.explain_json())["plan"], config = json["config"];
  const unsigned warpgroups = config["warpgroups"];
  return {.grid = json["grid"],
          .threads = 128 * (1 + warpgroups),
          .shared_bytes = config["shared_memory_bytes"],
          .rows = static_cast<int>(64 * warpgroups),
          .kv_block = config["kv_block"]};
}

const FakeLaunch& launch_of(const CallTensors& call, const AttentionOptions& options) {
  AttentionPlan(call.tensors(), options).run(call.tensors(), {.workspace = call.workspace()});
  return last_launch();
}

const FakeLaunch& run_in(Tensor& workspace, const AttentionPlan& plan, const AttentionTensors& tensors) {
  workspace = Tensor::empty_on(kFirst, DType::u8, {plan.workspace_bytes()});
  plan.run(tensors, {.workspace = workspace.data()});
  return last_launch();
}

FakeStream::FakeStream(const Device& device) {
  const ContextScope scope(device.index);
  check(driver().StreamCreate(&handle_, CUstream_flags::non_blocking), "making a stream");
}

}  // namespace heddle::cuda
