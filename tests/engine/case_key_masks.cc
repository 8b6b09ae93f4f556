// Masks that leave a few runs of keys, counted from the last key on, as steps of decoding have them.
#include <vector>

#include "engine/case_mods.h"

namespace heddle::test {
namespace {

/// The key, counted from its sequence's first one, and the key at which a query stands if the last query does at the
/// last key.
Expr key() { return leaf::kv_idx() - leaf::kv_start(); }
Expr own_key() { return leaf::q_idx() - leaf::q_start() + leaf::kv_len() - leaf::q_len(); }

Expr last_window(std::int32_t window) { return (key() <= own_key()) & (own_key() - key() < window); }

Expr last_window_by_param(AttentionCase& c) {
  c.options().bindings.params["window"] = static_cast<std::int32_t>(c.below(100));
  return (key() <= own_key()) & (own_key() - key() < param("window", ExprType::i32));
}

// Each sequence's last document begins at some key.
Expr document_from(AttentionCase& c) {
  Tensor begins = Tensor::empty(DType::i32, {std::max<std::int64_t>(1, c.sequences())});
  for (std::int64_t b = 0; b < begins.count(); ++b) {
    static_cast<std::int32_t*>(begins.data())[b] = static_cast<std::int32_t>(c.below(c.spec().kv_rows + 1));
  }
  c.capture("begins", begins);
  return (key() >= Capture("begins", DType::i32, 1)(leaf::b())) & (key() <= own_key());
}

// Documents by their ids, in pieces and in no order; each query has that of the key at which it stands.
Expr documents_by_id(AttentionCase& c) {
  const std::int64_t keys = c.spec().kv_rows, sequences = std::max<std::int64_t>(1, c.sequences());
  Tensor ids = Tensor::empty(DType::i32, {sequences, keys});
  std::int32_t id = 0;
  for (std::int64_t i = 0, left = 0; i < ids.count(); ++i, --left) {
    if (left == 0) {
      id = static_cast<std::int32_t>(c.below(4));
      left = 1 + c.below(90);
    }
    static_cast<std::int32_t*>(ids.data())[i] = id;
  }
  c.capture("ids", ids);
  const auto below = [](const Expr& i, std::int64_t bound) {
    return min(max(i, 0), static_cast<std::int32_t>(bound - 1));  // where only the device knows how many there are
  };
  const auto at = [&](const Expr& key) {
    return Capture("ids", DType::i32, 2)(below(leaf::b(), sequences), below(key, keys));
  };
  return (at(key()) == at(own_key())) & (key() <= own_key());
}

// The last keys are a tree: a query sees of them those at some distances, and of the others a window or all.
Expr tree_of_last_keys(AttentionCase&) {
  const Expr in_tree = key() >= leaf::kv_len() - leaf::q_len();
  return where(in_tree, (key() <= own_key()) & ((own_key() - key()) % 3 != 1), own_key() - key() < 200);
}

// Heads of few keys and of many.
Expr window_by_head(AttentionCase&) { return own_key() - key() <= 16 * leaf::h(); }

}  // namespace

const std::vector<NamedMod>& key_mask_mods() {
  static const std::vector<NamedMod> mods = {
      {"last_window", [](AttentionCase&) { return last_window(60); }},
      {"last_window_and_first", [](AttentionCase&) { return last_window(140) | (key() < 4); }},
      {"last_window_by_param", last_window_by_param},
      {"last_chunk", [](AttentionCase&) { return floor_div(own_key(), 96) == floor_div(key(), 96); }},
      {"first_and_last", [](AttentionCase&) { return (key() < 20) | (key() + 20 >= leaf::kv_len()); }},
      {"middle_keys", [](AttentionCase&) { return abs(key() - 300) <= 130; }},
      {"first_keys", [](AttentionCase&) { return max(key(), 3) < 40; }},
      {"document_from", document_from},
      {"documents_by_id", documents_by_id},
      {"tree_of_last_keys", tree_of_last_keys},
      {"window_by_head", window_by_head},
  };
  return mods;
}

}  // namespace heddle::test
