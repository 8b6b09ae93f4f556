#include "reliability/calls.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend/jit/builder.h"
#include "base/dlpack_abi.h"
#include "base/hash.h"
#include "reliability/c_calls.h"
#include "reliability/drawn_arguments.h"
#include "tune/tuning_record.h"

namespace heddle::test {
namespace {

using Random = std::mt19937_64;

std::uint64_t hash_of(const std::string& text) { return base::hash_bytes(text.data(), text.size()); }
std::uint64_t hash_of(const Tensor& tensor) { return base::hash_view(tensor); }

template <class... Results>
std::uint64_t hash_of_all(const Results&... results) {
  std::uint64_t hash = 0;
  ((hash = base::hash_combine(hash, hash_of(results))), ...);
  return hash;
}

std::shared_ptr<const DrawnAttention> drawn_attention(Random& random, const CallSettings& settings) {
  return std::make_shared<const DrawnAttention>(random, settings);
}

Call draw_texts(Random& random, const CallSettings&) {
  const auto number = std::to_string(drawn(random, 1, 1000));
  return [number] {
    Symbols symbols;
    symbols.captures["slopes"] = {DType::f32, 1};
    symbols.params["cap"] = ExprType::f32;
    const Expr mod =
        parse("where(q_idx % " + number + " == 0, tanh(score / cap) * cap, score + slopes[h] * 2.0)", symbols);
    try {
      parse("score + nothing_of_this_name");
    } catch (const Error& error) {
      if (error.code() == ErrorCode::out_of_memory) throw;
    }
    return hash_of(print(mod));
  };
}

Call draw_plan(Random& random, const CallSettings& settings) {
  return [call = drawn_attention(random, settings)] {
    const AttentionPlan plan(call->tensors(), call->options);
    plan.run(call->tensors());
    return call->results();
  };
}

Call draw_one_call(Random& random, const CallSettings& settings) {
  return [call = drawn_attention(random, settings)] {
    attention_into(call->tensors(), call->options);
    return call->results();
  };
}

/// Two problems in turns: each takes the other's place where the plan cache keeps one.
Call draw_plans_in_turns(Random& random, const CallSettings& settings) {
  return [calls = std::pair(drawn_attention(random, settings), drawn_attention(random, settings))] {
    const auto& [one, other] = calls;
    attention_into(one->tensors(), one->options);
    attention_into(other->tensors(), other->options);
    attention_into(one->tensors(), one->options);
    return base::hash_combine(one->results(), other->results());
  };
}

Call draw_backward(Random& random, const CallSettings& settings) {
  return [call = drawn_attention(random, settings)] {
    attention_into(call->tensors(), call->options);
    const BackwardResult gradients = attention_backward(
        {.q = call->q, .k = call->k, .v = call->v, .o = call->o, .lse = call->lse, .d_o = call->q}, call->options);
    return hash_of_all(gradients.dq, gradients.dk, gradients.dv);
  };
}

Call draw_explain(Random& random, const CallSettings& settings) {
  return [call = drawn_attention(random, settings)] {
    const AttentionPlan plan(call->tensors(), call->options);
    return hash_of_all(plan.explain(), plan.explain_json());
  };
}

Call draw_explain_on(Random& random, const CallSettings& settings) {
  constexpr std::array kGpus = {"h100", "a100", "rtx3090"};
  return [call = drawn_attention(random, settings), gpu = kGpus[random() % kGpus.size()]] {
    try {
      return hash_of(explain_on(gpu, call->tensors(), call->options).json);
    } catch (const Error& error) {  // the GPU takes no f64
      if (error.code() != ErrorCode::unsupported) throw;
      return hash_of(std::string(error.what()));
    }
  };
}

Call draw_check(Random& random, const CallSettings& settings) {
  return [call = drawn_attention(random, settings)] {
    attention_into(call->tensors(), call->options);
    const CheckReport report = check_attention(call->q, call->k, call->v, call->options, call->o, call->lse.view());
    if (!report.passed) throw Error(ErrorCode::internal, report.text());
    return hash_of(report.text());
  };
}

Call draw_block_mask(Random& random, const CallSettings& settings) {
  const std::int64_t q_len = drawn(random, 1, 200), kv_len = drawn(random, 1, 200), window = drawn(random, 1, 90);
  return [=, threads = settings.threads] {
    const MaskShape shape = MaskShape::uniform(2, 1, q_len, kv_len);
    Bindings bindings;
    bindings.params["window"] = static_cast<std::int32_t>(window);
    const Expr mask = parse("abs(q_idx - kv_idx) < window", Symbols(bindings));
    BlockMask made = BlockMask::build(mask, shape, {16, 32}, bindings, threads);
    const BlockMask listed = BlockMask::from_lists(made.to_lists(), shape, {16, 32}, mask);
    bindings.params["window"] = static_cast<std::int32_t>(window + 5);
    made.update(bindings, threads);
    return hash_of_all(made.text(), listed.text(1), made.transposed().text(), made.svg());
  };
}

Call draw_partition(Random& random, const CallSettings& settings) {
  const std::int64_t rows = drawn(random, 30, 300);
  return [=, threads = settings.threads] {
    const BlockMask mask =
        BlockMask::build(mods::causal(), MaskShape::uniform(1, 1, rows, rows), {16, 16}, {}, threads);
    const WeightedMask weighted{&mask, 1};
    const MadePartition made = make_partition({&weighted, 1}, 3);
    return hash_of_all(made.text(), ExchangePlan::build(made.queries, made.keys, mask).text());
  };
}

Call draw_append(Random& random, const CallSettings&) {
  struct Rows {
    Tensor k, v, k_cache, v_cache, lengths;
  };
  const std::int64_t heads = drawn(random, 1, 3), rows = drawn(random, 1, 9), dim = drawn(random, 1, 40);
  const auto rows_of = [&](std::int64_t count) { return drawn_reals(random, DType::f32, {2, heads, count, dim}); };
  auto all = std::make_shared<Rows>(Rows{rows_of(rows), rows_of(rows), rows_of(30), rows_of(30), integers({0, 20})});
  return [all] {
    append_kv({.k = all->k, .k_cache = all->k_cache, .v = all->v, .v_cache = all->v_cache.view()},
              {.kv_lengths = all->lengths});
    return hash_of_all(all->k_cache, all->v_cache);
  };
}

Call draw_merge(Random& random, const CallSettings&) {
  struct Parts {
    std::vector<Tensor> o, lse;
  };
  const Dims shape = {1, drawn(random, 1, 3), drawn(random, 1, 20), drawn(random, 1, 40)};
  auto parts = std::make_shared<Parts>();
  for (int i = 0; i < 3; ++i) {
    parts->o.push_back(drawn_reals(random, DType::f32, shape));
    parts->lse.push_back(drawn_reals(random, DType::f32, {shape[0], shape[1], shape[2]}));
  }
  return [parts, o = Tensor::empty(DType::f32, shape)] {
    merge_states(std::vector<ConstTensorView>(parts->o.begin(), parts->o.end()),
                 std::vector<ConstTensorView>(parts->lse.begin(), parts->lse.end()), o);
    return hash_of(o);
  };
}

Call draw_paged(Random& random, const CallSettings& settings) {
  struct Paged {
    Tensor q, k, v, o, table, lengths;
  };
  const std::int64_t dim = drawn(random, 1, 5) * 8, page = drawn(random, 1, 20);
  const auto reals = [&](const Dims& shape) { return drawn_reals(random, DType::f32, shape); };
  auto all = std::make_shared<Paged>(Paged{reals({2, 2, 1, dim}), reals({6, 1, page, dim}), reals({6, 1, page, dim}),
                                           Tensor::empty(DType::f32, {2, 2, 1, dim}), Tensor::empty(DType::i32, {2, 3}),
                                           integers({static_cast<std::int32_t>(drawn(random, 0, 3 * page)), 1})});
  for (int i = 0; i < 6; ++i) static_cast<std::int32_t*>(all->table.data())[i] = 5 - i;
  return [all, threads = settings.threads] {
    AttentionOptions options;
    options.page_table = all->table;
    options.kv_lengths = all->lengths;
    options.threads = threads;
    attention_into(all->q, all->k, all->v, all->o, {}, options);
    const Prefixes prefixes = find_prefixes(all->table, all->lengths, all->k.shape()[2]);
    return base::hash_combine(hash_of(all->o), prefixes.group.size());
  };
}

Call draw_update(Random& random, const CallSettings& settings) {
  auto call = std::make_shared<DrawnAttention>(random, settings);
  Bindings bindings;
  bindings.params["window"] = std::int32_t{7};
  call->options.mask_mod = parse("q_idx - kv_idx < window", Symbols(bindings));
  call->options.bindings.params.insert(*bindings.params.begin());
  call->options.bindings.captures.erase("documents");
  return [call, bindings] {
    AttentionPlan plan(call->tensors(), call->options);
    Bindings changed = bindings;
    changed.params["window"] = std::int32_t{3};
    plan.update(changed);
    plan.run(call->tensors());
    return call->results();
  };
}

Call draw_files(Random& random, const CallSettings& settings) {
  auto tensor =
      std::make_shared<const Tensor>(drawn_reals(random, DType::f32, {drawn(random, 0, 9), drawn(random, 1, 99)}));
  return [tensor, folder = settings.folder] {
    save_npy(folder / "t.npy", *tensor);
    save_safetensors(folder / "t.safetensors", {{{"t", *tensor}, {"u", *tensor}}, {{"key", "value"}}});
    const TensorFile file = load_safetensors(folder / "t.safetensors");
    return hash_of_all(load_npy(folder / "t.npy"), file.tensors.at("t"), file.tensors.at("u"), file.metadata.at("key"));
  };
}

Call draw_dlpack(Random& random, const CallSettings&) {
  return [tensor = drawn_reals(random, DType::f32, {drawn(random, 1, 9), 3})] {
    DLManagedTensorVersioned* const handed = tensor.to_dlpack_versioned();
    struct Giver {  // of what is not taken
      DLManagedTensorVersioned* mine;
      ~Giver() {
        if (mine != nullptr) mine->deleter(mine);
      }
    } giver{handed};
    const Tensor taken = Tensor::from_dlpack(handed);
    giver.mine = nullptr;
    return hash_of(taken);
  };
}

Call draw_tuning_records(Random& random, const CallSettings&) {
  const std::string name = "class " + std::to_string(drawn(random, 0, 9));
  return [name] {
    std::string trouble;
    tune::store(name, {.times = {{"one", 1e-3}, {"other", 2e-3}}, .planned = "other"}, trouble);
    const auto record = tune::load(name, trouble);
    if (!record && trouble.empty()) throw Error(ErrorCode::internal, "a record that is gone, and nothing says why");
    return trouble.empty() ? hash_of(record->planned) : 0;
  };
}

/// Takes the text as machine code, and rejects the kernel of "slow".
class Copyist : public jit::Compiler {
 public:
  const char* name() const override { return "copyist"; }
  std::string version() const override { return "1"; }
  std::string path() const override { return ""; }
  std::string identity() const override { return "copyist, the first of them"; }
  std::vector<std::string> options_of(const jit::Source&) const override { return {}; }
  jit::Compilation compile(const jit::Source& source, bool) const override {
    jit::Compilation made;
    made.code.assign(source.text.begin(), source.text.end());
    return made;
  }
  jit::Record judge(const jit::Source& source, const jit::Compilation& compilation) const override {
    jit::Record record;
    record.code.bytes = compilation.code;
    if (source.text == "slow") record.verdict = "it is slow, and a sentence says at some length why it is";
    return record;
  }
  jit::DumpSuffixes dump_suffixes() const override { return {".in", ".mid", ".out", ".dis"}; }
  void disassemble(const std::filesystem::path&, const std::filesystem::path&) const override {}
};

Call draw_kernels(Random& random, const CallSettings&) {
  static const Copyist copyist;
  static jit::Builder builder(copyist);
  const std::string name = "kernel " + std::to_string(drawn(random, 0, 9));
  return [name] {
    builder.forget();
    const auto build = [&](const std::string& text) {
      return builder.build({.name = name, .text = text, .architecture = "none"});
    };
    const auto made = build("the text of " + name), again = build("the text of " + name);
    try {
      build("slow");
    } catch (const jit::Rejected&) {
      builder.cache_notes();
      return base::hash_bytes(made->bytes.data(), made->bytes.size(), again->bytes.size());
    }
    throw Error(ErrorCode::internal, "a kernel that is to be rejected was taken");
  };
}

Call draw_events(Random& random, const CallSettings& settings) {
  return [call = drawn_attention(random, settings)] {
    static std::atomic<int> heard{0};  // of all threads: one that still calls may reach the listener of another
    struct Listening {
      Listening() {
        set_event_listener([](const std::string&) { ++heard; });
      }
      ~Listening() { set_event_listener({}); }
    } listening;
    const AttentionPlan plan(call->tensors(), call->options);
    return std::uint64_t{1};
  };
}

/// Arguments of which one is wrong.
Call draw_refusal(Random& random, const CallSettings& settings) {
  return [call = drawn_attention(random, settings), which = drawn(random, 0, 4)] {
    AttentionTensors tensors = call->tensors();
    AttentionOptions options = call->options;
    if (which == 0) tensors.k.shape[3] += 1;
    if (which == 1) options.mask_mod = parse("x[q_idx + 1000]", Symbols(Bindings{{{"x", call->lengths}}, {}})) > 0;
    if (which == 2) options.threads = -1;
    if (which == 3) tensors.o.dtype = DType::i32;
    if (which == 4) options.sinks = tensors.q;
    try {
      attention_into(tensors, options);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::out_of_memory) throw;
      return hash_of(std::string(error.what()));
    }
    throw Error(ErrorCode::internal, "wrong arguments were taken: " + std::to_string(which));
  };
}

Call draw_devices(Random&, const CallSettings&) {
  return [] { return hash_of(devices().front().kind); };
}

constexpr CallKind kKinds[] = {
    {"texts", draw_texts},
    {"plan", draw_plan},
    {"one call", draw_one_call},
    {"plans in turns", draw_plans_in_turns},
    {"backward", draw_backward},
    {"explain", draw_explain},
    {"explain_on", draw_explain_on},
    {"check", draw_check},
    {"block mask", draw_block_mask},
    {"partition", draw_partition},
    {"append_kv", draw_append},
    {"merge_states", draw_merge},
    {"paged", draw_paged},
    {"update", draw_update},
    {"files", draw_files},
    {"DLPack", draw_dlpack},
    {"tuning records", draw_tuning_records},
    {"kernels", draw_kernels},
    {"events", draw_events},
    {"refusals", draw_refusal},
    {"devices", draw_devices},
    {"C: plan", draw_c_plan},
    {"C: explain", draw_c_explain},
    {"C: one call", draw_c_one_call},
    {"C: block mask", draw_c_block_mask},
    {"C: texts", draw_c_texts},
};

}  // namespace

std::span<const CallKind> call_kinds() { return kKinds; }

Call drawn_call(std::string_view kind, std::uint64_t seed, const CallSettings& settings) {
  Random random(seed);
  const auto* const found = std::ranges::find(kKinds, kind, &CallKind::name);
  if (found == std::end(kKinds)) throw std::invalid_argument("no calls are called " + std::string(kind));
  return found->draw(random, settings);
}

}  // namespace heddle::test
