// The entry of the fuzzer for calls of c.h (tools/fuzz.py; fuzz_calls_test.cc drives it, too): block masks, plans of
// both passes and their runs, one-call functions, appended rows, merged states, partitions. The bytes choose functions,
// shapes, strides, dtypes, contents, texts, and sizes of structs. Each struct and each tensor ends before a page
// without rights, and has the memory that its shape, strides and struct_size say, and no more.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "capi/fuzz_status.h"
#include "capi/guarded_memory.h"
#include "heddle/c.h"

namespace {

using heddle::test::broken;
using heddle::test::Bytes;
using heddle::test::check;
using heddle::test::GuardedMemory;

constexpr std::array kSizes = {8, 4, 2, 2, 1, 1, 8, 4, 2, 1, 8, 4, 2, 1, 1};  // of the dtypes
constexpr std::array kFloats = {HEDDLE_F32, HEDDLE_F32, HEDDLE_BF16, HEDDLE_F16, HEDDLE_F64};
constexpr std::array<const char*, 10> kScores = {
    nullptr, "score",        "score + x[h]", "score * s", "x[q_idx]", "20.0 * tanh(score / 20.0)",
    "",      "score + x[n]", "score / 0",    "score +"};
constexpr std::array<const char*, 10> kMasks = {nullptr,
                                                "q_idx >= kv_idx",
                                                "documents[q_idx] == documents[kv_idx]",
                                                "q_idx - kv_idx < n",
                                                "False",
                                                "at(documents, kv_idx, 3) < n",
                                                "kv_idx % (n - n) == 0",
                                                "documents[q_idx - 5] > 0",
                                                "score > 0",
                                                "True"};

/// Everything that one input makes.
class Arguments {
 public:
  explicit Arguments(Bytes& bytes) : bytes_(bytes) { memory().clear(); }

  /// Mostly a dense tensor of this shape and dtype; now and then something else, with the memory that goes with it.
  const heddle_tensor* tensor(std::vector<std::int64_t> shape, std::int32_t dtype, bool integers = false) {
    heddle_tensor x{};
    x.dtype = bytes_.next() < 235 ? dtype : bytes_.number(HEDDLE_BOOL);
    if (bytes_.next() >= 250) x.device_kind = bytes_.number(HEDDLE_DEVICE_ROCM);
    if (bytes_.next() >= 235) shape[bytes_.next() % shape.size()] = bytes_.extent();
    if (bytes_.next() >= 245) shape.push_back(1);
    x.rank = static_cast<std::int32_t>(shape.size());
    std::int64_t stride = 1;
    for (int i = x.rank - 1; i >= 0; --i) {
      x.shape[i] = shape[static_cast<std::size_t>(i)];
      x.strides[i] = bytes_.next() < 240 ? stride : static_cast<std::int64_t>(bytes_.next()) - 100;
      stride = std::clamp<std::int64_t>(stride * std::clamp<std::int64_t>(x.shape[i], 1, 64), 1, 1 << 20);
    }
    if (bytes_.next() < 250) give_memory(x, integers);
    if (bytes_.next() >= 252) {
      // Fewer axes may be more elements: an axis of none was among them.
      x.rank = bytes_.number(HEDDLE_MAX_RANK + 1);
      if (x.data != nullptr) give_memory(x, integers);
    }
    return memory().copy(x);
  }
  const heddle_tensor* maybe(std::vector<std::int64_t> shape, std::int32_t dtype, bool integers = false) {
    return bytes_.next() % 6 == 5 ? tensor(std::move(shape), dtype, integers) : nullptr;
  }

  /// The struct with a struct_size that is mostly its own, and as much memory as that says, up to what any reads.
  template <class T>
  T* sized(T value) {
    std::uint64_t size = sizeof(T);
    if (const std::uint8_t byte = bytes_.next(); byte >= 235) size = byte >= 245 ? bytes_.next() * 8U : bytes_.next();
    value.struct_size = size;
    if (bytes_.next() >= 252) value.struct_size = ~std::uint64_t{0} >> (bytes_.next() % 64);
    const std::size_t there = std::clamp<std::uint64_t>(std::max<std::uint64_t>(value.struct_size, 8), 8, 4096);
    T* const copy = memory().copy(value, there);
    if (there > sizeof(T) && bytes_.coin()) reinterpret_cast<unsigned char*>(copy)[there - 1] = bytes_.next();
    return copy;
  }

  const heddle_bindings* bindings() {
    heddle_capture captures[] = {{"x", tensor({40}, HEDDLE_F32)}, {"documents", tensor({64}, HEDDLE_I32, true)}};
    heddle_param params[] = {{"s", HEDDLE_PARAM_F32, 0, 0.5}, {"n", HEDDLE_PARAM_I32, bytes_.number(40), 0}};
    if (bytes_.next() >= 245) params[0].type = bytes_.number(4);
    if (bytes_.next() >= 245) captures[0].name = nullptr;
    if (bytes_.next() >= 245) captures[1].tensor = nullptr;
    heddle_bindings all{};
    const auto* const given = memory().copy(captures);
    const auto* const values = memory().copy(params);
    all.captures = *given, all.params = *values;
    all.capture_count = bytes_.next() < 240 ? 2 : bytes_.next() % 3 - 1;
    all.param_count = bytes_.next() < 240 ? 2 : bytes_.next() % 3 - 1;
    return sized(all);
  }

  static GuardedMemory& memory() {
    static GuardedMemory memory;
    return memory;
  }

 private:
  /// Null where it would take too much: a run then has to refuse it.
  void give_memory(heddle_tensor& x, bool integers) {
    x.data = nullptr;
    std::int64_t lowest = 0, highest = 0, count = 1;
    for (int i = 0; i < std::min<int>(x.rank, HEDDLE_MAX_RANK); ++i) {
      if (x.shape[i] < 0 || x.shape[i] > 1000) return;
      count *= x.shape[i];
      const std::int64_t last = std::max<std::int64_t>(x.shape[i] - 1, 0) * x.strides[i];
      (last < 0 ? lowest : highest) += last;
    }
    const std::int64_t size = x.dtype >= 0 && x.dtype <= HEDDLE_BOOL ? kSizes[static_cast<std::size_t>(x.dtype)] : 1;
    const std::int64_t bytes = count == 0 ? 0 : (highest - lowest + 1) * size;
    if (bytes > static_cast<std::int64_t>(GuardedMemory::kLargest)) return;
    std::byte* const begin = memory().block(static_cast<std::size_t>(bytes));
    if (begin == nullptr) return;
    const std::uint8_t seed = bytes_.next();
    for (std::int64_t i = 0; i + size <= bytes; i += size) {
      // Integers are small, and now and then far out; of reals any bits but those of 8 and more exponents.
      const std::int64_t small = (i / size * 7 + seed) % (integers && seed >= 128 ? seed : 5);
      const std::int64_t odd = seed >= 250 && i == 0 ? -1 - seed : small;
      if (integers) {
        std::memcpy(begin + i, &odd, static_cast<std::size_t>(size));
      } else {
        begin[i + size - 1] = static_cast<std::byte>(seed + i);
      }
    }
    x.data = begin - lowest * size;
  }

  Bytes& bytes_;
};

struct Shape {
  std::int64_t batch, kv_heads, heads, q_rows, kv_rows, dim;
  std::int32_t dtype;

  explicit Shape(Bytes& bytes)
      : batch(1 + bytes.next() % 2),
        kv_heads(1 + bytes.next() % 2),
        heads(kv_heads * (1 + bytes.next() % 2)),
        q_rows(bytes.next() % 20),
        kv_rows(bytes.next() % 40),
        dim(1 + bytes.next() % 20),
        dtype(bytes.one_of(kFloats)) {}
  std::vector<std::int64_t> q() const { return {batch, heads, q_rows, dim}; }
  std::vector<std::int64_t> k() const { return {batch, kv_heads, kv_rows, dim}; }
  std::vector<std::int64_t> rows() const { return {batch, heads, q_rows}; }
  std::int32_t reals() const { return dtype == HEDDLE_F64 ? HEDDLE_F64 : HEDDLE_F32; }
};

heddle_block_mask* any_block_mask(Bytes& bytes, Arguments& arguments, const Shape& shape) {
  heddle_block_mask_options options{};
  std::vector<heddle_sequence> sequences;
  for (std::int64_t b = 0; b < shape.batch; ++b) sequences.push_back({0, shape.q_rows, 0, shape.kv_rows, 0, 0});
  if (bytes.next() >= 240) sequences[0].q_len = bytes.extent(), sequences[0].q_start = bytes.extent();
  options.sequence_size = bytes.next() < 245 ? static_cast<std::int64_t>(sizeof(heddle_sequence)) : bytes.next() % 49;
  const std::size_t size = std::size_t(sequences.size()) * sizeof(heddle_sequence);
  std::byte* const copied = Arguments::memory().block(size);
  std::memcpy(copied, sequences.data(), size);
  options.sequences = reinterpret_cast<const heddle_sequence*>(copied);
  options.sequence_count = bytes.next() < 245 ? shape.batch : bytes.next() % 2 - 1;
  options.heads = bytes.next() < 235 ? shape.heads : bytes.extent();
  options.q_block = bytes.next() % 40, options.kv_block = bytes.next() % 40;
  options.mask_mod = bytes.one_of(kMasks);
  options.bindings = arguments.bindings();
  options.threads = 1;
  options.clamp_reads = bytes.next() >= 240 ? 1 : 0;
  if (bytes.next() >= 160) {
    const std::int64_t q = options.q_block == 0 ? 1 : (shape.q_rows + options.q_block - 1) / options.q_block,
                       kv = options.kv_block == 0 ? 1 : (shape.kv_rows + options.kv_block - 1) / options.kv_block;
    options.kv_num_blocks = arguments.tensor({shape.batch, shape.heads, q}, HEDDLE_I32, true);
    options.kv_indices = arguments.tensor({shape.batch, shape.heads, q, kv}, HEDDLE_I32, true);
    options.full_kv_num_blocks = arguments.maybe({shape.batch, shape.heads, q}, HEDDLE_I32, true);
    options.full_kv_indices = arguments.maybe({shape.batch, shape.heads, q, kv}, HEDDLE_I32, true);
  }
  heddle_block_mask* mask = nullptr;
  const heddle_status status = heddle_block_mask_create(arguments.sized(options), &mask);
  check(status);
  if ((status == HEDDLE_OK) != (mask != nullptr)) broken("a block mask and its status disagree");
  if (mask == nullptr) return nullptr;
  const char* text = nullptr;
  check(heddle_block_mask_text(mask, bytes.next() % 4 - 1, bytes.next() % 4 - 1, &text));
  return mask;
}

const heddle_attention_options* any_options(Bytes& bytes, Arguments& arguments, const Shape& shape,
                                            const heddle_block_mask* mask) {
  static const double scale = 0.3;
  heddle_attention_options options{};
  options.score_mod = bytes.one_of(kScores);
  options.mask_mod = mask != nullptr && bytes.coin() ? nullptr : bytes.one_of(kMasks);
  options.weight_mod = bytes.next() < 200 ? nullptr : bytes.one_of(kScores);
  options.bindings = bytes.next() < 245 ? arguments.bindings() : nullptr;
  options.scale = bytes.coin() ? &scale : nullptr;
  options.sinks = arguments.maybe({shape.heads}, shape.reals());
  options.kv_lengths = arguments.maybe({shape.batch}, HEDDLE_I32, true);
  options.q_lengths = arguments.maybe({shape.batch}, HEDDLE_I64, true);
  options.q_start = arguments.maybe({shape.batch}, HEDDLE_I32, true);
  options.cu_seqlens_q = bytes.next() < 230 ? nullptr : arguments.tensor({3}, HEDDLE_I32, true);
  options.cu_seqlens_kv = bytes.next() < 230 ? nullptr : arguments.tensor({3}, HEDDLE_I32, true);
  options.page_table = bytes.next() < 220 ? nullptr : arguments.tensor({shape.batch, 3}, HEDDLE_I32, true);
  options.normalizer = bytes.next() < 200 ? HEDDLE_NORMALIZER_SOFTMAX : bytes.number(HEDDLE_NORMALIZER_SIGMOID);
  options.backend = bytes.next() < 220 ? HEDDLE_BACKEND_AUTOMATIC : bytes.number(HEDDLE_BACKEND_AMD);
  options.threads = 1;
  options.tuning = HEDDLE_TUNING_OFF;
  options.clamp_reads = bytes.next() >= 220 ? 1 : 0;
  options.batch_invariant = bytes.next() >= 240 ? 1 : 0;
  options.deterministic = bytes.next() >= 240 ? 1 : 0;
  options.partial_keys = bytes.next() >= 240 ? 1 : 0;
  options.block_mask = mask;
  return arguments.sized(options);
}

void ask_plan(Bytes& bytes, Arguments& arguments, heddle_status status, heddle_plan* plan) {
  check(status);
  if ((status == HEDDLE_OK) != (plan != nullptr)) broken("a plan and its status disagree");
  if (plan == nullptr) return;
  std::int64_t workspace = -1;
  std::int32_t backend = -1;
  const char* text = nullptr;
  check(heddle_plan_workspace_bytes(plan, &workspace));
  check(heddle_plan_backend(plan, &backend));
  if (workspace < 0 || backend < 0) broken("a plan without a workspace or a backend");
  if (bytes.next() >= 200) check(heddle_plan_explain_json(plan, &text));
  if (bytes.next() >= 200) check(heddle_plan_update(plan, arguments.bindings()));
}

const heddle_run_options* any_run(Bytes& bytes, Arguments& arguments) {
  heddle_run_options run{};
  if (bytes.next() >= 200) run.bindings = arguments.bindings();
  if (bytes.next() >= 250) run.workspace = Arguments::memory().block(8);
  if (bytes.next() >= 250) run.workspace = nullptr;
  return bytes.coin() ? arguments.sized(run) : nullptr;
}

void attend(Bytes& bytes, Arguments& arguments, const Shape& shape, const heddle_block_mask* mask) {
  const auto* const options = any_options(bytes, arguments, shape, mask);
  heddle_attention_tensors tensors{};
  tensors.q = arguments.tensor(shape.q(), shape.dtype), tensors.k = arguments.tensor(shape.k(), shape.dtype);
  tensors.v = arguments.tensor(shape.k(), shape.dtype), tensors.o = arguments.tensor(shape.q(), shape.dtype);
  tensors.lse = arguments.maybe(shape.rows(), shape.reals());
  tensors.max_scores = arguments.maybe(shape.rows(), shape.reals());
  const auto* const given = arguments.sized(tensors);
  if (bytes.coin()) {
    check(heddle_attention_into(given, options));
    std::int32_t passed = -1;
    const char* report = nullptr;
    if (bytes.next() >= 250) check(heddle_check_attention(given, options, &passed, &report));
    return;
  }
  heddle_plan* plan = nullptr;
  const heddle_status status = heddle_plan_create(given, options, &plan);
  ask_plan(bytes, arguments, status, plan);
  if (plan != nullptr) check(heddle_plan_run(plan, given, any_run(bytes, arguments)));
  heddle_plan_destroy(plan);
}

void go_back(Bytes& bytes, Arguments& arguments, const Shape& shape, const heddle_block_mask* mask) {
  const auto* const options = any_options(bytes, arguments, shape, mask);
  heddle_backward_tensors tensors{};
  tensors.q = arguments.tensor(shape.q(), shape.dtype), tensors.k = arguments.tensor(shape.k(), shape.dtype);
  tensors.v = arguments.tensor(shape.k(), shape.dtype), tensors.o = arguments.tensor(shape.q(), shape.dtype);
  tensors.d_o = arguments.tensor(shape.q(), shape.dtype);
  if (bytes.next() < 240) tensors.lse = arguments.tensor(shape.rows(), shape.reals());
  tensors.d_lse = arguments.maybe(shape.rows(), shape.reals());
  if (bytes.next() < 220) tensors.dq = arguments.tensor(shape.q(), shape.dtype);
  if (bytes.next() < 220) tensors.dk = arguments.tensor(shape.k(), shape.dtype);
  tensors.dv = arguments.maybe(shape.k(), shape.dtype);
  tensors.d_sinks = arguments.maybe({shape.heads}, shape.reals());
  const heddle_gradient gradients[] = {{"x", arguments.maybe({40}, HEDDLE_F32)}};
  if (bytes.next() >= 230) tensors.d_captures = *Arguments::memory().copy(gradients), tensors.d_capture_count = 1;
  const auto* const given = arguments.sized(tensors);
  if (bytes.coin()) {
    check(heddle_attention_backward_into(given, options));
    return;
  }
  heddle_plan* plan = nullptr;
  const heddle_status status = heddle_plan_create_backward(given, options, &plan);
  ask_plan(bytes, arguments, status, plan);
  if (plan != nullptr) check(heddle_plan_run_backward(plan, given, any_run(bytes, arguments)));
  heddle_plan_destroy(plan);
}

void append(Bytes& bytes, Arguments& arguments, const Shape& shape) {
  heddle_append all{};
  const std::vector<std::int64_t> cache = {shape.batch, shape.kv_heads, 1 + bytes.next() % 30, shape.dim};
  all.k = arguments.tensor(shape.k(), shape.dtype), all.k_cache = arguments.tensor(cache, shape.dtype);
  if (bytes.coin())
    all.v = arguments.tensor(shape.k(), shape.dtype), all.v_cache = arguments.tensor(cache, shape.dtype);
  all.kv_lengths = arguments.tensor({shape.batch}, HEDDLE_I32, true);
  all.page_table = arguments.maybe({shape.batch, 3}, HEDDLE_I32, true);
  all.cu_seqlens = arguments.maybe({3}, HEDDLE_I32, true);
  all.page_starts = arguments.maybe({shape.batch + 1}, HEDDLE_I32, true);
  if (bytes.next() >= 160) {
    all.rotary_cos = arguments.tensor({40, (shape.dim + 1) / 2}, HEDDLE_F32);
    all.rotary_sin = arguments.tensor({40, (shape.dim + 1) / 2}, HEDDLE_F32);
    all.rotary_positions = arguments.maybe({shape.batch}, HEDDLE_I32, true);
    all.rotary_interleaved = bytes.next() % 2;
    if (bytes.coin())
      all.q = arguments.tensor(shape.q(), shape.dtype), all.q_out = arguments.tensor(shape.q(), shape.dtype);
  }
  check(heddle_append_kv(arguments.sized(all)));
}

void merge(Bytes& bytes, Arguments& arguments, const Shape& shape) {
  const std::int64_t count = 1 + bytes.next() % 3;
  std::vector<heddle_tensor> o, lse;
  for (std::int64_t i = 0; i < count; ++i) {
    o.push_back(*arguments.tensor(shape.q(), shape.dtype)), lse.push_back(*arguments.tensor(shape.rows(), HEDDLE_F32));
  }
  const auto guarded = [](const std::vector<heddle_tensor>& parts) {
    std::byte* const memory = Arguments::memory().block(parts.size() * sizeof parts[0]);
    std::memcpy(memory, parts.data(), parts.size() * sizeof parts[0]);
    return reinterpret_cast<const heddle_tensor*>(memory);
  };
  check(heddle_merge_states(guarded(o), guarded(lse), bytes.next() < 245 ? count : count - 3,
                            arguments.tensor(shape.q(), shape.dtype), arguments.maybe(shape.rows(), HEDDLE_F32)));
}

heddle_partition_options placing(Bytes& bytes) {
  heddle_partition_options options{};
  if (bytes.next() >= 120) options.chunk = bytes.extent();
  if (bytes.next() >= 160) options.ranks_per_host = bytes.extent();
  if (bytes.next() >= 200) options.placing = bytes.number(HEDDLE_PLACING_HEAP);
  if (bytes.next() >= 220) options.host_steps = bytes.extent();
  const double inf = HUGE_VAL;
  for (double* weight : {&options.exchange_weight, &options.host_exchange_weight, &options.partial_factor,
                         &options.row_weight, &options.exposed}) {
    if (bytes.next() >= 240) *weight = bytes.one_of(std::array{-1.0, 0.5, 1e308, inf, inf - inf});
  }
  return options;
}

void ask_partition(Bytes& bytes, const heddle_partition* partition, const heddle_block_mask* mask, std::int64_t ranks) {
  const char* text = nullptr;
  std::uint64_t hash = 0;
  std::int64_t rows = -1;
  check(heddle_partition_text(partition, &text));
  check(heddle_partition_hash(partition, &hash));
  const std::int64_t rank = bytes.extent();
  const std::int32_t of_keys = bytes.number(1);
  const heddle_status counted = heddle_partition_rows(partition, of_keys, rank, &rows);
  check(counted);
  if (counted == HEDDLE_OK) {
    auto* const positions = reinterpret_cast<std::int64_t*>(Arguments::memory().block(std::size_t(rows) * 8));
    check(heddle_partition_positions(partition, of_keys, rank, positions));
  }
  auto* const received = reinterpret_cast<std::int64_t*>(Arguments::memory().block(std::size_t(ranks * ranks) * 8));
  check(heddle_exchange_rows(partition, mask, received, nullptr));
  check(heddle_exchange_text(partition, mask, bytes.extent(), &text));
}

void place(Bytes& bytes, Arguments& arguments, Shape shape) {
  if (bytes.next() < 200) shape.batch = 1;  // what partitions take
  heddle_block_mask* const mask = any_block_mask(bytes, arguments, shape);
  const heddle_weighted_mask given[] = {{mask, bytes.next() < 245 ? 1.0 : -HUGE_VAL}};
  const std::int64_t ranks = bytes.extent(), count = bytes.next() < 245 ? 1 : bytes.next() % 2 - 1;
  const auto* const options = bytes.coin() ? arguments.sized(placing(bytes)) : nullptr;
  heddle_partition* partition = nullptr;
  const heddle_status status =
      heddle_partition_create(*Arguments::memory().copy(given), count, ranks, options, &partition);
  check(status);
  if ((status == HEDDLE_OK) != (partition != nullptr)) broken("a partition and its status disagree");
  if (partition != nullptr) ask_partition(bytes, partition, mask, ranks);
  heddle_partition_destroy(partition);
  heddle_block_mask_destroy(mask);
}

void call_with_nulls(Bytes& bytes) {
  const char* text = nullptr;
  std::int32_t number = 0;
  std::int64_t count = 0;
  heddle_plan* plan = nullptr;
  switch (bytes.next() % 10) {
    case 0:
      return check(heddle_plan_create(nullptr, nullptr, bytes.coin() ? &plan : nullptr));
    case 1:
      return check(heddle_plan_create_backward(nullptr, nullptr, bytes.coin() ? &plan : nullptr));
    case 2:
      return check(heddle_plan_run(nullptr, nullptr, nullptr));
    case 3:
      return check(heddle_plan_update(nullptr, nullptr));
    case 4:
      return check(heddle_plan_workspace_bytes(nullptr, bytes.coin() ? &count : nullptr));
    case 5:
      return check(heddle_plan_explain(nullptr, &text));
    case 6:
      return check(heddle_block_mask_create(nullptr, nullptr));
    case 7:
      return check(heddle_merge_states(nullptr, nullptr, bytes.next() % 3, nullptr, nullptr));
    case 8:
      return check(heddle_check_attention(nullptr, nullptr, &number, nullptr));
    default:
      return check(heddle_append_kv(nullptr));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  Arguments arguments(bytes);
  const Shape shape(bytes);
  heddle_block_mask* const mask = bytes.next() % 4 == 3 ? any_block_mask(bytes, arguments, shape) : nullptr;
  switch (bytes.next() % 8) {
    case 0:
    case 1:
    case 2:
      attend(bytes, arguments, shape, mask);
      break;
    case 3:
    case 4:
      go_back(bytes, arguments, shape, mask);
      break;
    case 5:
      append(bytes, arguments, shape);
      break;
    case 6:
      if (bytes.coin()) {
        merge(bytes, arguments, shape);
      } else {
        place(bytes, arguments, shape);
      }
      break;
    default:
      call_with_nulls(bytes);
  }
  heddle_block_mask_destroy(mask);
  return 0;
}
