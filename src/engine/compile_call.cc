#include "engine/compile_call.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "backend/device.h"
#include "base/environment.h"
#include "engine/call_there.h"
#include "engine/machine.h"
#include "engine/prepare.h"
#include "engine/read_call.h"
#include "engine/tuning.h"
#include "families/table.h"
#include "heddle/error.h"

namespace heddle::engine {
namespace {

using Json = nlohmann::ordered_json;

/// The thread's work is for the GPU until the result goes.
std::unique_ptr<backend::AbsentDevice> stand_in(const backend::DeviceInterface& kind, const std::string& architecture) {
  std::unique_ptr<backend::AbsentDevice> absent = kind.stand_in(architecture);
  if (absent == nullptr) throw Error(ErrorCode::unsupported, "this build compiles no kernels for that GPU");
  return absent;
}

/// The kernels that find the rows of a mask which reads the GPU's memory, where MaskRows would ask a GPU for them.
void compile_mask_rows(CallThere& call, const backend::DeviceInterface& kind) {
  const problem::AttentionProblem& problem = call.problem();
  const AttentionOptions& options = call.options();
  const bool of_planner = options.block_mask == nullptr && !problem.mask_mod.empty() &&
                          !problem::reads_device_lengths(problem, problem.mask_mod);
  if (!of_planner || symbols_of(problem.mask_mod).captures.empty()) return;
  if (!base::value_of(base::Option::host_masks).empty()) return;
  std::shared_ptr<backend::DeviceMaskRows> rows;
  const DType reals = problem.precision == expr::Precision::f64 ? DType::f64 : DType::f32;
  kind.build_mask(0, problem.mask_mod, {problem.q_heads, problem.sequences}, {}, options.bindings, reals,
                  problem.clamp_reads, rows);
}

template <class Tensors>
void compile_attention(std::string_view gpu, const Tensors& tensors, AttentionOptions options) {
  options.tuning = Tuning::off;  // measurements are another machine's
  CallThere call(gpu, tensors, options);
  const backend::DeviceInterface& kind = *backend::find_device_kind(call.target().kind);
  const auto absent = stand_in(kind, call.target().architecture);
  compile_mask_rows(call, kind);
  const plan::Request request = call.request();
  const Tuner tuner(request);
  prepare_first(tuner.ordered(plan::choose(request, [&](BlockSize block) { return call.mask_rows(block); })),
                [&](const plan::Choice& choice) {
                  return plan::prepare_kernel(choice.plan, choice.block_mask.get(), request, request.options.bindings);
                });
}

DType dtype_at(const Json& call, const char* name) {
  const auto found = call.find(name);
  if (found != call.end() && found->is_string()) return parse_dtype(found->get<std::string>());
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the call has no '{}' that is the name of a dtype, such as \"bf16\"", name));
}
std::optional<DType> dtype_if_there(const Json& call, const char* name) {
  return call.contains(name) ? std::optional(dtype_at(call, name)) : std::nullopt;
}

// Kernels beside attention depend on dtypes alone: these tensors have a row, or the room for some, and no memory.
constexpr std::int64_t kColumns = 8, kRoom = 8;
ConstTensorView row_of(DType dtype, const Device& device, std::int64_t rows = 1) {
  return {nullptr, dtype, {1, 1, rows, kColumns}, device};
}
TensorView rows_for(DType dtype, const Device& device, std::int64_t rows = 1) {
  return {nullptr, dtype, {1, 1, rows, kColumns}, device};
}

void compile_merge(const Json& call, const backend::DeviceInterface& kind) {
  const Device device = {kind.kind(), 0};
  std::vector<backend::MergePart> parts;
  const auto found = call.find("parts");
  if (found == call.end() || !found->is_array() || found->empty()) {
    throw Error(ErrorCode::invalid_argument, "the call of merge_states has no 'parts', a list of the dtypes of o");
  }
  for (const Json& each : *found) {
    const DType dtype = parse_dtype(each.is_string() ? each.get<std::string>() : each.dump());
    parts.push_back({row_of(dtype, device), ConstTensorView(nullptr, DType::f32, {1, 1, 1}, device)});
  }
  kind.merge({.parts = parts, .o = rows_for(dtype_at(call, "o"), device), .lse = std::nullopt, .stream = nullptr});
}

void compile_append(const Json& call, const backend::DeviceInterface& kind) {
  const Device device = {kind.kind(), 0};
  const DType rows = dtype_at(call, "k");
  AppendTensors tensors = {.k = row_of(rows, device), .k_cache = rows_for(dtype_at(call, "k_cache"), device, kRoom)};
  if (const auto values = dtype_if_there(call, "v_cache")) {
    tensors.v = row_of(rows, device);
    tensors.v_cache = rows_for(*values, device, kRoom);
  }
  AppendOptions options;
  options.kv_lengths = ConstTensorView(nullptr, DType::i32, {1}, device);
  if (const auto angles = dtype_if_there(call, "rotary")) {
    const ConstTensorView table(nullptr, *angles, {kRoom, kColumns / 2}, device);
    options.rotary = Rotary{.cos = table, .sin = table};
  }
  if (const auto queries = dtype_if_there(call, "q_out")) {
    tensors.q = row_of(rows, device);
    tensors.q_out = rows_for(*queries, device);
  }
  kind.append(tensors, options);
}

void compile_move(const Json& call, const backend::DeviceInterface& kind) {
  const Device device = {kind.kind(), 0};
  const auto adds = call.find("adds");
  if (adds != call.end() && !adds->is_boolean()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the call's 'adds' is {}; true and false are accepted", adds->dump()));
  }
  kind.move_rows({.from = row_of(dtype_at(call, "from"), device),
                  .to = rows_for(dtype_at(call, "to"), device),
                  .rows = 1,
                  .adds = adds != call.end() && adds->get<bool>()});
}

}  // namespace

void compile_call(const Json& call, std::string_view gpu) {
  if (!call.is_object()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("the call is {}; an object is accepted", call.dump()));
  }
  const std::string of = call.contains("of") && call["of"].is_string() ? call["of"].get<std::string>() : "";
  const device::KnownMachine target = device::with_known_gpu(cpu_machine(), gpu);
  if (of == "merge_states" || of == "append_kv" || of == "move_rows") {
    const backend::DeviceInterface& kind = *backend::find_device_kind(target.kind);
    const auto absent = stand_in(kind, target.architecture);
    if (of == "move_rows") return compile_move(call, kind);
    return of == "merge_states" ? compile_merge(call, kind) : compile_append(call, kind);
  }
  const ReadCall read = read_call(call, {target.kind, 0});
  if (read.backward) {
    compile_attention(gpu, *read.backward, read.options);
  } else {
    compile_attention(gpu, read.forward, read.options);
  }
}

}  // namespace heddle::engine
