// The portable family on NVIDIA's GPUs: its refusals, its kernels, and HEDDLE_FAMILY.
#include "families/forward_mma/forward_mma.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "backend/portable/portable_config.h"
#include "backend/portable/portable_refuses.h"
#include "backend/portable/portable_text.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "device/known_gpus.h"
#include "expect_error.h"
#include "families/table.h"
#include "heddle/mods.h"
#include "plan/hopper.h"
#include "scoped_environment.h"

namespace heddle::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const device::CudaCaps& caps_of(std::string_view gpu) {
  return std::ranges::find(device::kKnownGpus, gpu, &device::KnownGpu::name)->caps;
}

std::string refusal(const HopperCall& call, const device::CudaCaps& caps) {
  return plan::forward_mma_refuses(call.problem(), call.all_options(), caps);
}

std::vector<plan::Choice> offered(const HopperCall& call, const device::CudaCaps& caps) {
  return plan::forward_mma(call.problem(), call.tensors(), call.all_options(), caps,
                           [&](BlockSize block) { return call.rows_of(block); });
}
shared::ForwardMmaConfig first_of(const HopperCall& call, std::string_view gpu = "a100") {
  return offered(call, caps_of(gpu)).front().plan.part<shared::ForwardMmaConfig>();
}

plan::Plan chosen(const HopperCall& call, const device::CudaCaps& caps) {
  const AttentionOptions options = call.all_options();
  const AttentionTensors tensors = call.tensors();
  const problem::AttentionProblem problem = call.problem();
  const device::Machine machine = {.cpu = {}, .cuda = {caps}, .cuda_missing = {}};
  return plan::choose({problem, tensors, options, machine}, [&](BlockSize block) { return call.rows_of(block); })
      .front()
      .plan;
}

TEST(ForwardMma, TakesWhatItsKernelsCompute) {
  for (const char* gpu : {"a100", "rtx3090", "rtx4090", "rtx5090"}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::f64}) {
      for (const std::int64_t dim : {1, 40, 64, 100, 128}) {
        EXPECT_EQ(
            refusal(
                {.q_heads = 4, .kv_heads = 2, .dim = dim, .mask = mods::causal(), .dtype = dtype, .with_lse = false},
                caps_of(gpu)),
            "");
      }
    }
    EXPECT_EQ(refusal({.dim = 256}, caps_of(gpu)), "");
  }
}

// They become f16 as they are read.
TEST(ForwardMma, TakesKeysOf8Bits) {
  for (const DType q : {DType::bf16, DType::f16, DType::e4m3, DType::e5m2}) {
    for (const char* gpu : {"a100", "rtx4090", "h200"}) {
      EXPECT_EQ(refusal({.dtype = q, .kv_dtype = DType::e5m2}, caps_of(gpu)), "");
    }
  }
  EXPECT_EQ(refusal({.dtype = DType::e4m3, .o_dtype = DType::e4m3}, caps_of("a100")),
            "o is e4m3; f16, bf16, f32 and f64 are accepted");
  const HopperCall call = {.q_rows = 300, .kv_rows = 300, .kv_dtype = DType::e4m3};
  const shared::ForwardMmaConfig config = first_of(call);
  EXPECT_EQ(config.storage, shared::Storage::f16);
  EXPECT_TRUE(config.q_bf16);
  EXPECT_EQ(config.q_fp8, shared::Fp8::none);
  EXPECT_EQ(config.k_fp8, shared::Fp8::e4m3);
  EXPECT_EQ(config.v_fp8, shared::Fp8::e4m3);
  EXPECT_EQ(config.o_type, shared::StorageType::bf16);
  EXPECT_EQ(config.kv_element_bytes(), 1);
  // Many queries of 16 bits beside them had no family; those of 8 bits are forward_sm90's on Hopper.
  EXPECT_EQ(chosen(call, h200()).family->name, "forward_mma");
  EXPECT_EQ(chosen({.q_rows = 300, .kv_rows = 300, .dtype = DType::e4m3}, h200()).family->name, "forward_sm90");
  EXPECT_EQ(chosen({.q_rows = 300, .kv_rows = 300, .dtype = DType::e4m3}, caps_of("a100")).family->name, "forward_mma");
  // Nothing of few such queries was measured here.
  EXPECT_FALSE(offered({.q_rows = 1, .kv_rows = 3000, .kv_dtype = DType::e4m3}, h200()).front().plan.predicted);
  // A slice begins where 16 bytes divide its address.
  const shared::ForwardMmaConfig slice = first_of({.q_rows = 300, .dim = 64, .v_dim = 336, .kv_dtype = DType::e4m3});
  EXPECT_EQ(slice.v_dim, 336 - 160);
  EXPECT_EQ(slice.kv_bytes, 16);
}

// Reals of mods are f64 where q is.
TEST(ForwardMma, TakesModsOfF64) {
  for (const char* gpu : {"a100", "h200"}) {
    HopperCall capped{.dim = 64, .mask = to_f32(leaf::q_idx()) >= 0.5, .dtype = DType::f64, .with_lse = false};
    capped.options.score_mod = mods::softcap(20);
    capped.options.weight_mod = mods::dropout(0.5, 7);
    EXPECT_EQ(refusal(capped, caps_of(gpu)), "");
    const plan::KernelMods mods = offered(capped, caps_of(gpu)).front().plan.mods;
    EXPECT_EQ(mods.form, shared::ScoreForm::mapped);
    const std::string text = portable::config_and_mods_text(first_of(capped, gpu), mods,
                                                            device_text::layout_of(mods.all(), expr::Precision::f64));
    EXPECT_THAT(text, HasSubstr("double score"));
    EXPECT_THAT(text, testing::Not(HasSubstr("float")));
  }
}

// Values of more columns than a thread has sums for: the second slice ends with the last one, and begins where rows
// stay aligned if it may.
TEST(ForwardMma, ComputesWideValuesInSlices) {
  const auto slices = [](std::int64_t dim, std::int64_t v_dim, DType dtype = DType::bf16) {
    const auto config = first_of(
        {.q_rows = 300, .kv_rows = 300, .dim = dim, .v_dim = v_dim, .dtype = dtype, .with_lse = false}, "h200");
    return std::array{config.value_slices, config.v_dim, config.kv_bytes, config.o_bytes};
  };
  EXPECT_EQ(slices(256, 256), (std::array{1, 256, 16, 16}));
  EXPECT_EQ(slices(512, 512), (std::array{2, 256, 16, 16}));
  EXPECT_EQ(slices(576, 512), (std::array{2, 256, 16, 16}));
  EXPECT_EQ(slices(320, 328), (std::array{2, 168, 16, 16}));
  EXPECT_EQ(slices(64, 510), (std::array{2, 256, 4, 4}));
  EXPECT_EQ(slices(64, 300), (std::array{2, 156, 8, 8}));
  EXPECT_EQ(slices(160, 160, DType::f64), (std::array{2, 80, 16, 16}));
  EXPECT_EQ(slices(64, 255, DType::f64), (std::array{2, 128, 8, 8}));
  // Rows stand at multiples of 16 bytes, and the second slice of 255 begins at an odd element.
  const HopperCall odd = {.q_rows = 300, .kv_rows = 300, .dim = 64, .v_dim = 511, .with_lse = false};
  AttentionTensors padded = odd.tensors();
  for (Dims* strides : {&padded.v.strides, &padded.o.strides}) *strides = {512 * 300, 512 * 300, 512, 1};
  const problem::AttentionProblem problem = odd.problem();
  const auto configs =
      plan::forward_mma_configs(problem, plan::portable_mods(problem), padded, {}, 227 << 10, plan::kNvidia);
  EXPECT_EQ(configs.front().v_dim, 256);
  EXPECT_EQ(configs.front().kv_bytes, 2);
  EXPECT_EQ(configs.front().o_bytes, 2);
}

// Where 64 rows of queries have no room.
TEST(ForwardMma, HasTilesOfFewerRows) {
  const HopperCall f32 = {.dim = 512, .dtype = DType::f32, .with_lse = false};
  const auto tile = [](const shared::ForwardMmaConfig& config) {
    return std::array{config.rows(), config.tile().unit_rows, config.packed_heads};
  };
  EXPECT_EQ(tile(first_of(f32, "h200"))[0], 64);
  EXPECT_EQ(tile(first_of(f32, "a100")), (std::array{32, 32, 1}));
  EXPECT_EQ(tile(first_of(f32, "l4")), (std::array{16, 16, 1}));
  device::CudaCaps small = caps_of("l4");
  small.shared_memory_bytes = 64 << 10;
  expect_error([&] { offered(f32, small); }, ErrorCode::unsupported, HasSubstr("16 rows x 16 keys: needs "));
}

/// A call whose q and k hold granules of a longer sequence.
HopperCall in_granules(const Expr& score, const Expr& mask, std::int64_t rows, std::int64_t q_rows = 1000) {
  HopperCall call{.q_heads = 64, .kv_heads = 16, .q_rows = q_rows, .kv_rows = 1024, .dim = 64};
  static const Tensor granules = Tensor::zeros(DType::i32, {16}), slopes = Tensor::zeros(DType::f32, {64});
  for (const char* name : {"q_granules", "kv_granules"}) call.options.bindings.captures[name] = granules;
  call.options.bindings.captures["slopes"] = slopes;
  const auto placed = [&](const Expr& mod) {
    return mods::by_granules(mod, Capture("q_granules", DType::i32, 1), Capture("kv_granules", DType::i32, 1), rows);
  };
  call.options.score_mod = placed(score);
  call.mask = placed(mask);
  return call;
}

TEST(ForwardMma, LooksUpPositionsWhereStepsLieInGranules) {
  const Expr alibi = mods::alibi(Capture("slopes", DType::f32, 1));
  const auto placed = [](const plan::Choice& choice) {
    const auto& config = choice.plan.part<shared::ForwardMmaConfig>();
    return std::array{config.placed_queries, config.placed_keys};
  };
  const auto has_128_keys = [](const plan::Choice& choice) { return choice.plan.tile.kv == 128; };
  const std::vector<plan::Choice> wide = offered(in_granules(alibi, mods::causal(), 128), caps_of("a100"));
  EXPECT_TRUE(std::ranges::any_of(wide, has_128_keys));
  EXPECT_EQ(wide.front().plan.forms.places, "queries by granules of 128 rows, keys by granules of 128 rows");
  EXPECT_EQ(wide.front().plan.forms.score, "added: t = 1 * score + slopes[h] * f32(kv_idx - q_idx), for each pair");
  const std::vector<plan::Choice> narrow = offered(in_granules(alibi, mods::causal(), 64), caps_of("a100"));
  EXPECT_TRUE(std::ranges::none_of(narrow, has_128_keys));
  for (const plan::Choice& choice : narrow) EXPECT_EQ(placed(choice), (std::array{true, true}));
  EXPECT_THAT(narrow.front().plan.rejected,
              testing::Contains("128 rows x 128 keys: 128 keys do not divide the 64 of a granule, whose positions mods "
                                "read"));
  // A cap is mapped, and as it was written.
  const plan::Choice capped = offered(in_granules(mods::softcap(20) + alibi, mods::causal(), 64), caps_of("a100"))[0];
  EXPECT_EQ(placed(capped), (std::array{true, true}));
  EXPECT_THAT(capped.plan.forms.score, testing::Not(HasSubstr("granules")));
  // Few queries of several heads, and a GPU that decode_mma would take.
  const plan::Choice few = offered(in_granules(alibi, mods::causal(), 64, 4), caps_of("a100")).front();
  EXPECT_TRUE(few.plan.part<shared::ForwardMmaConfig>().packs());
  EXPECT_EQ(placed(few), (std::array{true, true}));
  // Mods that read no position need none; with batch_invariant each mod looks up its own.
  EXPECT_EQ(placed(offered(in_granules(mods::softcap(20), {}, 64), caps_of("a100"))[0]), (std::array{false, false}));
  HopperCall invariant = in_granules(alibi, mods::causal(), 64);
  invariant.options.batch_invariant = true;
  EXPECT_EQ(placed(offered(invariant, caps_of("a100")).front()), (std::array{false, false}));
}

// A mask whose blocks 64 rows do not divide has tiles of 32 rows or of 16, which the list counts as they are.
TEST(ForwardMma, HasTilesOfSmallBlocks) {
  const auto of_blocks = [](BlockSize block, DType dtype = DType::bf16) {
    HopperCall call{
        .q_heads = 4, .kv_heads = 4, .q_rows = 300, .kv_rows = 300, .dim = 64, .mask = mods::causal(), .dtype = dtype};
    call.options.block_mask =
        std::make_shared<BlockMask>(BlockMask::build(mods::causal(), {4, call.problem().sequences}, block));
    const plan::Choice choice = offered(call, caps_of("a100")).front();
    const auto config = choice.plan.part<shared::ForwardMmaConfig>();
    EXPECT_EQ(choice.plan.schedule->items.size(),
              4U * static_cast<std::size_t>((300 + config.rows() - 1) / config.rows()));
    return std::array{config.rows(), config.tile().unit_rows, config.kv_block, config.packed_heads};
  };
  EXPECT_EQ(of_blocks({16, 64}), (std::array{16, 16, 64, 1}));
  EXPECT_EQ(of_blocks({48, 32}), (std::array{16, 16, 32, 1}));
  EXPECT_EQ(of_blocks({96, 16}), (std::array{32, 32, 16, 1}));
  EXPECT_EQ(of_blocks({32, 64}, DType::f32), (std::array{32, 32, 32, 1}));
  EXPECT_EQ(of_blocks({128, 64})[1], 64);
  expect_error(
      [&] {
        of_blocks({8, 64});
      },
      ErrorCode::unsupported, HasSubstr("64 queries do not divide the 8 of a block of block_mask"));
}

// Tiles of as many heads as 64 rows hold have no room there.
TEST(ForwardMma, PacksFewerHeadsWhereAllHaveNoRoom) {
  const auto few = [](const char* gpu, std::int64_t queries, std::int64_t heads, std::int64_t dim, DType dtype) {
    const HopperCall call = {.q_heads = heads,
                             .q_rows = queries,
                             .kv_rows = 700,
                             .dim = dim,
                             .v_dim = std::min<std::int64_t>(dim, 512),
                             .dtype = dtype,
                             .with_lse = false};
    const auto config = first_of(call, gpu);
    EXPECT_LE(shared::forward_mma_memory(config).bytes, caps_of(gpu).shared_memory_bytes);
    return std::array{config.packed_heads, config.rows()};
  };
  EXPECT_EQ(few("l4", 4, 16, 512, DType::bf16), (std::array{16, 64}));
  EXPECT_EQ(few("l4", 4, 16, 576, DType::bf16), (std::array{8, 32}));
  EXPECT_EQ(few("l4", 9, 4, 576, DType::bf16), (std::array{2, 32}));
  EXPECT_EQ(few("l4", 20, 1, 576, DType::bf16), (std::array{1, 32}));
  EXPECT_EQ(few("l4", 9, 4, 320, DType::f32), (std::array{2, 32}));
  EXPECT_EQ(few("a100", 16, 4, 256, DType::f64), (std::array{2, 32}));
  EXPECT_EQ(few("l4", 16, 4, 256, DType::f64), (std::array{1, 16}));
}

TEST(ForwardMma, RefusesInSentences) {
  const device::CudaCaps& a100 = caps_of("a100");
  device::CudaCaps old = a100;
  old.major = 7, old.minor = 5, old.name = "NVIDIA T4";
  EXPECT_EQ(refusal({}, old), "cuda:0 (NVIDIA T4) has compute capability 7.5; 8.0 and later are accepted");
  EXPECT_EQ(refusal({}, h200()), "");
  problem::AttentionProblem mixed = HopperCall{}.problem();
  mixed.k_dtype = DType::e4m3;
  EXPECT_EQ(
      plan::forward_mma_refuses(mixed, {}, a100),
      "q, k, v are bf16, e4m3, bf16; bf16, f16, f32 or f64 for all is accepted, or k and v of e4m3 or e5m2 beside "
      "q of f16, bf16, e4m3 or e5m2");
  device::AmdCaps mi300x{};
  mi300x.architecture = "gfx942";
  EXPECT_EQ(plan::forward_mma_refuses(HopperCall{.dtype = DType::bf16, .kv_dtype = DType::e4m3}.problem(), {}, mi300x),
            "");
  EXPECT_EQ(plan::forward_mma_refuses(mixed, {}, mi300x), plan::forward_mma_refuses(mixed, {}, a100));
  EXPECT_EQ(refusal({.dim = 577}, a100), "q and k have head dimension 577; 1 to 576 are accepted");
  EXPECT_EQ(refusal({.dim = 64, .v_dim = 513}, a100), "v has head dimension 513; 1 to 512 are accepted");
  EXPECT_EQ(refusal({.dim = 264, .dtype = DType::f64, .with_lse = false}, a100),
            "q and k have head dimension 264; 1 to 256 are accepted of f64, whose sums take a thread's registers "
            "there");
  EXPECT_EQ(refusal({.dtype = DType::bf16, .o_dtype = DType::e5m2}, a100),
            "o is e5m2; f16, bf16, f32 and f64 are accepted");
  HopperCall huge{};
  huge.options.scale = 3e38;
  EXPECT_EQ(refusal(huge, a100), "scale is 3e+38; numbers in the range of f32 are accepted");
  HopperCall wide{.dim = 64, .dtype = DType::f64, .with_lse = false};
  wide.options.scale = 3e38;
  EXPECT_EQ(refusal(wide, a100), "");
  wide.options.scale = 1.7e308;
  EXPECT_EQ(refusal(wide, a100), "scale is 1.7e+308; numbers in the range of f64 are accepted");
}

TEST(ForwardMma, ReadsAsManyBytesAsDivideEveryRow) {
  const HopperCall call{.q_rows = 10, .kv_rows = 10, .dim = 20};
  EXPECT_EQ(first_of(call).kv_bytes, 8);
  EXPECT_EQ(first_of({.dim = 33}).q_bytes, 2);
  EXPECT_EQ(first_of({.dim = 64}).o_bytes, 16);
  TensorView view(nullptr, DType::bf16, Dims{2, 3, 4, 64}, Dims{3 * 4 * 72, 4 * 72, 72, 1});
  EXPECT_EQ(plan::row_alignment(view), 16);
  view.strides[2] = -70;
  EXPECT_EQ(plan::row_alignment(view), 4);
  view.shape[2] = 1;  // its stride says nothing
  EXPECT_EQ(plan::row_alignment(view), 16);
  view.data = reinterpret_cast<void*>(1024 + 2);
  EXPECT_EQ(plan::row_alignment(view), 2);
}

TEST(ForwardMma, PacksTheHeadsOfFewQueries) {
  HopperCall decode{.batch = 2, .q_heads = 32, .kv_heads = 4, .q_rows = 1, .kv_rows = 65536};
  shared::ForwardMmaConfig config = first_of(decode);
  EXPECT_EQ(config.packed_heads, 8);
  EXPECT_EQ(config.rows(), 16);
  EXPECT_EQ(config.key_waves, config.kv_block / 16);
  EXPECT_GT(config.splits, 1);
  decode.q_rows = 4;
  EXPECT_EQ(first_of(decode).rows(), 32);
  decode.q_rows = 8;
  EXPECT_EQ(first_of(decode).rows(), 64);
  decode.q_rows = 33;
  EXPECT_EQ(first_of(decode).packed_heads, 1);
  EXPECT_EQ(first_of(decode).splits, 1);
  // A group that no power of two is: rows stay idle.
  EXPECT_EQ(first_of({.q_heads = 7, .kv_heads = 1, .q_rows = 2, .kv_rows = 4096}).packed_heads, 8);
  // Few keys are not split: each CTA has two steps at least.
  EXPECT_EQ(first_of({.q_heads = 8, .kv_heads = 1, .q_rows = 1, .kv_rows = 128}).splits, 1);
}

TEST(ForwardMma, FewQueriesRingThroughWhatTwoCtasHaveRoomFor) {
  HopperCall decode{.batch = 2, .q_heads = 32, .kv_heads = 4, .q_rows = 1, .kv_rows = 65536};
  struct Expected {
    const char* gpu;
    std::int64_t dim;
    int stages, resident;
  };
  for (const Expected& e : std::initializer_list<Expected>{{"h200", 64, 4, 2},
                                                           {"h200", 128, 3, 2},
                                                           {"a100", 128, 2, 2},
                                                           {"rtx4090", 64, 2, 2},
                                                           {"rtx4090", 128, 2, 1}}) {
    SCOPED_TRACE(fmt::format("{} D {}", e.gpu, e.dim));
    decode.dim = e.dim;
    const shared::ForwardMmaConfig config = first_of(decode, e.gpu);
    EXPECT_EQ(config.stages, e.stages);
    EXPECT_EQ(std::min(2, shared::resident_ctas(shared::forward_mma_memory(config).bytes,
                                                caps_of(e.gpu).shared_memory_bytes)),
              e.resident);
    // There are 8 tiles; all CTAs run at once.
    EXPECT_EQ(config.splits, e.resident * caps_of(e.gpu).multiprocessors / 8);
  }
  decode.q_rows = 500;
  EXPECT_EQ(first_of(decode).stages, 1);
  // Elements at odd addresses are no copies that go on beside the computing.
  EXPECT_EQ(first_of({.q_heads = 8, .kv_heads = 1, .q_rows = 1, .kv_rows = 4096, .dim = 33}).stages, 1);
}

TEST(ForwardMma, CountsTheWorkspaceOfSplitTiles) {
  const HopperCall decode{.batch = 2, .q_heads = 8, .kv_heads = 2, .q_rows = 1, .kv_rows = 65536, .dim = 64};
  const plan::Plan plan = offered(decode, caps_of("a100")).front().plan;
  const shared::ForwardMmaConfig& config = plan.part<shared::ForwardMmaConfig>();
  ASSERT_GT(config.splits, 1);
  constexpr int kTiles = 4;
  EXPECT_EQ(plan.workspace_bytes, 256 + kTiles * config.splits * 16 * (64 + 2) * 4);
  EXPECT_EQ(plan.grid, kTiles * config.splits);
  EXPECT_EQ(offered({.q_rows = 500}, caps_of("a100")).front().plan.workspace_bytes, 0);
}

TEST(ForwardMma, OffersOnlyKernelsThatFitTheChip) {
  for (const device::KnownGpu& gpu : device::kKnownGpus) {
    for (const std::int64_t dim : {64, 128, 256}) {
      for (const DType dtype : {DType::bf16, DType::f32}) {
        for (const plan::Choice& choice : offered({.q_rows = 1000, .dim = dim, .dtype = dtype}, gpu.caps)) {
          EXPECT_LE(shared::forward_mma_memory(choice.plan.part<shared::ForwardMmaConfig>()).bytes,
                    gpu.caps.shared_memory_bytes);
        }
      }
    }
  }
  device::CudaCaps small = caps_of("a100");
  small.shared_memory_bytes = 8 << 10;
  expect_error([&] { offered({}, small); }, ErrorCode::unsupported,
               AllOf(StartsWith("no kernel of forward_mma fits: "), HasSubstr("bytes of shared memory of 8192")));
}

// Lists of tiles are large.
TEST(ForwardMma, KeepsTheListsOfTheBestAlone) {
  const std::vector<plan::Choice> choices = offered({.q_rows = 1000}, caps_of("a100"));
  ASSERT_GT(choices.size(), 1U);
  for (const plan::Choice& choice : choices) {
    EXPECT_EQ(choice.plan.schedule != nullptr, &choice == &choices.front());
  }
}

TEST(ForwardMma, WalksTheCallersBlocks) {
  HopperCall call{.q_rows = 300, .kv_rows = 300, .mask = mods::causal()};
  const problem::AttentionProblem problem = call.problem();
  const auto given = [&](BlockSize block) {
    HopperCall own = call;
    own.options.block_mask =
        std::make_shared<BlockMask>(BlockMask::build(call.mask, {problem.q_heads, problem.sequences}, block, {}));
    return own;
  };
  EXPECT_EQ(first_of(given({128, 128})).kv_block, first_of(call).kv_block);
  EXPECT_EQ(first_of(given({64, 16})).kv_block, 16);
  expect_error(
      [&] {
        first_of(given({60, 64}));
      },
      ErrorCode::unsupported, HasSubstr("64 queries do not divide the 60 of a block of block_mask"));
  expect_error(
      [&] {
        first_of(given({64, 40}));
      },
      ErrorCode::unsupported, HasSubstr("keys do not divide the 40 of a block of block_mask"));
}

// f64: by tensor cores where they are faster than plain multiply-adds, which follow; few rows, too.
TEST(ForwardMma, MultipliesF64ByTensorCoresThatAreFasterAtIt) {
  using shared::FragmentKind;
  for (const device::KnownGpu& gpu : device::kKnownGpus) {
    if (gpu.kind != DeviceKind::cuda) continue;
    const std::string_view name = gpu.name;
    const bool faster = gpu.caps.minor == 0 && gpu.caps.major <= 9;
    EXPECT_EQ(plan::nvidia_target(gpu.caps).of_f64, faster ? FragmentKind::dmma : FragmentKind::fma) << name;
    for (const std::int64_t dim : {16, 64, 128, 200}) {
      for (const std::int64_t rows : {2, 200}) {
        const HopperCall call = {.q_rows = rows, .dim = dim, .dtype = DType::f64, .with_lse = false};
        EXPECT_EQ(first_of(call, name).fragments, faster ? FragmentKind::dmma : FragmentKind::fma) << name << dim;
      }
    }
  }
}

// f32 of many rows: outer products, and tf32's where they are allowed. Few rows and other types do not change.
TEST(ForwardMma, MultipliesF32ByOuterProductsOrTf32) {
  using shared::FragmentKind;
  for (const char* gpu : {"h200", "a100", "rtx4090"}) {
    for (const std::int64_t dim : {40, 64, 128}) {
      HopperCall call = {.q_rows = 200, .dim = dim, .dtype = DType::f32};
      EXPECT_EQ(first_of(call, gpu).fragments, FragmentKind::outer) << gpu << " " << dim;
      call.options.allow_tf32 = true;
      EXPECT_EQ(first_of(call, gpu).fragments, FragmentKind::tf32) << gpu << " " << dim;
      call.q_rows = 2;
      EXPECT_EQ(first_of(call, gpu).fragments, FragmentKind::fma) << gpu << " " << dim;
      call.q_rows = 200;
      call.dtype = DType::bf16;
      EXPECT_EQ(first_of(call, gpu).fragments, FragmentKind::mma) << gpu << " " << dim;
    }
  }
}

TEST(ForwardMma, IsTakenWhereNoBetterFamilyIs) {
  for (const char* gpu : {"a100", "rtx3090", "rtx4090", "rtx5090"}) {
    const plan::Plan plan = chosen({.q_rows = 500}, caps_of(gpu));
    EXPECT_EQ(plan.family->name, "forward_mma");
    EXPECT_THAT(plan.untried, HasSubstr("the portable kernels have run on compute capability 9.0 alone"));
  }
  EXPECT_EQ(chosen({.q_rows = 500}, h200()).family->name, "forward_sm90");
}

// One CTA merges the parts of a tile's CTAs: 64 KB each for 64 rows of 256 columns. An H100 took 124 us, and 72 by
// decode_mma.
TEST(ForwardMma, IsNotTakenWhereMergingTakesLongest) {
  const HopperCall call{.q_heads = 8, .kv_heads = 8, .q_rows = 64, .kv_rows = 8192, .dim = 256};
  EXPECT_EQ(chosen(call, h200()).family->name, "decode_mma");
  EXPECT_NEAR(1e6 * offered(call, h200()).front().plan.predicted->seconds, 112, 10);
}

TEST(ForwardMma, IsTakenWhereTheEnvironmentAsksForIt) {
  const ScopedVariable family("HEDDLE_FAMILY", "forward_mma");
  const plan::Plan plan = chosen({.q_rows = 500}, h200());
  EXPECT_EQ(plan.family->name, "forward_mma");
  EXPECT_THAT(plan.rejected, testing::Contains("forward_sm90: HEDDLE_FAMILY asks for forward_mma"));
}

TEST(ForwardMma, OtherFamiliesAreRefusedWhereTheEnvironmentAsksForOne) {
  {
    const ScopedVariable family("HEDDLE_FAMILY", "forward_sm90");
    EXPECT_EQ(chosen({.q_rows = 500}, h200()).family->name, "forward_sm90");
    expect_error([&] { chosen({.q_rows = 500}, caps_of("a100")); }, ErrorCode::unsupported,
                 HasSubstr("forward_mma: HEDDLE_FAMILY asks for forward_sm90"));
  }
  const ScopedVariable family("HEDDLE_FAMILY", "forward_gemm");
  expect_error(
      [&] { chosen({.q_rows = 500}, h200()); }, ErrorCode::invalid_argument,
      "HEDDLE_FAMILY is 'forward_gemm'; backend cuda has no kernel family of that name, but forward_sm90, decode_mma, "
      "forward_mma, backward_sm90, backward_mma");
}

}  // namespace
}  // namespace heddle::test
