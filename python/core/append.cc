#include "append.h"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "arguments.h"
#include "call_tensors.h"
#include "heddle/kv_cache.h"
#include "tensors.h"

namespace heddle::python {
namespace {

using namespace nb::literals;

void append_arrays(const ReadOnly& k, const Given& v, const Array& k_cache, const GivenOut& v_cache,
                   const ReadOnly& kv_lengths, const Given& q, const GivenOut& q_out, const Given& cu_seqlens,
                   const Given& page_table, const Given& page_starts, const Given& k_descale, const Given& v_descale,
                   const Given& rotary_cos, const Given& rotary_sin, const Given& rotary_positions, bool interleaved,
                   bool queries_at_first, std::uintptr_t stream) {
  AppendTensors tensors{.k = const_view_of(k, "k"),
                        .k_cache = view_of(k_cache, "k_cache"),
                        .v = given_view(v, "v"),
                        .q = given_view(q, "q")};
  if (v_cache) tensors.v_cache = view_of(*v_cache, "v_cache");
  if (q_out) tensors.q_out = view_of(*q_out, "q_out");
  AppendOptions options{.kv_lengths = const_view_of(kv_lengths, "kv_lengths"),
                        .cu_seqlens = given_view(cu_seqlens, "cu_seqlens"),
                        .page_table = given_view(page_table, "page_table"),
                        .page_starts = given_view(page_starts, "page_starts"),
                        .k_descale = given_view(k_descale, "k_descale"),
                        .v_descale = given_view(v_descale, "v_descale"),
                        .stream = reinterpret_cast<void*>(stream)};
  if (rotary_cos && rotary_sin) {
    options.rotary = Rotary{.cos = const_view_of(*rotary_cos, "rotary_cos"),
                            .sin = const_view_of(*rotary_sin, "rotary_sin"),
                            .interleaved = interleaved,
                            .positions = given_view(rotary_positions, "rotary_positions"),
                            .queries_at_first = queries_at_first};
  }
  const WithoutGil released;
  append_kv(tensors, options);
}

/// i32 [B].
Tensor tensor_of(const std::vector<std::int32_t>& values) {
  Tensor tensor = Tensor::empty(DType::i32, {std::ssize(values)});
  std::ranges::copy(values, static_cast<std::int32_t*>(tensor.data()));
  return tensor;
}

Pair prefixes_of(const ReadOnly& page_table, const ReadOnly& kv_lengths, std::int64_t page_size,
                 const Given& page_starts) {
  const Prefixes found = find_prefixes(const_view_of(page_table, "page_table"), const_view_of(kv_lengths, "kv_lengths"),
                                       page_size, given_view(page_starts, "page_starts"));
  return pair_of(to_python(tensor_of(found.group)), to_python(tensor_of(found.len)));
}

}  // namespace

void add_append(nb::module_& module) {
  module.def("append_kv", &append_arrays, "k"_a, "v"_a.none(), "k_cache"_a, "v_cache"_a.none(), "kv_lengths"_a,
             "q"_a.none(), "q_out"_a.none(), "cu_seqlens"_a.none(), "page_table"_a.none(), "page_starts"_a.none(),
             "k_descale"_a.none(), "v_descale"_a.none(), "rotary_cos"_a.none(), "rotary_sin"_a.none(),
             "rotary_positions"_a.none(), "interleaved"_a, "queries_at_first"_a, "stream"_a);
  module.def("find_prefixes", &prefixes_of, "page_table"_a, "kv_lengths"_a, "page_size"_a, "page_starts"_a.none());
}

}  // namespace heddle::python
