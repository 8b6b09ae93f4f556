// A problem over a whole sequence, which ranks solve together: threads of this process, on CPUs or on GPUs.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "backend/device.h"
#include "heddle/heddle.h"
#include "thread_communicator.h"

namespace heddle::test {

/// A problem over a whole sequence, and its tensors.
struct Whole {
  std::int64_t ranks = 3, batch = 1, heads = 2, kv_heads = 1, q_len = 75, kv_len = 75, dim = 8, v_dim = 12;
  DType dtype = DType::f32;
  Expr mask = mods::causal(), score{}, weight{};
  std::optional<Placing> placing{};
  std::int64_t chunk = 4, block = 4, ranks_per_host = 0;
  HostSteps host_steps = HostSteps::two;
  bool sinks = false;
  std::int64_t head_groups = 0;
  int times = 1;  // that a ContextAttention computes it
  // Backwards add to gradients that begin at 0: after two times in f32 or f64 they are twice the gradient exactly.
  AddedGradients added{};

  Whole() { bindings.captures["slopes"] = slopes = mods::alibi_slopes(4); }

  /// A causal mask in documents of these lengths, over and over.
  void set_documents(std::initializer_list<int> lengths) {
    documents = Tensor::empty(DType::i32, {kv_len});
    auto* ids = static_cast<std::int32_t*>(documents.data());
    std::int32_t id = 0;
    for (std::int64_t row = 0; row < kv_len;) {
      for (const int length : lengths) {
        for (int i = 0; i < length && row < kv_len; ++i) ids[row++] = id;
        ++id;
      }
    }
    const Capture document("documents", DType::i32, 1);
    mask = mods::causal() && document(leaf::q_idx()) == document(leaf::kv_idx());
    bindings.captures["documents"] = documents;
  }

  Tensor draw(std::int64_t of_heads, std::int64_t rows, std::int64_t columns, unsigned seed) const {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    Tensor tensor = Tensor::empty(DType::f32, {batch, of_heads, rows, columns});
    for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = normal(generator);
    return tensor.to(dtype);
  }
  AttentionOptions options() const {
    AttentionOptions all;
    all.score_mod = score;
    all.weight_mod = weight;
    all.bindings = bindings;
    all.threads = 1;
    if (sinks) all.sinks = sink_values;
    return all;
  }
  AttentionOptions whole_options() const {
    AttentionOptions all = options();
    all.mask_mod = mask;
    return all;
  }
  BlockMask block_mask() const {
    return BlockMask::build(mask, MaskShape::uniform(batch, heads, q_len, kv_len), {block, block}, bindings);
  }
  MadePartition partition(const BlockMask& blocks) const {
    const WeightedMask weighted = {&blocks, 1};
    return make_partition(
        {&weighted, 1}, ranks,
        {.chunk = chunk, .only = placing, .ranks_per_host = ranks_per_host, .host_steps = host_steps});
  }

  Tensor slopes, documents, sink_values = Tensor::zeros(DType::f32, {2});
  Bindings bindings;
};

/// Halves numbers of f32 or f64.
inline void halve(const Tensor& numbers) {
  for (std::int64_t i = 0; i < numbers.count(); ++i) {
    if (numbers.dtype() == DType::f64) {
      static_cast<double*>(numbers.data())[i] /= 2;
    } else {
      static_cast<float*>(numbers.data())[i] /= 2;
    }
  }
}

/// Copies some rows of axis 2 between a tensor of the whole sequence and one of a rank.
inline void copy_rows(const TensorView& whole, const TensorView& part, const std::vector<std::int64_t>& positions,
                      bool to_whole) {
  const std::int64_t columns = whole.rank() == 4 ? whole.shape[3] : 1;
  for (std::int64_t b = 0; b < whole.shape[0]; ++b) {
    for (std::int64_t h = 0; h < whole.shape[1]; ++h) {
      for (std::size_t i = 0; i < positions.size(); ++i) {
        const std::int64_t count = columns * size_of(whole.dtype);
        auto* of_whole =
            static_cast<std::byte*>(whole.data) + ((b * whole.shape[1] + h) * whole.shape[2] + positions[i]) * count;
        auto* of_part = static_cast<std::byte*>(part.data) +
                        ((b * part.shape[1] + h) * part.shape[2] + static_cast<std::int64_t>(i)) * count;
        std::memcpy(to_whole ? of_whole : of_part, to_whole ? of_part : of_whole, static_cast<std::size_t>(count));
      }
    }
  }
}
inline Tensor rows_of(const Tensor& whole, const std::vector<std::int64_t>& positions) {
  Dims shape = whole.shape();
  shape[2] = std::ssize(positions);
  Tensor part = Tensor::empty(whole.dtype(), shape);
  copy_rows(whole, part, positions, false);
  return part;
}

/// A communicator of threads whose ranks' tensors are on devices: bytes go through the host.
class OnDevice final : public Communicator {
 public:
  OnDevice(Communicator& threads, const Device& device) : threads_(threads), device_(device) {}
  std::int64_t rank() const override { return threads_.rank(); }
  std::int64_t size() const override { return threads_.size(); }
  Device device() const override { return device_; }
  void exchange(const void* send, std::span<const std::int64_t> send_bytes, void* receive,
                std::span<const std::int64_t> receive_bytes, void* stream) override {
    const auto sum = [](std::span<const std::int64_t> bytes) {
      return static_cast<std::size_t>(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
    };
    std::vector<std::byte> leaving(sum(send_bytes)), came(sum(receive_bytes));
    const backend::DeviceInterface& kind = *backend::find_device_kind(device_.kind);
    if (!leaving.empty()) kind.copy_and_wait(device_.index, leaving.data(), send, leaving.size());
    threads_.exchange(leaving.data(), send_bytes, came.data(), receive_bytes, stream);
    if (!came.empty()) kind.copy_and_wait(device_.index, receive, came.data(), came.size());
  }
  bool agree(std::uint64_t number) override { return threads_.agree(number); }

 private:
  Communicator& threads_;
  Device device_;
};

/// The results of all ranks, in the order of the sequence.
struct Gathered {
  Tensor o, lse, dq, dk, dv;
};

/// Runs forward and backward over ranks and judges what they gather. `kind`: rank r computes on device r % devices of
/// that kind.
inline Gathered expect_right(const Whole& of, DeviceKind kind = DeviceKind::cpu, int devices = 1) {
  const Tensor q = of.draw(of.heads, of.q_len, of.dim, 1), k = of.draw(of.kv_heads, of.kv_len, of.dim, 2),
               v = of.draw(of.kv_heads, of.kv_len, of.v_dim, 3), d_o = of.draw(of.heads, of.q_len, of.v_dim, 4);
  const DType reals = of.dtype == DType::f64 ? DType::f64 : DType::f32;
  const Tensor o = Tensor::empty(of.dtype, d_o.shape()), lse = Tensor::empty(reals, {of.batch, of.heads, of.q_len}),
               dq = Tensor::zeros(of.dtype, q.shape()), dk = Tensor::zeros(of.dtype, k.shape()),
               dv = Tensor::zeros(of.dtype, v.shape());
  const BlockMask blocks = of.block_mask();
  const MadePartition partition = of.partition(blocks);
  ThreadRanks ranks(of.ranks);
  std::mutex gathering;
  ranks.run([&](Communicator& threads) {
    try {
      const Device device{kind, static_cast<int>(threads.rank()) % devices};
      OnDevice communicator(threads, device);
      const auto there = [&](const Tensor& x) { return kind == DeviceKind::cpu ? x : x.to(device); };
      AttentionOptions options = of.options();
      const Tensor slopes = there(of.slopes), sinks = there(of.sink_values), documents = there(of.documents);
      options.bindings.captures["slopes"] = slopes;
      if (options.bindings.captures.contains("documents")) options.bindings.captures["documents"] = documents;
      if (options.sinks) options.sinks = sinks;
      ContextAttention context(partition, blocks, options, communicator);
      context.set_head_groups(of.head_groups);
      const auto queries = partition.queries.positions(communicator.rank()),
                 keys = partition.keys.positions(communicator.rank());
      const auto part = [&](const Tensor& whole, const std::vector<std::int64_t>& rows) {
        return there(rows_of(whole, rows));
      };
      const Tensor own_q = part(q, queries), own_k = part(k, keys), own_v = part(v, keys), own_d_o = part(d_o, queries),
                   own_o = part(o, queries), own_lse = part(lse, queries), own_dq = part(dq, queries),
                   own_dk = part(dk, keys), own_dv = part(dv, keys);
      BackwardTensors tensors{own_q, own_k, own_v, own_o, own_lse, own_d_o};
      tensors.dq = own_dq, tensors.dk = own_dk, tensors.dv = own_dv;
      for (int time = 0; time < of.times; ++time) {
        context.forward({own_q, own_k, own_v, own_o, own_lse});
        context.backward(tensors, of.added);
      }
      const std::scoped_lock lock(gathering);
      for (const auto& [whole, own] : {std::pair(o, own_o), {lse, own_lse}, {dq, own_dq}}) {
        copy_rows(whole, own.to(Device{}), queries, true);
      }
      copy_rows(dk, own_dk.to(Device{}), keys, true);
      copy_rows(dv, own_dv.to(Device{}), keys, true);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  });
  for (const auto& [gradient, added] : {std::pair(dq, of.added.q), {dk, of.added.k}, {dv, of.added.v}}) {
    if (added) halve(gradient);
  }
  const CheckReport forward = check_attention(q, k, v, of.whole_options(), o, lse);
  EXPECT_TRUE(forward.passed) << forward.text();
  BackwardTensors tensors{q, k, v, o, lse, d_o};
  tensors.dq = dq, tensors.dk = dk, tensors.dv = dv;
  const GradientReport backward = check_backward(tensors, of.whole_options());
  EXPECT_TRUE(backward.passed) << backward.text();
  return {o, lse, dq, dk, dv};
}

}  // namespace heddle::test
