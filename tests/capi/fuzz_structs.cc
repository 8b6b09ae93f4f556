// The entry of the fuzzer for the structs of c.h (tools/fuzz.py; fuzz_structs_test.cc drives it, too). The bytes fill
// the structs of a plan. Tensors that planning does not read have no memory and any shape; those that it reads have
// shapes and strides that stay inside their memory, which no library could check. Whatever the fields hold, a call
// gives a status of the header, and a sentence if and only if it failed.
#include <array>
#include <cstddef>
#include <cstdint>

#include "capi/fuzz_status.h"
#include "heddle/c.h"

namespace {

using heddle::test::broken;
using heddle::test::Bytes;
using heddle::test::check;

heddle_tensor any_tensor(Bytes& bytes) {
  heddle_tensor x{};
  x.dtype = bytes.number(HEDDLE_BOOL);
  x.device_kind = bytes.number(HEDDLE_DEVICE_ROCM);
  x.device_index = bytes.number(0);
  x.rank = bytes.next() < 200 ? 4 : bytes.number(HEDDLE_MAX_RANK);
  for (int i = 0; i < HEDDLE_MAX_RANK; ++i) x.shape[i] = bytes.extent(), x.strides[i] = bytes.extent();
  return x;
}

/// An f32 tensor [B, H, S, D], dense, without memory.
heddle_tensor plain_tensor(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t columns) {
  return {nullptr,
          HEDDLE_F32,
          HEDDLE_DEVICE_CPU,
          0,
          4,
          {batch, heads, rows, columns},
          {heads * rows * columns, rows * columns, columns, 1}};
}

/// With memory: at most 8 axes of 4 elements with strides up to 8 stand in 4 KiB of 8 bytes each.
heddle_tensor readable_tensor(Bytes& bytes) {
  static std::array<std::int64_t, 512> memory = [] {
    std::array<std::int64_t, 512> made{};
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::int64_t>(i % 5);
    return made;
  }();
  heddle_tensor x{};
  x.data = bytes.next() < 245 ? memory.data() : nullptr;
  x.dtype = bytes.next() < 160 ? HEDDLE_I32 : bytes.number(HEDDLE_BOOL);
  x.device_kind = bytes.next() < 245 ? HEDDLE_DEVICE_CPU : bytes.number(HEDDLE_DEVICE_ROCM);
  x.rank = bytes.next() < 200 ? 1 : bytes.number(HEDDLE_MAX_RANK);
  for (int i = 0; i < HEDDLE_MAX_RANK; ++i) {
    x.shape[i] = bytes.next() < 245 ? bytes.next() % 5 : -1;
    x.strides[i] = bytes.next() % 9;
  }
  return x;
}

constexpr std::array<const char*, 12> kTexts = {nullptr,
                                                "score",
                                                "q_idx >= kv_idx",
                                                "score + x[h]",
                                                "documents[q_idx] == documents[kv_idx]",
                                                "score * s",
                                                "oops(",
                                                "",
                                                "1.0",
                                                "\xff\xfe",
                                                "score if q_idx < n else -inf",
                                                "x[q_idx]"};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const std::int64_t batch = 1 + bytes.next() % 3, kv_heads = 1 + bytes.next() % 3,
                     heads = kv_heads * (1 + bytes.next() % 3);
  const std::int64_t q_rows = bytes.next() % 40, kv_rows = bytes.next() % 40, dim = 1 + bytes.next() % 40;
  std::array<heddle_tensor, 5> tensors = {
      plain_tensor(batch, heads, q_rows, dim), plain_tensor(batch, kv_heads, kv_rows, dim),
      plain_tensor(batch, kv_heads, kv_rows, dim), plain_tensor(batch, heads, q_rows, dim),
      plain_tensor(batch, heads, q_rows, 1)};
  tensors[4].rank = 3, tensors[4].strides[0] = heads * q_rows, tensors[4].strides[1] = q_rows,
  tensors[4].strides[2] = 1;
  for (heddle_tensor& tensor : tensors) {
    if (bytes.next() >= 240) tensor = any_tensor(bytes);
  }
  std::array<heddle_tensor, 8> read{};
  for (heddle_tensor& tensor : read) tensor = readable_tensor(bytes);
  const auto maybe = [&](std::size_t i) { return bytes.next() % 12 == 11 ? &read[i] : nullptr; };

  const std::array<heddle_capture, 2> captures = {
      {{"x", &read[6]}, {bytes.next() % 8 == 7 ? "x" : "documents", &read[7]}}};
  const std::array<heddle_param, 2> params = {
      {{"s", bytes.next() % 8 == 7 ? bytes.number(HEDDLE_PARAM_BOOL) : HEDDLE_PARAM_F32, bytes.number(3), 0.5},
       {"n", HEDDLE_PARAM_I32, bytes.number(40), 0}}};
  const heddle_bindings bindings = {bytes.size_of_struct<heddle_bindings>(), params.data(), 2 - bytes.next() % 16 / 14,
                                    captures.data(), 2 - bytes.next() % 16 / 14};
  const double scale = bytes.coin() ? 0.5 : -1e300;
  heddle_attention_options options{};
  options.struct_size = bytes.size_of_struct<heddle_attention_options>();
  options.score_mod = bytes.one_of(kTexts), options.mask_mod = bytes.one_of(kTexts);
  options.weight_mod = bytes.coin() ? nullptr : bytes.one_of(kTexts);
  options.bindings = bytes.next() % 4 == 3 ? nullptr : &bindings;
  options.scale = bytes.coin() ? &scale : nullptr;
  options.q_lengths = maybe(0), options.kv_lengths = maybe(1), options.cu_seqlens_q = maybe(2);
  options.cu_seqlens_kv = maybe(3), options.q_start = maybe(4), options.kv_start = maybe(5);
  options.sinks = maybe(6), options.q_descale = maybe(7), options.page_table = maybe(0), options.page_starts = maybe(2);
  options.prefix_group = maybe(1), options.prefix_len = maybe(1), options.q_rest = maybe(3), options.k_rest = maybe(4);
  options.normalizer = bytes.number(HEDDLE_NORMALIZER_SIGMOID);
  options.backend = bytes.next() < 200 ? HEDDLE_BACKEND_AUTOMATIC : bytes.number(HEDDLE_BACKEND_AMD);
  options.threads = bytes.next() < 200 ? 1 : bytes.number(4);
  options.tuning = bytes.next() < 200 ? HEDDLE_TUNING_OFF : bytes.number(HEDDLE_TUNING_RECORDED);
  if (bytes.next() >= 220) options.max_q_len = bytes.extent(), options.max_kv_len = bytes.extent();
  if (bytes.next() >= 220) options.clamp_reads = bytes.number(2), options.deterministic = bytes.number(2);
  if (bytes.next() >= 220) options.batch_invariant = bytes.number(2), options.allow_tf32 = bytes.number(2);
  if (bytes.next() >= 220) options.fresh_tokens = bytes.extent();
  if (bytes.next() >= 240) options.reserved = bytes.number(1), options.reserved_2 = bytes.number(1);

  const heddle_attention_tensors given = {bytes.size_of_struct<heddle_attention_tensors>(),
                                          &tensors[0],
                                          &tensors[1],
                                          &tensors[2],
                                          &tensors[3],
                                          bytes.coin() ? &tensors[4] : nullptr,
                                          nullptr,
                                          nullptr};
  heddle_plan* plan = nullptr;
  const heddle_status status = heddle_plan_create(&given, &options, &plan);
  check(status);
  if ((status == HEDDLE_OK) != (plan != nullptr)) broken("a plan and its status disagree");
  if (plan == nullptr) return 0;
  std::int64_t workspace = -1;
  check(heddle_plan_workspace_bytes(plan, &workspace));
  if (workspace < 0) broken("a workspace of less than nothing");
  const char* text = nullptr;
  check(heddle_plan_explain(plan, &text));
  check(heddle_plan_update(plan, &bindings));
  heddle_plan_destroy(plan);
  return 0;
}
