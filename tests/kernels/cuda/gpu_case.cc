#include "kernels/cuda/gpu_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include "backend/cuda/driver/driver.h"
#include "backend/cuda/jit/cuda_jit.h"
#include "base/environment.h"
#include "engine/machine.h"
#include "engine/planners_mask.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "families/table.h"
#include "heddle/error.h"
#include "plan/plan.h"
#include "sample.h"

namespace heddle::test {
namespace {

constexpr std::int64_t kGuard = 1024;  // bytes before and behind

bool on_gpu() { return device_under_test().kind != DeviceKind::cpu; }
bool on_cuda() { return device_under_test().kind == DeviceKind::cuda; }
const backend::DeviceInterface& devices() { return *backend::find_device_kind(device_under_test().kind); }

std::atomic<int> asked = 0, refused = 0, dropped = 0, planned = 0, left_out = 0;  // AskedKernels

}  // namespace

std::string other_family() {
  const std::string name = base::value_of(base::Option::family);
  const plan::Family* family = name.empty() ? nullptr : plan::family_of(name, gpu_backend());
  const bool is_forward = family != nullptr && family->pass == problem::Pass::forward;
  return is_forward && name != "forward_sm90" ? name : std::string();
}

BackendChoice gpu_backend() {
  return std::getenv("HEDDLE_TEST_BACKEND") == nullptr ? BackendChoice::cuda : backend_under_test();
}

Device device_under_test() {
  switch (gpu_backend()) {
    case BackendChoice::cuda:
      return kGpu;
    case BackendChoice::amd:
      return {DeviceKind::rocm, 0};
    default:
      return {};
  }
}

std::string gpu_missing() {
  if (!on_gpu()) return {};
  if (!on_cuda()) return devices().missing();
  if (std::string reason = cuda::driver_missing(); !reason.empty()) return reason;
  const device::CudaCaps& caps = cuda::devices().front();
  if (caps.major == 9 && caps.minor == 0) return {};
  return fmt::format("{} has compute capability {}.{}; these tests need 9.0", caps.name, caps.major, caps.minor);
}

Stream::Stream() {
  if (!on_cuda()) return;
  const cuda::ContextScope scope(0);
  cuda::check(cuda::driver().StreamCreate(&handle_, cuda::CUstream_flags::non_blocking), "creating a stream");
}

Stream::~Stream() {
  if (handle_ == nullptr) return;
  const cuda::ContextScope scope(0);
  cuda::driver().StreamDestroy(handle_);
}

void Stream::wait() const {
  if (handle_ == nullptr) return;
  const cuda::ContextScope scope(0);
  cuda::check(cuda::driver().StreamSynchronize(handle_), "waiting for a stream");
}

DeviceTensor::DeviceTensor(const GuardedTensor& host, std::int64_t shift)
    : host_(host),
      begin_(kGuard + shift),
      memory_(devices(), 0, host.memory().size() + static_cast<std::size_t>(2 * kGuard + shift)) {}

TensorView DeviceTensor::view() const {
  TensorView view = host_.view();
  view.data = static_cast<std::byte*>(memory_.data()) + begin_ + host_.first_byte();
  view.device = device_under_test();
  return view;
}

void DeviceTensor::upload() {
  std::vector<std::byte> bytes(memory_.bytes(), std::byte{0xff});
  std::ranges::copy(host_.memory(), bytes.begin() + begin_);
  devices().copy_and_wait(0, memory_.data(), bytes.data(), bytes.size());
}

void DeviceTensor::download() {
  std::vector<std::byte> bytes(memory_.bytes());
  devices().copy_and_wait(0, bytes.data(), memory_.data(), bytes.size());
  const auto span = bytes.begin() + begin_, end = span + std::ssize(host_.memory());
  const auto untouched = [](std::byte byte) { return byte == std::byte{0xff}; };
  EXPECT_TRUE(std::all_of(bytes.begin(), span, untouched)) << "written before the tensor";
  EXPECT_TRUE(std::all_of(end, bytes.end(), untouched)) << "written behind the tensor";
  std::copy(span, end, host_.memory().begin());
}

GpuCase::GpuCase(const CaseSpec& spec) : host_(spec) {
  options().backend = gpu_backend();
  if (!on_gpu()) return;
  std::vector<const GuardedTensor*> tensors = {&host_.q, &host_.k, &host_.v, &host_.o, &host_.lse_rows};
  if (spec.with_max_scores) tensors.push_back(&host_.max_score_rows);
  if (spec.with_lse_rest) tensors.push_back(&host_.lse_rest_rows);
  for (const GuardedTensor* tensor : tensors) {
    const std::int64_t element = size_of(tensor->view().dtype), asked = spec.alignment % 16,
                       odd = tensor == &host_.lse_rows || tensor == &host_.max_score_rows ||
                                     tensor == &host_.lse_rest_rows
                                 ? 0
                                 : (asked + element - 1) / element * element;
    copies_.push_back(std::make_unique<DeviceTensor>(*tensor, 16 * host_.below(17) + odd));
  }
  std::array<std::uint64_t, 8> content{};
  for (std::uint64_t& word : content) word = static_cast<std::uint64_t>(host_.below(3)) * 0x5555555555555555U;
  workspace_.emplace(devices(), 0, sizeof content);
  devices().copy_and_wait(0, workspace_->data(), content.data(), sizeof content);
}

AttentionTensors GpuCase::tensors() const {
  AttentionTensors tensors = host_.tensors();
  if (copies_.empty()) return tensors;
  const auto place = [&](auto& view, std::size_t i) {
    view.data = copies_[i]->view().data;
    view.device = copies_[i]->view().device;
  };
  place(tensors.q, 0);
  place(tensors.k, 1);
  place(tensors.v, host_.spec().values_in_keys ? 1 : 2);
  place(tensors.o, 3);
  if (tensors.lse) place(*tensors.lse, 4);
  if (tensors.max_scores) place(*tensors.max_scores, 5);
  if (tensors.lse_rest) place(*tensors.lse_rest, host_.spec().with_max_scores ? 6 : 5);
  return tensors;
}

void* GpuCase::workspace(std::int64_t bytes) {
  if (!workspace_ || static_cast<std::int64_t>(workspace_->bytes()) >= bytes) return workspace();
  const std::vector<std::byte> content(static_cast<std::size_t>(bytes), std::byte{0xff});
  workspace_.emplace(devices(), 0, content.size());
  devices().copy_and_wait(0, workspace_->data(), content.data(), content.size());
  return workspace_->data();
}

void GpuCase::place_lengths(AttentionOptions& there) {
  const auto longest = [](const ConstTensorView& lengths, bool sums) {
    const TensorView own(const_cast<void*>(lengths.data), lengths.dtype, lengths.shape);
    const Tensor wide = Tensor::adopt(own, nullptr).to(DType::i64);
    const auto* values = static_cast<const std::int64_t*>(wide.data());
    std::int64_t most = 0;
    for (std::int64_t i = sums; i < wide.count(); ++i) most = std::max(most, values[i] - (sums ? values[i - 1] : 0));
    return most;
  };
  if (there.cu_seqlens_q) there.max_q_len = longest(*there.cu_seqlens_q, true);
  if (there.cu_seqlens_kv) there.max_kv_len = longest(*there.cu_seqlens_kv, true);
  if (there.q_lengths && host_.spec().seed % 2 == 0) there.max_q_len = longest(*there.q_lengths, false);
  if (there.kv_lengths && host_.spec().seed % 3 == 0) there.max_kv_len = longest(*there.kv_lengths, false);
  for (auto member : {&AttentionOptions::q_lengths, &AttentionOptions::kv_lengths, &AttentionOptions::cu_seqlens_q,
                      &AttentionOptions::cu_seqlens_kv, &AttentionOptions::q_start, &AttentionOptions::kv_start,
                      &AttentionOptions::page_starts, &AttentionOptions::prefix_group, &AttentionOptions::prefix_len}) {
    std::optional<ConstTensorView>& view = there.*member;
    if (!view) continue;
    const TensorView host(const_cast<void*>(view->data), view->dtype, view->shape);
    copies_of_small_.push_back(Tensor::adopt(host, nullptr).to(device_under_test()));
    view = copies_of_small_.back();
  }
}

AttentionOptions GpuCase::options_there() {
  AttentionOptions there = options();
  if (!on_gpu()) return there;
  const auto move = [&](ConstTensorView& view) {
    TensorView host(const_cast<void*>(view.data), view.dtype, view.shape, view.strides);
    for (int axis = 0; axis < view.rank(); ++axis) {
      if (view.strides[axis] == 0) host.shape[axis] = std::min<std::int64_t>(1, view.shape[axis]);
    }
    copies_of_small_.push_back(Tensor::adopt(host, nullptr).to(device_under_test()));
    // Entries that share memory on the host share it on the device.
    ConstTensorView there_view = copies_of_small_.back();
    for (int axis = 0; axis < view.rank(); ++axis) {
      if (view.strides[axis] == 0) there_view.strides[axis] = 0;
    }
    there_view.shape = view.shape;
    view = there_view;
  };
  for (auto& [name, view] : there.bindings.captures) move(view);
  for (auto member : {&AttentionOptions::page_table, &AttentionOptions::q_rest, &AttentionOptions::k_rest,
                      &AttentionOptions::q_descale, &AttentionOptions::k_descale, &AttentionOptions::v_descale}) {
    if (there.*member) move(*(there.*member));
  }
  if (there.sinks) place_sinks(*there.sinks);
  if (!host_.spec().device_lengths) return there;
  place_lengths(there);
  if (there.block_mask == nullptr) return there;
  // Rows of the longest sequences that there may be.
  const BlockSize block = std::exchange(there.block_mask, nullptr)->block();
  const problem::AttentionProblem problem = problem::validate(tensors(), there);
  const MaskShape shape = {problem.q_heads, problem.sequences};
  there.block_mask =
      std::make_shared<BlockMask>(BlockMask::build(problem.mask_mod, shape, block, options().bindings, 1, DType::f32));
  return there;
}

// With what stands between them.
void GpuCase::place_sinks(ConstTensorView& sinks) {
  const std::int64_t apart = sinks.strides[0];
  const TensorView all(const_cast<void*>(sinks.data), sinks.dtype, {sinks.shape[0], apart});
  copies_of_small_.push_back(Tensor::adopt(all, nullptr).to(device_under_test()));
  sinks = ConstTensorView(copies_of_small_.back().data(), sinks.dtype, sinks.shape, {apart}, device_under_test());
}

void GpuCase::upload() {
  for (const auto& copy : copies_) copy->upload();
}

void GpuCase::download() {
  for (std::size_t i = 3; i < copies_.size(); ++i) copies_[i]->download();
}

// Runs as AttentionPlan does, but with the kernel of this tile, whichever the planner would take.
void GpuCase::run_kernel(BlockSize tile) {
  const AttentionTensors on = tensors();
  const AttentionOptions there = options_there();
  const problem::AttentionProblem problem = problem::validate(on, there);
  engine::MaskRows rows;
  device::Machine machine = engine::machine();
  for (device::CudaCaps& caps : machine.cuda) {
    if (host_.spec().ctas > 0) caps.multiprocessors = host_.spec().ctas;
  }
  const plan::Request request = {problem, on, there, machine};
  const std::vector<plan::Choice> choices =
      plan::choose(request, [&](BlockSize block) { return rows(problem, there, block); });
  const int packed = host_.spec().packed;
  const auto choice = std::ranges::find_if(choices, [&](const plan::Choice& offered) {
    return offered.plan.tile == tile && offered.plan.has<shared::ForwardSm90Config>() &&
           offered.plan.part<shared::ForwardSm90Config>().packed_queries == packed;
  });
  if (choice == choices.end()) {
    throw std::runtime_error(
        fmt::format("no kernel of {} x {} that packs {} queries is offered", tile.q, tile.kv, packed));
  }
  const std::unique_ptr<backend::Kernel> kernel =
      plan::prepare_kernel(choice->plan, choice->block_mask.get(), request, there.bindings);
  const Stream stream;
  upload();
  kernel->launch({.tensors = on,
                  .options = &there,
                  .bindings = &there.bindings,
                  .block_mask = choice->block_mask.get(),
                  .workspace = workspace(choice->plan.workspace_bytes),
                  .stream = stream.handle()});
  stream.wait();
  download();
}

AskedKernels asked_kernels() { return {asked, refused, dropped, planned, left_out}; }

std::optional<AttentionPlan> GpuCase::planned_here() {
  ++planned;
  try {
    return AttentionPlan(tensors(), options_there());
  } catch (const Error& error) {
    const std::string family = other_family();
    const bool refuses = error.code() == ErrorCode::unsupported || error.code() == ErrorCode::compile;
    if (family.empty() || !on_gpu() || !refuses) throw;
    ++left_out;
    const std::string_view sentence = error.what();
    fmt::print("not run by {}: {}\n  {}\n", family, sentence.substr(0, sentence.find('\n')), host_.spec().text());
    return {};
  }
}

bool GpuCase::run() {
  if (host_.spec().tile && on_cuda()) {
    ++asked;
    if (!other_family().empty()) {
      ++dropped;
    } else {
      try {
        run_kernel(*host_.spec().tile);
        return true;
      } catch (const backend::Rejected&) {  // the mask takes too many registers for it: any kernel then
        ++refused;
      }
    }
  }
  const std::optional<AttentionPlan> plan = planned_here();
  if (!plan) return false;
  const Stream stream;
  upload();
  plan->run(tensors(), {.workspace = workspace(plan->workspace_bytes()), .stream = stream.handle()});
  stream.wait();
  download();
  return true;
}

void GpuCase::run_and_judge() {
  if (run()) judge(host_);
}

void side_by_side(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next = 0;
  const CasePart part = case_part();
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      if (!part.has(i)) continue;
      try {
        body(i);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "case " << i << ": " << error.what();
      }
    }
  };
  std::vector<std::thread> threads;
  const unsigned most = std::clamp(std::thread::hardware_concurrency(), 1U, 16U);
  for (unsigned i = 1; i < most; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

void for_each_spec(const std::vector<CaseSpec>& specs, const std::function<void(const CaseSpec&)>& body) {
  side_by_side(specs.size(), [&](std::size_t i) {
    SCOPED_TRACE(specs[i].text());
    try {
      body(specs[i]);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  });
}

}  // namespace heddle::test
