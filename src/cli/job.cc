#include "job.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "heddle/error.h"
#include "heddle/files.h"
#include "reserved.h"

namespace heddle::cli {
namespace {

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

bool is_fp8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

/// q, k or v as given: converted, with a batch axis.
Tensor prepare(const std::string& name, const Tensor& tensor, const std::string& dtype) {
  const Tensor batched = with_batch(name, tensor, "[B, H, S, D]");
  return dtype.empty() || parse_dtype(dtype) == tensor.dtype() ? batched : batched.to(parse_dtype(dtype));
}

void load_inputs(const AttentionArguments& arguments, AttentionJob& job) {
  TensorFile file;
  if (!arguments.input.empty()) file = load_safetensors(arguments.input);
  for (const auto& [name, npy, shape, target] : {std::tuple{"q", &arguments.q, &arguments.q_shape, &job.q},
                                                 {"k", &arguments.k, &arguments.k_shape, &job.k},
                                                 {"v", &arguments.v, &arguments.v_shape, &job.v}}) {
    const auto in_file = file.tensors.find(name);
    if (!shape->empty()) {
      if (!npy->empty()) refuse(fmt::format("--{0} and --{0}-shape: give one of them", name));
      const DType dtype = arguments.dtype.empty() ? DType::f32 : parse_dtype(arguments.dtype);
      *target = reserved(dtype, parse_shape(fmt::format("--{}-shape", name), *shape));
    } else if (!npy->empty()) {
      *target = prepare(name, load_npy(*npy), arguments.dtype);
    } else if (in_file != file.tensors.end()) {
      *target = prepare(name, in_file->second, arguments.dtype);
    } else if (refuse_skipped(file.skipped, name); arguments.input.empty()) {
      refuse(fmt::format("no {0}: give a .safetensors file that holds it, or --{0} FILE.npy", name));
    } else {
      refuse(fmt::format("{0} holds no tensor '{1}'; add it, or give --{1} FILE.npy", arguments.input, name));
    }
  }
  for (const auto& [name, tensor] : file.tensors) {
    if (name != "q" && name != "k" && name != "v") job.names.add_tensor(name, tensor);
  }
  job.names.add_skipped(std::move(file.skipped));
  job.names.add_captures(arguments.captures);
  job.names.add_params(arguments.params);
}

/// Sinks stored in a narrower float are widened to what the library takes; every other type is left to its checks.
Tensor widened_sinks(const Tensor& sinks, DType inputs) {
  const DType wanted = inputs == DType::f64 ? DType::f64 : DType::f32;
  const bool narrower = is_floating(sinks.dtype()) && size_of(sinks.dtype()) < size_of(wanted);
  return narrower ? sinks.to(wanted) : sinks;
}

Normalizer parse_normalizer(const std::string& text) {
  if (text == "none") return Normalizer::none;
  return text == "sigmoid" ? Normalizer::sigmoid : Normalizer::softmax;
}

BackendChoice parse_backend(const std::string& text) {
  if (text == "cpu") return BackendChoice::cpu;
  if (text == "cuda") return BackendChoice::cuda;
  if (text == "amd") return BackendChoice::amd;
  return text == "reference" ? BackendChoice::reference : BackendChoice::automatic;
}

/// The rows of options.def.
void set_rows(const AttentionArguments& arguments, AttentionJob& job) {
  AttentionOptions& options = job.options;
  const auto set = [&](std::string_view option, const std::string& name, std::optional<ConstTensorView>& target) {
    if (!name.empty()) target = job.names.tensor(option, name);
  };
#define HEDDLE_TENSOR_OPTION(name, group, help) set(flag_of(#name), arguments.name, options.name);
#define HEDDLE_LENGTHS_OPTION(name, group, help) set(flag_of(#name), arguments.name, options.name);
#include "heddle/options.def"
  if (options.sinks) {
    job.sinks = widened_sinks(job.names.tensor("--sinks", arguments.sinks), job.q.dtype());
    options.sinks = job.sinks;
  }
#define HEDDLE_FLAG_OPTION(name, shown, help) options.name = arguments.name;
#include "heddle/options.def"
}

// Moves the tensors that runs read to the GPU; lengths and starts stay, since planning reads them.
void move_to_gpu(AttentionJob& job, const Device& device) {
  const auto move = [&](ConstTensorView& view) {
    const TensorView source(const_cast<void*>(view.data), view.dtype, view.shape, view.strides, view.device);
    view = job.on_gpu.emplace_back(Tensor::adopt(source, nullptr).to(device));
  };
  for (Tensor* tensor : {&job.q, &job.k, &job.v}) *tensor = tensor->to(device);
  AttentionOptions& options = job.options;
  for (auto& [name, capture] : options.bindings.captures) move(capture);
#define HEDDLE_TENSOR_OPTION(name, group, help) \
  if (options.name) move(*options.name);
#include "heddle/options.def"
}

}  // namespace

Tensor with_batch(const std::string& name, const Tensor& tensor, const std::string& axes) {
  const auto rank = static_cast<int>(std::ranges::count(axes, ',')) + 1;
  const TensorView& view = tensor.view();
  if (view.rank() == rank) return tensor;
  if (view.rank() != rank - 1) {
    refuse(fmt::format("{} has shape {}; it must be {}, or [{} for one batch entry", name, to_string(view.shape), axes,
                       axes.substr(axes.find(' ') + 1)));
  }
  std::vector<std::int64_t> shape = {1}, strides = {view.count()};
  shape.insert(shape.end(), view.shape.begin(), view.shape.end());
  strides.insert(strides.end(), view.strides.begin(), view.strides.end());
  return Tensor::adopt(TensorView(view.data, view.dtype, Dims(shape), Dims(strides), view.device),
                       std::make_shared<Tensor>(tensor));
}

AttentionJob load_job(const AttentionArguments& arguments, bool on_its_device) {
  const bool is_on_gpu = arguments.backend == "cuda" || arguments.backend == "amd";
  if (arguments.device && !is_on_gpu) {
    refuse(fmt::format("--device {} is given with --backend {}; it chooses a GPU of --backend cuda or amd",
                       *arguments.device, arguments.backend));
  }
  const int device = arguments.device.value_or(0);
  AttentionJob job;
  load_inputs(arguments, job);
  AttentionOptions& options = job.options;
  options.score_mod = job.names.parse("--score", arguments.score);
  options.mask_mod = job.names.parse("--mask", arguments.mask);
  options.weight_mod = job.names.parse("--weight", arguments.weight);
  options.bindings = job.names.bindings({options.score_mod, options.mask_mod, options.weight_mod});
  if (!arguments.scale.empty()) options.scale = parse_number("--scale", arguments.scale);
  options.normalizer = parse_normalizer(arguments.normalizer);
  options.backend = parse_backend(arguments.backend);
  options.threads = arguments.threads;
  set_rows(arguments, job);
  if (on_its_device && options.backend == BackendChoice::cuda) move_to_gpu(job, {DeviceKind::cuda, device});
  if (on_its_device && options.backend == BackendChoice::amd) move_to_gpu(job, {DeviceKind::rocm, device});
  return job;
}

AttentionResult AttentionJob::allocate(bool to_plan_only) const {
  // Broadcasting inputs have batch 1; whichever differs gives the batch. Pages are of all sequences.
  std::int64_t batch = q.shape()[0];
  if (batch == 1 && !options.page_table) batch = k.shape()[0];
  if (batch == 1 && !options.page_table) batch = v.shape()[0];
  AttentionResult result;
  const Device device = q.view().device;
  const auto room = [&](DType dtype, const Dims& shape) {
    const bool reserve = to_plan_only && device.kind == DeviceKind::cpu;
    return reserve ? reserved(dtype, shape) : Tensor::empty_on(device, dtype, shape);
  };
  result.o = room(is_fp8(q.dtype()) ? DType::bf16 : q.dtype(), {batch, q.shape()[1], q.shape()[2], v.shape()[3]});
  if (options.normalizer == Normalizer::softmax) {
    result.lse = room(q.dtype() == DType::f64 ? DType::f64 : DType::f32, {batch, q.shape()[1], q.shape()[2]});
  }
  return result;
}

namespace {

void run_in_workspace(const AttentionPlan& plan, const auto& tensors) {
  const std::int64_t bytes = plan.workspace_bytes();
  // Freed on return: the driver lets that wait for the run.
  const Tensor workspace = bytes > 0 ? Tensor::empty_on(tensors.q.device, DType::u8, {bytes}) : Tensor();
  plan.run(tensors, {.workspace = workspace.data()});
}

}  // namespace

void run_once(const AttentionPlan& plan, const AttentionTensors& tensors) { run_in_workspace(plan, tensors); }
void run_once(const AttentionPlan& plan, const BackwardTensors& tensors) { run_in_workspace(plan, tensors); }

Tensor on_cpu(const Tensor& tensor) {
  return tensor.view().device.kind == DeviceKind::cpu ? tensor : tensor.to(Device{});
}
AttentionResult on_cpu(const AttentionResult& result) { return {on_cpu(result.o), on_cpu(result.lse)}; }

AttentionTensors AttentionJob::tensors(const AttentionResult& result) const {
  AttentionTensors tensors{q, k, v, result.o, std::nullopt};
  if (options.normalizer == Normalizer::softmax) tensors.lse = result.lse;
  return tensors;
}

}  // namespace heddle::cli
