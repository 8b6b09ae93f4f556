// One sequence over several GPUs of this process, a thread each, which talk through NCCL: causal attention with ALiBi
// and its gradients in bf16, held against one GPU, and the time of both.
//
//   gpu_ranks [tokens [heads [kv_heads [ranks [head_groups]]]]]
//
// Exits with 77 where there are fewer GPUs than ranks, or no NCCL.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "heddle/heddle.h"

namespace {

using namespace heddle;  // NOLINT(google-build-using-namespace)

constexpr std::int64_t kDim = 128;
constexpr int kTimes = 10;  // calls that are timed

Tensor random_tensor(const Dims& shape, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  const Tensor tensor = Tensor::empty(DType::f32, shape);
  std::generate_n(static_cast<float*>(tensor.data()), tensor.count(), [&] { return values(generator); });
  return tensor.to(DType::bf16);
}

/// Some rows of a tensor [1, H, rows, D] of 16 bits, on the host.
Tensor rows_of(const Tensor& whole, const std::vector<std::int64_t>& positions) {
  const Dims shape = whole.shape();
  const Tensor part = Tensor::empty(whole.dtype(), {1, shape[1], std::ssize(positions), shape[3]});
  auto* to = static_cast<std::uint16_t*>(part.data());
  for (std::int64_t head = 0; head < shape[1]; ++head) {
    for (const std::int64_t position : positions) {
      const auto* from = static_cast<const std::uint16_t*>(whole.data()) + (head * shape[2] + position) * shape[3];
      to = std::copy_n(from, shape[3], to);
    }
  }
  return part;
}

/// The norm of the difference, relative to y's.
double relative_error(const Tensor& x, const Tensor& y) {
  double difference = 0, norm = 0;
  for (std::int64_t head = 0; head < y.shape()[1]; ++head) {
    for (std::int64_t row = 0; row < y.shape()[2]; ++row) {
      for (std::int64_t d = 0; d < y.shape()[3]; ++d) {
        const double a = get_element(x, {0, head, row, d}), b = get_element(y, {0, head, row, d});
        difference += (a - b) * (a - b);
        norm += b * b;
      }
    }
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

/// All tensors of one forward and backward on a device.
struct Sides {
  Tensor q, k, v, d_o, o, dq, dk, dv, lse;

  Sides(const Device& device, const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& d_o_)
      : q(q_.to(device)), k(k_.to(device)), v(v_.to(device)), d_o(d_o_.to(device)) {
    const auto like = [&](const Tensor& x) { return Tensor::empty_on(device, x.dtype(), x.shape()); };
    o = like(q_), dq = like(q_), dk = like(k_), dv = like(v_);
    lse = Tensor::empty_on(device, DType::f32, {1, q_.shape()[1], q_.shape()[2]});
  }
  AttentionTensors forward() const { return {q, k, v, o, lse}; }
  BackwardTensors backward() const {
    BackwardTensors tensors{q, k, v, o, lse, d_o};
    tensors.dq = dq, tensors.dk = dk, tensors.dv = dv;
    return tensors;
  }
};

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

std::int64_t cuda_devices() {
  const std::vector<DeviceInfo> all = devices();
  return std::ranges::count(all, "cuda", &DeviceInfo::kind);
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, std::int64_t fallback) { return argc > i ? std::atoll(argv[i]) : fallback; };
  const std::int64_t tokens = argument(1, 16384), heads = argument(2, 16), kv_heads = argument(3, 4),
                     ranks = argument(4, 2), groups = argument(5, 0);
  if (!nccl_missing().empty()) fmt::print("{}\n", nccl_missing());
  if (cuda_devices() < ranks) fmt::print("there are {} CUDA devices; {} are needed\n", cuda_devices(), ranks);
  if (!nccl_missing().empty() || cuda_devices() < ranks) return 77;

  const Tensor q = random_tensor({1, heads, tokens, kDim}, 1), d_o = random_tensor({1, heads, tokens, kDim}, 2),
               k = random_tensor({1, kv_heads, tokens, kDim}, 3), v = random_tensor({1, kv_heads, tokens, kDim}, 4);
  const Tensor slopes = mods::alibi_slopes(heads);
  AttentionOptions options;
  options.score_mod = mods::alibi(Capture("slopes", DType::f32, 1));

  // One GPU. Its tensors come to the host complete: copies wait for the default stream.
  const Device first{DeviceKind::cuda, 0};
  const Tensor slopes_there = slopes.to(first);
  AttentionOptions of_one = options;
  of_one.mask_mod = mods::causal();
  of_one.bindings.captures["slopes"] = slopes_there;
  const Sides whole(first, q, k, v, d_o);
  double of_one_gpu = 0;
  for (int pass = 0; pass < 2; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < (pass == 0 ? 1 : kTimes); ++i) {
      attention_into(whole.forward(), of_one);
      attention_backward_into(whole.backward(), of_one);
    }
    whole.lse.to(Device{});
    of_one_gpu = milliseconds_since(begin) / kTimes;
  }
  const Tensor o = whole.o.to(Device{}), dq = whole.dq.to(Device{}), dk = whole.dk.to(Device{}),
               dv = whole.dv.to(Device{});

  // Several.
  const BlockMask mask = BlockMask::build(mods::causal(), MaskShape::uniform(1, 1, tokens, tokens), {128, 128});
  const WeightedMask weighted = {&mask, 1};
  const MadePartition partition = make_partition({&weighted, 1}, ranks);
  fmt::print("{}", partition.text());
  const NcclId id = make_nccl_id();
  std::mutex gathering;
  double slowest = 0, largest = 0;
  bool failed = false;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          NcclCommunicator communicator(id, rank, ranks, rank, std::chrono::minutes(5));
          const Device device = communicator.device();
          const Tensor own_slopes = slopes.to(device);
          AttentionOptions own_options = options;
          own_options.bindings.captures["slopes"] = own_slopes;
          ContextAttention context(partition, mask, own_options, communicator);
          context.set_head_groups(groups);
          const std::vector<std::int64_t> rows = partition.queries.positions(rank);
          const Sides own(device, rows_of(q, rows), rows_of(k, rows), rows_of(v, rows), rows_of(d_o, rows));
          double time = 0;
          for (int pass = 0; pass < 2; ++pass) {
            communicator.agree(static_cast<std::uint64_t>(pass));  // all begin together
            const auto begin = std::chrono::steady_clock::now();
            for (int i = 0; i < (pass == 0 ? 1 : kTimes); ++i) {
              context.forward(own.forward());
              context.backward(own.backward());
            }
            communicator.wait(nullptr);
            time = milliseconds_since(begin) / kTimes;
          }
          double error = 0;
          for (const auto& [made, of_all] : {std::pair(&own.o, &o), {&own.dq, &dq}, {&own.dk, &dk}, {&own.dv, &dv}}) {
            error = std::max(error, relative_error(made->to(Device{}), rows_of(*of_all, rows)));
          }
          const std::scoped_lock lock(gathering);
          slowest = std::max(slowest, time);
          largest = std::max(largest, error);
        } catch (const std::exception& caught) {
          const std::scoped_lock lock(gathering);
          fmt::print("rank {}: {}\n", rank, caught.what());
          failed = true;
        }
      });
    }
  }
  if (failed) return 1;
  fmt::print("one GPU {:.3f} ms, {} GPUs {:.3f} ms: efficiency {:.3f}\n", of_one_gpu, ranks, slowest,
             of_one_gpu / (static_cast<double>(ranks) * slowest));
  fmt::print("o, dq, dk and dv of {} ranks and of one differ by at most {:.2g}, relative to their norms\n", ranks,
             largest);
  return largest < 0.01 ? 0 : 1;
}
