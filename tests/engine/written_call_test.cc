// Calls as JSON and back: every member comes through, and what is wrong with one is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "engine/read_call.h"
#include "engine/write_call.h"
#include "expect_error.h"
#include "heddle/mods.h"

namespace heddle::engine {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

constexpr Device kGpu{DeviceKind::cuda, 0};

const void* at(std::int64_t address) { return reinterpret_cast<const void*>(address); }
ConstTensorView there(DType dtype, const Dims& shape, std::int64_t address = 1 << 20) {
  return {at(address), dtype, shape, kGpu};
}
TensorView output(DType dtype, const Dims& shape) { return {const_cast<void*>(at(1 << 21)), dtype, shape, kGpu}; }

AttentionTensors tensors() {
  AttentionTensors made = {.q = there(DType::bf16, {2, 8, 64, 128}),
                           .k = there(DType::bf16, {2, 2, 96, 128}, 2 << 20),
                           .v = there(DType::bf16, {2, 2, 96, 64}, 3 << 20),
                           .o = output(DType::f16, {2, 8, 64, 64})};
  made.k.strides = {2 * 96 * 128, 128, 256, 1};
  made.lse = output(DType::f32, {2, 8, 64});
  made.max_scores = output(DType::f32, {2, 8, 64});
  made.lse_rest = output(DType::f32, {2, 8, 64});
  return made;
}

template <class Tensors>
Json written(const Tensors& tensors, const AttentionOptions& options) {
  return Json::parse(write_call(tensors, options).text());
}
/// Written, read, and written again.
Json again(const Json& call) {
  const ReadCall read = read_call(call, kGpu);
  return read.backward ? written(*read.backward, read.options) : written(read.forward, read.options);
}

TEST(WrittenCall, TensorsComeBack) {
  AttentionTensors call = tensors();
  call.q.data = at((1 << 20) + 6);
  const Json json = written(call, {});
  EXPECT_EQ(json["of"], "attention");
  EXPECT_EQ(json["q"], (Json{{"dtype", "bf16"}, {"shape", {2, 8, 64, 128}}, {"offset", 6}}));
  EXPECT_EQ(json["k"]["strides"], (Json{2 * 96 * 128, 128, 256, 1}));
  EXPECT_EQ(json["o"]["dtype"], "f16");
  EXPECT_EQ(again(json), json);
}

TEST(WrittenCall, MemoryIsSharedAsItWas) {
  AttentionTensors call = tensors();
  ReadCall read = read_call(written(call, {}), kGpu);
  EXPECT_NE(read.forward.k.data, read.forward.v.data);
  call.v.data = call.k.data;
  const Json json = written(call, {});
  EXPECT_EQ(json["v_is_k"], true);
  read = read_call(json, kGpu);
  EXPECT_EQ(read.forward.k.data, read.forward.v.data);
  EXPECT_NE(read.forward.q.data, read.forward.v.data);
}

/// Each member of the options but those that no plan follows.
AttentionOptions all_options(const Tensor& ids) {
  AttentionOptions options;
  const ConstTensorView view = there(DType::i32, {2});
#define HEDDLE_TENSOR_OPTION(name, group, help) options.name = view;
#define HEDDLE_LENGTHS_OPTION(name, group, help) options.name = view;
#define HEDDLE_COUNT_OPTION(name) options.name = 7;
#define HEDDLE_FLAG_OPTION(name, shown, help) options.name = true;
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) options.name = true;
#include "heddle/options.def"
  options.q_rest.reset(), options.k_rest.reset();  // they would change o
  options.score_mod = leaf::score() * param("x", ExprType::f32);
  options.mask_mod = mods::documents(Capture("ids", DType::i32, 1)) && param("on", ExprType::boolean);
  options.weight_mod = where(leaf::q_idx() > param("n", ExprType::i32), 1.0, 0.5);
  options.bindings.params = {{"x", 3.0}, {"n", 4}, {"on", true}};
  options.bindings.captures["ids"] = ids;
  options.scale = 0.25;
  options.normalizer = Normalizer::sigmoid;
  return options;
}

TEST(WrittenCall, OptionsComeBack) {
  const Tensor ids = Tensor::zeros(DType::i32, {96});
  std::iota(static_cast<std::int32_t*>(ids.data()), static_cast<std::int32_t*>(ids.data()) + 96, 0);
  const AttentionOptions options = all_options(ids);
  const Json json = written(tensors(), options);
  for (const char* name : {
#define HEDDLE_TENSOR_OPTION(name, group, help) #name,
#define HEDDLE_LENGTHS_OPTION(name, group, help) #name,
#define HEDDLE_COUNT_OPTION(name) #name,
#define HEDDLE_FLAG_OPTION(name, shown, help) #name,
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) #name,
#include "heddle/options.def"
       }) {
    const bool rest = std::string(name) == "q_rest" || std::string(name) == "k_rest";
    EXPECT_EQ(json["options"].contains(name), !rest) << name;
  }
  const ReadCall read = read_call(json, kGpu);
  EXPECT_EQ(read.options.score_mod.node(), options.score_mod.node());
  EXPECT_EQ(read.options.mask_mod.node(), options.mask_mod.node());
  EXPECT_EQ(read.options.weight_mod.node(), options.weight_mod.node());
  EXPECT_EQ(read.options.bindings.params, options.bindings.params);
  EXPECT_EQ(static_cast<const std::int32_t*>(read.options.bindings.captures.at("ids").data)[95], 95);
  Json back = written(read.forward, read.options);
  back["options"]["captures"]["ids"]["on"] = "host";  // captures have memory of the host's in either
  EXPECT_EQ(back, json);
}

// Planning reads the captures of a mask and what may index others; a table of floats stays without memory.
TEST(WrittenCall, CapturesHaveMemoryWherePlanningReadsThem) {
  AttentionOptions options;
  options.mask_mod = Capture("limits", DType::f32, 2)(leaf::h(), 0) > 0;
  options.mask_mod = options.mask_mod && Capture("keep", DType::boolean, 1)(leaf::h());
  options.bindings.captures["keep"] = there(DType::boolean, {8});
  options.score_mod = leaf::score() + Capture("bias", DType::f32, 1)(Capture("places", DType::i32, 1)(leaf::h()));
  options.bindings.captures["limits"] = there(DType::f32, {8, 3}, (1 << 20) + 4);
  options.bindings.captures["limits"].strides = {5, -1};
  options.bindings.captures["places"] = there(DType::i32, {8});
  options.bindings.captures["bias"] = there(DType::f32, {1'000'000'000});
  const Json json = written(tensors(), options);
  const ReadCall read = read_call(json, kGpu);
  const ConstTensorView& limits = read.options.bindings.captures.at("limits");
  EXPECT_EQ(limits.device, Device{});
  EXPECT_EQ(limits.strides, (Dims{5, -1}));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(limits.data) % 16, 4U);
  EXPECT_EQ(static_cast<const float*>(limits.data)[7 * 5 - 2], 0);
  EXPECT_EQ(read.options.bindings.captures.at("places").device, Device{});
  EXPECT_EQ(static_cast<const char*>(read.options.bindings.captures.at("keep").data)[7], 1);
  EXPECT_EQ(read.options.bindings.captures.at("bias").device, kGpu);
  EXPECT_EQ(json["options"]["captures"]["limits"]["offset"], 4);
}

TEST(WrittenCall, LengthsOfTheHostHaveTheirNumbers) {
  const Tensor lengths = Tensor::zeros(DType::i64, {2});
  static_cast<std::int64_t*>(lengths.data())[1] = 60;
  AttentionOptions options;
  options.kv_lengths = lengths;
  const Json json = written(tensors(), options);
  EXPECT_EQ(json["options"]["kv_lengths"],
            (Json{{"dtype", "i64"}, {"shape", {2}}, {"on", "host"}, {"values", {0, 60}}}));
  EXPECT_EQ(again(json), json);
  const ReadCall read = read_call(json, kGpu);
  EXPECT_EQ(static_cast<const std::int64_t*>(read.options.kv_lengths->data)[1], 60);
  EXPECT_EQ(read.options.kv_lengths->device.kind, DeviceKind::cpu);

  AttentionTensors here = tensors();  // a call of the CPU: it counts as a GPU's, but for the lengths
  for (ConstTensorView* view : {&here.q, &here.k, &here.v}) view->device = {};
  const Json recorded = written(here, options);
  EXPECT_EQ(recorded["options"]["kv_lengths"]["on"], "host");
  EXPECT_FALSE(recorded["q"].contains("on"));
  EXPECT_EQ(read_call(recorded, kGpu).options.kv_lengths->device, Device{});
  EXPECT_EQ(read_call(recorded, kGpu).forward.q.device, kGpu);
}

TEST(WrittenCall, BlockMasksComeBack) {
  AttentionOptions options;
  options.mask_mod = mods::causal();
  const MaskShape shape = MaskShape::uniform(2, 1, 64, 96);
  options.block_mask = std::make_shared<const BlockMask>(BlockMask::build(options.mask_mod, shape, {32, 16}));
  Json json = written(tensors(), options);
  EXPECT_EQ(json["options"]["block_mask"], (Json{{"block", {32, 16}}, {"heads", 1}, {"mask", "kv_idx <= q_idx"}}));
  EXPECT_EQ(*read_call(json, kGpu).options.block_mask, *options.block_mask);

  const BlockLists lists = options.block_mask->to_lists();
  options.block_mask = std::make_shared<const BlockMask>(
      BlockMask::from_lists(lists, MaskShape::uniform(2, 8, 64, 96), {32, 16}, options.mask_mod));
  json = written(tensors(), options);
  EXPECT_EQ(json["options"]["block_mask"]["lists"], "of all heads");
  const ReadCall read = read_call(json, kGpu);
  EXPECT_TRUE(read.options.block_mask->is_from_lists());
  EXPECT_TRUE(read.options.block_mask->shared_by_heads());
  EXPECT_EQ(read.options.block_mask->statistics().partial, 2 * 8 * 2 * 6);
  EXPECT_EQ(again(json), json);
}

TEST(WrittenCall, BackwardsComeBack) {
  const AttentionTensors forward = tensors();
  BackwardTensors backward = {.q = forward.q, .k = forward.k, .v = forward.v, .o = forward.o, .d_o = forward.o};
  backward.lse = *forward.lse;
  backward.d_lse = *forward.lse;
  backward.lse_rest = *forward.lse;
  backward.dq = output(DType::f32, {2, 8, 64, 128});
  backward.dk = output(DType::f32, {2, 2, 96, 128});
  backward.dv = output(DType::f32, {2, 2, 96, 64});
  backward.d_sinks = output(DType::f32, {8});
  backward.d_captures["bias"] = output(DType::f32, {8});
  backward.d_params["x"] = output(DType::f32, {});
  AttentionOptions options;
  options.sinks = there(DType::f32, {8});
  options.deterministic = true;
  const Json json = written(backward, options);
  EXPECT_EQ(json["of"], "backward");
  EXPECT_EQ(again(json), json);
}

TEST(WrittenCall, TrueStandsForTheUsualTensor) {
  const Json tensor = {{"dtype", "e4m3"}, {"shape", {1, 2, 16, 64}}};
  const Json json = {{"q", tensor}, {"k", tensor}, {"v", tensor}, {"o", true}, {"lse", true}, {"max_scores", false}};
  const ReadCall read = read_call(json, kGpu);
  EXPECT_EQ(read.forward.o.dtype, DType::bf16);
  EXPECT_EQ(read.forward.lse->shape, (Dims{1, 2, 16}));
  EXPECT_FALSE(read.forward.max_scores);
}

TEST(WrittenCall, OneWithoutATextSaysSo) {
  AttentionOptions options;
  std::vector<Expr> terms;  // so many that their text would be too long
  for (int i = 0; i < 8192; ++i) terms.push_back(leaf::score() * (100'000 + i));
  for (; terms.size() > 1; terms.resize(terms.size() / 2)) {
    for (std::size_t i = 0; i < terms.size() / 2; ++i) terms[i] = terms[2 * i] + terms[2 * i + 1];
  }
  options.score_mod = terms[0];
  const Json json = written(tensors(), options);
  ASSERT_TRUE(json.contains("unwritten"));
  expect_error([&] { read_call(json, kGpu); }, ErrorCode::invalid_argument,
               HasSubstr("the call could not be recorded: "));
}

}  // namespace
}  // namespace heddle::engine
