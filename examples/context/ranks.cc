// One sequence over four ranks, threads here: causal attention with ALiBi and its gradients, held against one rank's.
//
//   ranks [tokens]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <random>

#include "heddle/heddle.h"
#include "thread_communicator.h"

namespace {

using namespace heddle;  // NOLINT(google-build-using-namespace)

constexpr std::int64_t kRanks = 4, kHeads = 4, kKvHeads = 2, kDim = 32;

Tensor random_tensor(const Dims& shape, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Tensor tensor = Tensor::empty(DType::f32, shape);
  std::generate_n(static_cast<float*>(tensor.data()), tensor.count(), [&] { return normal(generator); });
  return tensor;
}

/// Some rows of a tensor [1, H, rows, D].
Tensor rows_of(const Tensor& whole, const std::vector<std::int64_t>& positions) {
  const Dims shape = whole.shape();
  Tensor part = Tensor::empty(DType::f32, {1, shape[1], std::ssize(positions), shape[3]});
  auto* to = static_cast<float*>(part.data());
  for (std::int64_t head = 0; head < shape[1]; ++head) {
    for (const std::int64_t position : positions) {
      const float* from = static_cast<const float*>(whole.data()) + (head * shape[2] + position) * shape[3];
      to = std::copy_n(from, shape[3], to);
    }
  }
  return part;
}

double largest_difference(const Tensor& x, const Tensor& y) {
  double largest = 0;
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const double difference = static_cast<const float*>(x.data())[i] - static_cast<const float*>(y.data())[i];
    largest = std::max(largest, std::abs(difference));
  }
  return largest;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 1000;
  const Tensor q = random_tensor({1, kHeads, tokens, kDim}, 1), d_o = random_tensor({1, kHeads, tokens, kDim}, 2),
               k = random_tensor({1, kKvHeads, tokens, kDim}, 3), v = random_tensor({1, kKvHeads, tokens, kDim}, 4);
  const Tensor slopes = mods::alibi_slopes(kHeads);
  AttentionOptions options;
  options.score_mod = mods::alibi(Capture("slopes", DType::f32, 1));
  options.bindings.captures["slopes"] = slopes;
  options.threads = 1;  // of each rank

  // One rank.
  AttentionOptions of_one = options;
  of_one.mask_mod = mods::causal();
  const AttentionResult whole = attention(q, k, v, of_one, true);
  const BackwardResult gradients = attention_backward({q, k, v, whole.o, whole.lse, d_o}, of_one);

  // Four: each knows the mask, and computes who holds which rows.
  const BlockMask mask =
      BlockMask::build(mods::causal(), MaskShape::uniform(1, 1, tokens, tokens), {64, 64}, options.bindings);
  const WeightedMask weighted = {&mask, 1};
  const MadePartition partition = make_partition({&weighted, 1}, kRanks);
  fmt::print("{}", partition.text());
  std::mutex printing;
  double largest = 0;
  ThreadRanks ranks(kRanks);
  ranks.run([&](Communicator& communicator) {
    const ContextAttention context(partition, mask, options, communicator);
    const std::vector<std::int64_t> own = partition.queries.positions(communicator.rank());
    const Tensor own_q = rows_of(q, own), own_k = rows_of(k, own), own_v = rows_of(v, own), own_d_o = rows_of(d_o, own);
    const Tensor o = Tensor::empty(DType::f32, own_q.shape()), dq = Tensor::empty(DType::f32, own_q.shape()),
                 dk = Tensor::empty(DType::f32, own_k.shape()), dv = Tensor::empty(DType::f32, own_v.shape()),
                 lse = Tensor::empty(DType::f32, {1, kHeads, std::ssize(own)});
    context.forward({own_q, own_k, own_v, o, lse});
    BackwardTensors tensors{own_q, own_k, own_v, o, lse, own_d_o};
    tensors.dq = dq, tensors.dk = dk, tensors.dv = dv;
    context.backward(tensors);

    const std::scoped_lock lock(printing);
    for (const auto& [mine, all] :
         {std::pair(o, whole.o), {dq, gradients.dq}, {dk, gradients.dk}, {dv, gradients.dv}}) {
      largest = std::max(largest, largest_difference(mine, rows_of(all, own)));
    }
  });
  fmt::print("o, dq, dk and dv of {} ranks and of one differ by at most {:.2g}\n", kRanks, largest);
  return largest < 1e-4 ? 0 : 1;
}
