// Measures packed heads with few queries: 32 query heads on 4 KV heads, 16 queries each, beside the plain kernel with
// equal FLOPs over the same keys (4 heads, 128 queries each).
//
//   bench_forward_sm90_packed [--rounds N] [--seconds S] [--device I] [--batch B]...
//                             [--with bias|bias-f32|lengths|e4m3]
//
// --with: all of them add a bias [heads, queries, keys] (bf16 or f32), read lengths of keys on the device, or have q, k
// and v of 8 bits.
//
// For head dims 64 and 128 and 8192 to 65536 keys: the plain kernel, each packed one that the planner offers, and the
// best that does not pack, all of them in each of N rounds of S seconds each. Printed are milliseconds, their ratio to
// the plain kernel, the planner's prediction, and its choice (*). With few sequences there are fewer tiles than
// multiprocessors: packing is not for those.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/driver/cuda_objects.h"
#include "engine/machine.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "families/table.h"
#include "gpu_timer.h"
#include "heddle/heddle.h"
#include "plan/plan.h"

namespace heddle::bench {
namespace {

constexpr std::int64_t kKvHeads = 4, kGroup = 8, kQueries = 16;

/// A feature that all contenders have.
struct Feature {
  std::string_view name;
  DType dtype = DType::bf16;  // of q, k and v
  std::optional<DType> bias{};
  bool lengths_on_device = false;
};
constexpr Feature kNone = {""};
const std::array<Feature, 4> kFeatures = {{{"bias", DType::bf16, DType::bf16},
                                           {"bias-f32", DType::bf16, DType::f32},
                                           {"lengths", DType::bf16, {}, true},
                                           {"e4m3", DType::e4m3}}};

/// Random normal values, repeated with an odd period, for each of three tensors from elsewhere on: no rows near each
/// other are alike, nor keys and queries.
constexpr std::int64_t kPeriod = (1 << 21) - 1, kApart = 1'000'003, kPool = kPeriod + 2 * kApart;
void fill(const cuda::DeviceMemory& memory, int device, const Tensor& pool, std::int64_t tensor) {
  constexpr std::size_t kBytes = 2 * kPeriod;
  const char* from = static_cast<const char*>(pool.data()) + 2 * kApart * tensor;
  for (std::size_t at = 0; at < memory.bytes(); at += kBytes) {
    cuda::copy_and_wait(device, static_cast<char*>(memory.data()) + at, from, std::min(kBytes, memory.bytes() - at));
  }
}

/// q, k, v, o, lse, bias and lengths of one size, which both problems share. Room for 16 bits of each number, for 32 of
/// the bias'.
struct Memory {
  Memory(int device, std::int64_t batch, std::int64_t dim, std::int64_t keys, const Feature& feature,
         const Tensor& pool)
      : q(device, bytes(batch * kGroup * kQueries * dim)),
        k(device, bytes(batch * keys * dim)),
        v(device, bytes(batch * keys * dim)),
        o(device, bytes(batch * kGroup * kQueries * dim)),
        lse(device, 2 * bytes(batch * kGroup * kQueries)),
        bias(device, feature.bias ? 2 * bytes(kGroup * kQueries * keys) : 4),
        lengths(device, 4 * static_cast<std::size_t>(batch)) {
    fill(q, device, pool, 0);
    fill(k, device, pool, 1);
    fill(v, device, pool, 2);
    fill(bias, device, pool, 2);
    const std::vector<std::int32_t> all(static_cast<std::size_t>(batch), static_cast<std::int32_t>(keys));
    cuda::copy_and_wait(device, lengths.data(), all.data(), lengths.bytes());
  }
  static std::size_t bytes(std::int64_t elements) { return static_cast<std::size_t>(elements * kKvHeads * 2); }

  cuda::DeviceMemory q, k, v, o, lse, bias, lengths;
};

struct Contender {
  std::string name;
  plan::Plan plan;
  AttentionTensors tensors;
  AttentionOptions options;
  cuda::DeviceMemory workspace;
  std::unique_ptr<backend::Kernel> kernel{};
  std::vector<double> seconds{};
  int times = 1;
  bool chosen = false;

  double median() const {
    std::vector<double> sorted = seconds;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }
};

std::string name_of(const shared::ForwardSm90Config& config, bool plain) {
  const std::string tile = fmt::format("{} x {}", config.rows(), config.kv_block);
  if (config.packs()) return fmt::format("{}, {} queries a head", tile, config.queries());
  return tile + (plain ? ", plain" : ", not packed");
}

class Bench {
 public:
  Bench(int device, std::int64_t batch, std::int64_t dim, std::int64_t keys, const Feature& feature, const Tensor& pool)
      : device_(device),
        batch_(batch),
        dim_(dim),
        keys_(keys),
        feature_(feature),
        memory_(device, batch, dim, keys, feature, pool),
        timer_(device) {
    add(tensors_of(kKvHeads, kGroup * kQueries), options_of(kKvHeads, kGroup * kQueries), true);
    add(tensors_of(kKvHeads * kGroup, kQueries), options_of(kKvHeads * kGroup, kQueries), false);
  }

  void measure(int rounds, double seconds) {
    std::mt19937 random(1);
    for (Contender& contender : contenders_) {
      once(contender, 1);
      contender.times = std::max(1, static_cast<int>(seconds / once(contender, 3)));
    }
    std::vector<Contender*> order;
    for (Contender& contender : contenders_) order.push_back(&contender);
    for (int round = 0; round < rounds; ++round) {
      std::ranges::shuffle(order, random);
      for (Contender* contender : order) contender->seconds.push_back(once(*contender, contender->times));
    }
  }

  void print() const {
    const double plain = contenders_.front().median();
    for (const Contender& contender : contenders_) {
      fmt::print("{:4} {:6} {:6} {:>36}{} {:9.3f} {:9.3f} {:7.2f}\n", dim_, keys_, batch_, contender.name,
                 contender.chosen ? "*" : " ", contender.median() * 1e3, contender.plan.predicted->seconds * 1e3,
                 contender.median() / plain);
    }
  }

 private:
  AttentionTensors tensors_of(std::int64_t heads, std::int64_t queries) const {
    const Device gpu = {DeviceKind::cuda, device_};
    const auto view = [&](const cuda::DeviceMemory& memory, const Dims& shape, DType dtype) {
      return TensorView(memory.data(), dtype, shape, gpu);
    };
    const DType dtype = feature_.dtype;
    return {view(memory_.q, {batch_, heads, queries, dim_}, dtype),
            view(memory_.k, {batch_, kKvHeads, keys_, dim_}, dtype),
            view(memory_.v, {batch_, kKvHeads, keys_, dim_}, dtype),
            view(memory_.o, {batch_, heads, queries, dim_}, DType::bf16),
            view(memory_.lse, {batch_, heads, queries}, DType::f32)};
  }
  AttentionOptions options_of(std::int64_t heads, std::int64_t queries) const {
    const Device gpu = {DeviceKind::cuda, device_};
    AttentionOptions options;
    if (feature_.bias) {
      options.score_mod = leaf::score() + Capture("bias", *feature_.bias, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
      options.bindings.captures["bias"] =
          TensorView(memory_.bias.data(), *feature_.bias, Dims{heads, queries, keys_}, gpu);
    }
    if (feature_.lengths_on_device) {
      options.kv_lengths = TensorView(memory_.lengths.data(), DType::i32, Dims{batch_}, gpu);
    }
    return options;
  }

  /// Adds the planner's first kernel for the plain problem; else all that pack, and the first that does not.
  void add(const AttentionTensors& tensors, const AttentionOptions& options, bool plain) {
    const problem::AttentionProblem problem = problem::validate(tensors, options);
    bool unpacked = false;
    const plan::Request request = {problem, tensors, options, engine::machine()};
    const std::vector<plan::Choice> choices = plan::choose(request, [](BlockSize) { return nullptr; });
    for (const plan::Choice& choice : choices) {
      if (!choice.plan.has<shared::ForwardSm90Config>()) continue;
      const shared::ForwardSm90Config& config = choice.plan.part<shared::ForwardSm90Config>();
      if (!config.packs() && std::exchange(unpacked, true)) continue;
      Contender contender{.name = name_of(config, plain),
                          .plan = choice.plan,
                          .tensors = tensors,
                          .options = options,
                          .workspace = {device_, static_cast<std::size_t>(choice.plan.workspace_bytes)}};
      contender.chosen = &choice == &choices.front();
      try {
        contender.kernel = plan::prepare_kernel(choice.plan, nullptr, request, options.bindings);
      } catch (const Error& error) {
        fmt::print(stderr, "D {}, {}: {}\n", dim_, contender.name, error.what());
        continue;
      }
      contenders_.push_back(std::move(contender));
    }
  }

  double once(const Contender& contender, int times) {
    return timer_.seconds(times, [&] {
      contender.kernel->launch({.tensors = contender.tensors,
                                .options = &contender.options,
                                .bindings = &contender.options.bindings,
                                .block_mask = nullptr,
                                .workspace = contender.workspace.data(),
                                .stream = timer_.stream()});
    });
  }

  int device_;
  std::int64_t batch_, dim_, keys_;
  Feature feature_;
  Memory memory_;
  GpuTimer timer_;
  std::vector<Contender> contenders_;
};

int run(int rounds, double seconds, int device, const Feature& feature, const std::vector<std::int64_t>& batches) {
  if (const std::string reason = cuda::driver_missing(); !reason.empty()) {
    fmt::print(stderr, "no CUDA device: {}\n", reason);
    return 2;
  }
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const Tensor drawn = Tensor::empty(DType::f32, {2 * kPool / size_of(feature.dtype)});
  for (std::int64_t i = 0; i < drawn.count(); ++i) static_cast<float*>(drawn.data())[i] = normal(random);
  const Tensor pool = drawn.to(feature.dtype);
  fmt::print("{:>4} {:>6} {:>6} {:>36}  {:>9} {:>9} {:>7}\n", "D", "keys", "batch", "kernel", "ms", "predicted",
             "x plain");
  for (const std::int64_t batch : batches) {
    for (const std::int64_t dim : {64, 128}) {
      for (const std::int64_t keys : {8192, 16384, 65536}) {
        Bench bench(device, batch, dim, keys, feature, pool);
        bench.measure(rounds, seconds);
        bench.print();
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace heddle::bench

int main(int argc, char** argv) {
  int rounds = 7, device = 0;
  double seconds = 0.02;
  const heddle::bench::Feature* feature = &heddle::bench::kNone;
  std::vector<std::int64_t> batches;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--rounds" && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--seconds" && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else if (argument == "--device" && i + 1 < argc) {
      device = std::atoi(argv[++i]);
    } else if (argument == "--batch" && i + 1 < argc) {
      batches.push_back(std::max(1, std::atoi(argv[++i])));
    } else if (const auto named = std::ranges::find(heddle::bench::kFeatures, i + 1 < argc ? argv[i + 1] : "",
                                                    &heddle::bench::Feature::name);
               argument == "--with" && named != heddle::bench::kFeatures.end()) {
      feature = &*named;
      ++i;
    } else {
      fmt::print(stderr,
                 "usage: bench_forward_sm90_packed [--rounds N] [--seconds S] [--device I] [--batch B]...\n"
                 "                                 [--with bias|bias-f32|lengths|e4m3]\n");
      return 2;
    }
  }
  if (batches.empty()) batches = {1, 33};
  try {
    return heddle::bench::run(rounds, seconds, device, *feature, batches);
  } catch (const heddle::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
