// The text and the JSON of what was decided, to the letter.
#include "engine/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "backend/portable/shared/forward_mma_config.h"
#include "expect_error.h"
#include "families/backward_mma/backward_mma.h"
#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "families/table.h"
#include "heddle/mods.h"
#include "problem/call.h"

namespace heddle::test {
namespace {

using Json = nlohmann::ordered_json;
using base::JsonTree;

/// The text as users read it.
Json parsed(const JsonTree& explanation) { return Json::parse(explanation.dump(2)); }

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

plan::Plan cpu_plan() {
  plan::Plan plan;
  plan.family = plan::family_of("cpu_forward", BackendChoice::cpu);
  plan.tile = {48, 64};
  plan.threads = 3;
  plan.workspace_bytes = 4096;
  return plan;
}

plan::Plan hopper_plan() {
  plan::Plan plan;
  plan.family = plan::family_of("forward_sm90", BackendChoice::cuda);
  plan.tile = {128, 80};
  plan.device = 1;
  plan.multiprocessors = 132;
  plan.grid = 132;
  plan.family_part = shared::ForwardSm90Config{.qk_dim = 64,
                                               .v_dim = 64,
                                               .warpgroups = 2,
                                               .kv_block = 80,
                                               .stages = 2,
                                               .q_buffers = 1,
                                               .o_panels = 1,
                                               .f16 = false,
                                               .lse = true,
                                               .masked = true};
  plan.predicted = plan::Prediction{.seconds = 2.5e-4, .flops = 1.5e11, .bytes = 3 << 20};
  plan.rejected = {"192 x 80: predicted 12 % slower", "128 x 96: spills 40 bytes"};
  return plan;
}

TEST(Explain, SaysWhatIsThere) {
  const Call call;
  const JsonTree kernel = JsonTree::object().add("summary", "cpu_forward in f32, 3 threads");
  EXPECT_EQ(
      engine::to_text(engine::explanation(call.validate(), nullptr, "", cpu_plan(), kernel)),
      "problem    forward softmax f32 q[2, 4, 6, 16] f32 k[.., 2, 8, 16] f32 v[.., 2, 8, 24] -> f32 o, lse; scale "
      "0.25; full lengths; on the CPU\n"
      "score      score\n"
      "mask       everything attends\n"
      "weight     1\n"
      "plan       cpu_forward on cpu, tile 48 queries x 64 keys, 3 threads, workspace 4096 bytes\n"
      "kernel     cpu_forward in f32, 3 threads\n");
}

TEST(Explain, ShowsEveryStage) {
  Call call(DType::bf16);
  call.options.mask_mod = !(leaf::kv_idx() > leaf::q_idx());
  call.options.score_mod = leaf::score() * 2.0;
  const problem::AttentionProblem problem = call.validate();
  const BlockMask mask = BlockMask::build(problem.mask_mod, {problem.q_heads, problem.sequences}, {4, 4});
  const JsonTree kernel = JsonTree::object()
                              .add("summary", "forward_sm90")
                              .add("registers", 168)
                              .add("cache", JsonTree::array_of("from disk", "folder /tmp/x", "of 3"))
                              .add("notes", "two\n\nlines\n")
                              .add("more", "");
  const JsonTree explanation =
      engine::explanation(problem, &mask, "on the host: `exp` may differ", hopper_plan(), kernel);
  EXPECT_EQ(engine::to_text(explanation),
            "problem    forward softmax bf16 q[2, 4, 6, 16] bf16 k[.., 2, 8, 16] bf16 v[.., 2, 8, 24] -> bf16 o, lse; "
            "scale 0.25; full lengths; on the CPU\n"
            "score      score * 2.0\n"
            "mask       not kv_idx > q_idx\n"
            "           simplified: q_idx >= kv_idx\n"
            "           blocks of 4 x 4: 8 full, 16 partial, 8 empty (density 0.75); 3 runs in 84 bytes; 0 tiles "
            "evaluated\n"
            "           rows found on the host: `exp` may differ\n"
            "weight     1\n"
            "plan       forward_sm90 on cuda:1, tile 128 queries x 80 keys, 132 CTAs, workspace 0 bytes\n"
            "           qk_dim 64, v_dim 64, warpgroups 2, kv_block 80, stages 2, q_buffers 1, o_panels 1, lse true, "
            "masked true, shared_memory_bytes " +
                std::to_string(shared::forward_sm90_memory(hopper_plan().part<shared::ForwardSm90Config>()).bytes) +
                "\n"
                "predicted  250 us for 150 GFLOP and 3 MiB: 600 TFLOP/s, 12.6 GB/s\n"
                "rejected   192 x 80: predicted 12 % slower\n"
                "           128 x 96: spills 40 bytes\n"
                "kernel     forward_sm90\n"
                "           registers: 168\n"
                "           cache:\n"
                "           from disk\n"
                "           folder /tmp/x\n"
                "           of 3\n"
                "           notes:\n"
                "           two\n"
                "           lines\n");
}

TEST(Explain, SaysWhichHeadsShareATile) {
  plan::Plan plan = hopper_plan();
  plan.part<shared::ForwardSm90Config>().packed_queries = 16;
  plan.packed_heads = 5;
  plan.packed_queries = 16;
  const JsonTree explanation = engine::explanation(Call().validate(), nullptr, "", plan, nullptr);
  const Json of_plan = parsed(explanation)["plan"];
  EXPECT_EQ(of_plan["packed_heads"], 5);
  EXPECT_EQ(of_plan["config"]["packed_queries"], 16);
  EXPECT_THAT(engine::to_text(explanation),
              testing::HasSubstr("\n           packs 5 heads a tile, 16 queries of each\n"));
}

// Settings differ from family to family: the text must ask for none that one of them lacks.
TEST(Explain, HasATextOfEveryFamily) {
  for (const plan::Family& family : plan::families()) {
    plan::Plan plan;
    plan.family = &family;
    const bool gpu = family.backend == BackendChoice::cuda || family.backend == BackendChoice::amd;
    plan.multiprocessors = gpu ? 8 : 0;
    if (family.name == "forward_sm90") plan.family_part = shared::ForwardSm90Config();
    if (family.name == "backward_sm90") plan.family_part = shared::BackwardSm90Config();
    if (family.name == "decode_mma" || family.name == "forward_mma") plan.family_part = shared::ForwardMmaConfig();
    if (family.name == "backward_mma") plan.family_part.emplace<plan::BackwardMmaKernels>().passes.resize(1);
    plan.packed_heads = 3, plan.packed_queries = 7;
    plan.access = {"k is copied"}, plan.gradients = {"'x' is summed"};
    const std::string text = engine::to_text(engine::explanation(Call().validate(), nullptr, "", plan, nullptr));
    EXPECT_THAT(text, testing::HasSubstr(family.name));
    EXPECT_THAT(text, testing::HasSubstr("\n           packs 3 heads a tile, 7 queries of each\n")) << family.name;
  }
}

TEST(Explain, HasAKeyForEveryFigure) {
  Call call;
  call.options.mask_mod = mods::causal();
  const problem::AttentionProblem problem = call.validate();
  const BlockMask mask = BlockMask::build(problem.mask_mod, {problem.q_heads, problem.sequences}, {4, 4});
  const Json full =
      parsed(engine::explanation(problem, &mask, "on cuda:0", hopper_plan(), JsonTree::object().add("summary", "x")));
  using Keys = std::vector<std::string>;
  EXPECT_EQ(keys_of(full), Keys({"problem", "mods", "mask", "plan", "predicted", "tuned", "rejected", "kernel"}));
  EXPECT_EQ(keys_of(full["problem"]),
            Keys({"summary", "device",  "pass",       "normalizer",   "sinks",   "scale",    "batch",
                  "packed",  "lengths", "page_rows",  "listed_pages", "q_heads", "kv_heads", "q_rows",
                  "kv_rows", "qk_dim",  "q_rest_dim", "k_rest_dim",   "v_dim",   "q_dtype",  "k_dtype",
                  "v_dtype", "o_dtype", "lse",        "max_scores",   "lse_rest"}));
  EXPECT_EQ(keys_of(full["mods"]), Keys({"score", "mask", "weight"}));
  EXPECT_EQ(keys_of(full["mods"]["mask"]), Keys({"given", "simplified", "form"}));
  EXPECT_EQ(keys_of(full["mask"]), Keys({"from_lists", "found", "block", "full", "partial", "empty", "density", "runs",
                                         "bytes", "evaluated_tiles"}));
  EXPECT_EQ(keys_of(full["plan"]), Keys({"family", "backend", "tile", "device", "grid", "workspace_bytes", "config"}));
  EXPECT_EQ(keys_of(full["predicted"]), Keys({"seconds", "flops", "bytes", "rates"}));
  EXPECT_TRUE(full["predicted"]["rates"].is_null());
  EXPECT_EQ(full["rejected"].size(), 2U);
  EXPECT_EQ(full["plan"]["config"]["kv_block"], 80);

  const JsonTree of_least = engine::explanation(Call().validate(), nullptr, "", cpu_plan(), nullptr);
  const Json least = parsed(of_least);
  EXPECT_EQ(keys_of(least), keys_of(full));
  EXPECT_TRUE(least["mods"]["score"].is_null() && least["mask"].is_null() && least["predicted"].is_null());
  EXPECT_EQ(keys_of(least["plan"]), Keys({"family", "backend", "tile", "threads", "workspace_bytes"}));
  EXPECT_EQ(least["plan"]["tile"], Json({48, 64}));
  EXPECT_THAT(engine::to_text(of_least), testing::HasSubstr("kernel     none prepared\n"));
}

TEST(Explain, PredictsWhatACpuDoes) {
  const Tensor q = Tensor::zeros(DType::bf16, {2, 4, 150, 64}), kv = Tensor::zeros(DType::bf16, {2, 2, 130, 64});
  const Tensor o = Tensor::zeros(DType::bf16, {2, 4, 150, 64});
  const AttentionPlan plan({q, kv, kv, o, {}}, {.backend = BackendChoice::cpu});
  const Json predicted = Json::parse(plan.explain_json())["predicted"];
  EXPECT_EQ(predicted["flops"], 4.0 * 64 * 2 * 4 * 150 * 130);
  const Json& rates = predicted["rates"];  // a roof: no plan is predicted above it
  EXPECT_LE(predicted["flops"].get<double>() / predicted["seconds"].get<double>(),
            1.001 * rates["flops_per_second"].get<double>());
  EXPECT_GT(rates["bytes_per_second"].get<double>(), 1e9);
  EXPECT_EQ(predicted["bytes"], 2.0 * 2 * 64 * (2 * 4 * 150 + 2 * 2 * 130));
  EXPECT_GT(predicted["seconds"], 0);
  EXPECT_THAT(plan.explain(), testing::ContainsRegex("\npredicted  [0-9.]+ [mu]?s for 39.9 MFLOP and 430 KiB: [0-9.]+ "
                                                     "[MGT]FLOP/s, [0-9.]+ GB/s\n"));
}

// Some family of every GPU takes queries and keys of two tensors, however many queries there are.
TEST(Explain, FamiliesThatTakeRowsOfTwoTensors) {
  using testing::HasSubstr;
  const auto explained = [](std::string_view gpu, DType dtype, std::int64_t queries, std::int64_t dim) {
    AttentionTensors tensors;
    tensors.q = {nullptr, dtype, {1, 8, queries, dim - 24}};
    tensors.k = {nullptr, dtype, {1, 1, 1024, dim - 64}};
    tensors.v = tensors.k;
    tensors.v.shape[3] = dim > 256 ? 512 : 64;
    tensors.o = {nullptr, dtype, {1, 8, queries, tensors.v.shape[3]}};
    AttentionOptions options;
    options.q_rest = ConstTensorView(nullptr, dtype, {1, 8, queries, 24});
    options.k_rest = ConstTensorView(nullptr, dtype, {1, 1, 1024, 64});
    return explain_on(gpu, tensors, options).text;
  };
  for (const char* gpu : {"h200", "a100"}) {
    for (const std::int64_t dim : {128, 576}) {
      EXPECT_THAT(explained(gpu, DType::bf16, 1, dim), HasSubstr("decode_mma")) << gpu << " " << dim;
      const std::string many = explained(gpu, DType::f16, 100, dim);
      EXPECT_THAT(many, HasSubstr("forward_mma")) << gpu << " " << dim;
      EXPECT_THAT(many, HasSubstr(dim == 128 ? "q[1, 8, 100, 104 + 24] f16 k[.., 1, 1024, 64 + 64]"
                                             : "q[1, 8, 100, 552 + 24] f16 k[.., 1, 1024, 512 + 64]"));
    }
    EXPECT_THAT(explained(gpu, DType::f32, 100, 128), HasSubstr("forward_mma")) << gpu;
  }
  EXPECT_THAT(explained("h200", DType::bf16, 100, 128),
              HasSubstr("q_rest is given; queries of one tensor are accepted"));
  EXPECT_THAT(explained("mi300x", DType::bf16, 100, 128), HasSubstr("forward_mma"));
}

TEST(Explain, AGpuMayHaveANumberOfMultiprocessors) {
  AttentionTensors tensors;
  tensors.q = tensors.k = tensors.v = {nullptr, DType::bf16, {4, 8, 2048, 128}};
  tensors.o = {nullptr, DType::bf16, {4, 8, 2048, 128}};
  EXPECT_EQ(Json::parse(explain_on("h200", tensors, {}).json)["plan"]["grid"], 132);
  EXPECT_EQ(Json::parse(explain_on("h200:20", tensors, {}).json)["plan"]["grid"], 20);
  for (const char* wrong : {"h200:", "h200:0", "h200:5000", "h200:2x"}) {
    expect_error([&] { explain_on(wrong, tensors, {}); }, ErrorCode::invalid_argument,
                 testing::HasSubstr("behind the colon a number of multiprocessors from 1 to 4096 is accepted"));
  }
}

// Nothing of them is read: the memory is not there.
TEST(Explain, SaysWhatLengthsOnTheDeviceDecide) {
  AttentionTensors tensors;
  tensors.q = {nullptr, DType::bf16, {4, 8, 512, 128}};
  tensors.k = tensors.v = {nullptr, DType::bf16, {4, 8, 1024, 128}};
  tensors.o = {nullptr, DType::bf16, {4, 8, 512, 128}};
  const ConstTensorView there(reinterpret_cast<const void*>(0x1000), DType::i32, {4}, {1}, {DeviceKind::cuda, 0});
  AttentionOptions options;
  options.kv_lengths = there;
  options.max_kv_len = 1000;
  options.mask_mod = mods::causal();
  const auto explained = [&] { return explain_on("h200", tensors, options); };
  using testing::HasSubstr, testing::Not;
  EXPECT_THAT(explained().text,
              HasSubstr("4 sequences, lengths on cuda:0 of up to 512 queries and 1000 keys; on cuda:0"));
  EXPECT_THAT(explained().text, Not(HasSubstr("nowhere")));
  const Json json = Json::parse(explained().json);
  EXPECT_EQ(json["problem"]["lengths"]["max_kv_len"], 1000);
  EXPECT_EQ(json["plan"]["config"]["device_lengths"], true);
  EXPECT_EQ(json["mask"]["full"].get<int>() > 0, true);
  options.q_start = there;
  EXPECT_THAT(explained().text, HasSubstr("q_start there"));
  EXPECT_THAT(explained().text, HasSubstr("rows found nowhere: the mask reads what only cuda:0 knows of the sequences; "
                                          "every block of keys is partial"));
  EXPECT_EQ(Json::parse(explained().json)["mask"]["full"], 0);
  options.kv_start = there;
  EXPECT_THAT(explained().text, HasSubstr("q_start and kv_start there"));
  options.q_start.reset();
  EXPECT_THAT(explained().text, HasSubstr(", kv_start there"));
  EXPECT_EQ(Json::parse(explained().json)["problem"]["lengths"]["kv_start"], true);
  EXPECT_EQ(Json::parse(explained().json)["mask"]["full"], 0);
  options.kv_start.reset();
  options.mask_mod = mods::causal_lower_right();
  EXPECT_THAT(explained().text, HasSubstr("rows found nowhere"));
}

// Units change where the number would pass 1000 (of 1024 bytes).
TEST(Explain, WritesPredictionsInUnits) {
  plan::Plan plan = hopper_plan();
  const problem::AttentionProblem problem = Call().validate();
  const auto line = [&](double seconds, double flops, double bytes) {
    plan.predicted = plan::Prediction{seconds, flops, bytes};
    const std::string text = engine::to_text(engine::explanation(problem, nullptr, "", plan, nullptr));
    const std::size_t begin = text.find("predicted  ") + 11;
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_EQ(line(0.002, 1000, 1000), "2 ms for 1 kFLOP and 1e+03 B: 500 kFLOP/s, 0.0005 GB/s");
  EXPECT_EQ(line(3, 2e12, 2048.0 * 1024 * 1024), "3 s for 2 TFLOP and 2 GiB: 667 GFLOP/s, 0.716 GB/s");
  EXPECT_EQ(line(0, 0, 0), "0 us for 0 FLOP and 0 B");
}

}  // namespace
}  // namespace heddle::test
