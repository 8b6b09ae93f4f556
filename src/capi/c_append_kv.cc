#include <optional>

#include "errors.h"
#include "from_c.h"
#include "heddle/kv_cache.h"
#include "structs.h"

namespace {

using heddle::capi::to_flag;
using heddle::capi::to_optional_view;
using heddle::capi::to_view;

heddle::AppendTensors tensors_of(const heddle_append& given) {
  return {.k = to_view("k", given.k),
          .k_cache = to_view("k_cache", given.k_cache),
          .v = to_optional_view("v", given.v),
          .v_cache = to_optional_view("v_cache", given.v_cache),
          .q = to_optional_view("q", given.q),
          .q_out = to_optional_view("q_out", given.q_out)};
}

heddle::AppendOptions options_of(const heddle_append& given) {
  heddle::AppendOptions options{.kv_lengths = to_view("kv_lengths", given.kv_lengths),
                                .cu_seqlens = to_optional_view("cu_seqlens", given.cu_seqlens),
                                .page_table = to_optional_view("page_table", given.page_table),
                                .page_starts = to_optional_view("page_starts", given.page_starts),
                                .k_descale = to_optional_view("k_descale", given.k_descale),
                                .v_descale = to_optional_view("v_descale", given.v_descale),
                                .stream = given.stream};
  const bool interleaved = to_flag("append.rotary_interleaved", given.rotary_interleaved),
             at_first = to_flag("append.rotary_queries_at_first", given.rotary_queries_at_first);
  if (given.rotary_cos == nullptr && given.rotary_sin == nullptr) return options;
  options.rotary = heddle::Rotary{.cos = to_view("rotary_cos", given.rotary_cos),
                                  .sin = to_view("rotary_sin", given.rotary_sin),
                                  .interleaved = interleaved,
                                  .positions = to_optional_view("rotary_positions", given.rotary_positions),
                                  .queries_at_first = at_first};
  return options;
}

}  // namespace

heddle_status heddle_append_kv(const heddle_append* append) {
  return heddle::capi::call([&] {
    heddle::capi::require(append, "append", "heddle_append");
    const heddle_append given = heddle::capi::known_fields("append", append);
    heddle::append_kv(tensors_of(given), options_of(given));
  });
}
