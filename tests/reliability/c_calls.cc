#include "reliability/c_calls.h"

#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "base/hash.h"
#include "heddle/c.h"
#include "heddle/error.h"
#include "reliability/drawn_arguments.h"

namespace heddle::test {
namespace {

heddle_tensor of_c(const Tensor& tensor) {
  heddle_tensor x{};
  x.data = tensor.data();
  x.dtype = static_cast<std::int32_t>(tensor.dtype());
  x.rank = tensor.view().rank();
  for (int i = 0; i < x.rank; ++i) x.shape[i] = tensor.shape()[i], x.strides[i] = tensor.view().strides[i];
  return x;
}

/// An attention as structs of C, over the memory of a drawn one.
struct CAttention {
  DrawnAttention drawn;
  heddle_tensor q, k, v, o, lse, sinks, lengths, slopes, documents;
  std::array<heddle_capture, 2> captures{};
  std::array<heddle_param, 2> params{};
  heddle_bindings bindings{};
  heddle_attention_options options{};
  heddle_attention_tensors tensors{};

  CAttention(std::mt19937_64& random, const CallSettings& settings)
      : drawn(random, settings),
        q(of_c(drawn.q)),
        k(of_c(drawn.k)),
        v(of_c(drawn.v)),
        o(of_c(drawn.o)),
        lse(of_c(drawn.lse)),
        sinks(of_c(drawn.sinks)),
        lengths(of_c(drawn.lengths)),
        slopes(of_c(drawn.slopes)),
        documents(of_c(drawn.documents)) {
    captures = {{{"slopes", &slopes}, {"documents", &documents}}};
    params = {{{"cap", HEDDLE_PARAM_F32, 0, 20}, {"window", HEDDLE_PARAM_I32, 30, 0}}};
    // Bound are only the names that a mod reads.
    const auto reads = [&](const char* name) {
      return (drawn.score_mod + drawn.mask_mod).find(name) != std::string::npos;
    };
    bindings.struct_size = sizeof bindings;
    bindings.captures = captures.data() + (reads("slopes") ? 0 : 1);
    bindings.capture_count = (reads("slopes") ? 1 : 0) + (reads("documents") ? 1 : 0);
    bindings.params = params.data() + (reads("cap") ? 0 : 1);
    bindings.param_count = (reads("cap") ? 1 : 0) + (reads("window") ? 1 : 0);
    options.struct_size = sizeof options;
    options.score_mod = drawn.score_mod.empty() ? nullptr : drawn.score_mod.c_str();
    options.mask_mod = drawn.mask_mod.empty() ? nullptr : drawn.mask_mod.c_str();
    options.bindings = &bindings;
    options.sinks = drawn.options.sinks ? &sinks : nullptr;
    options.kv_lengths = drawn.options.kv_lengths ? &lengths : nullptr;
    options.threads = settings.threads;
    tensors = {sizeof tensors, &q, &k, &v, &o, &lse, nullptr, nullptr};
  }
  CAttention(const CAttention&) = delete;
  CAttention& operator=(const CAttention&) = delete;
};

std::uint64_t hash_of(const char* text) { return base::hash_bytes(text, std::strlen(text)); }

}  // namespace

void throw_status(std::int32_t status) {
  switch (status) {
    case HEDDLE_OK:
      return;
    case HEDDLE_ERROR_OUT_OF_MEMORY:
      throw std::bad_alloc();
    case HEDDLE_ERROR_INVALID_ARGUMENT:
      throw Error(ErrorCode::invalid_argument, heddle_last_error());
    case HEDDLE_ERROR_UNSUPPORTED:
      throw Error(ErrorCode::unsupported, heddle_last_error());
    default:
      throw Error(ErrorCode::internal, heddle_last_error());
  }
}

Call draw_c_plan(std::mt19937_64& random, const CallSettings& settings) {
  return [call = std::make_shared<const CAttention>(random, settings)] {
    heddle_plan* made = nullptr;
    const heddle_status status = heddle_plan_create(&call->tensors, &call->options, &made);
    const std::unique_ptr<heddle_plan, void (*)(heddle_plan*)> plan(made, heddle_plan_destroy);
    if ((status == HEDDLE_OK) != (made != nullptr)) throw Error(ErrorCode::internal, "a plan and its status disagree");
    throw_status(status);
    std::int64_t bytes = 0;
    throw_status(heddle_plan_workspace_bytes(made, &bytes));
    throw_status(heddle_plan_update(made, &call->bindings));
    throw_status(heddle_plan_run(made, &call->tensors, nullptr));
    return call->drawn.results();
  };
}

Call draw_c_explain(std::mt19937_64& random, const CallSettings& settings) {
  return [call = std::make_shared<const CAttention>(random, settings)] {
    heddle_plan* made = nullptr;
    throw_status(heddle_plan_create(&call->tensors, &call->options, &made));
    const std::unique_ptr<heddle_plan, void (*)(heddle_plan*)> plan(made, heddle_plan_destroy);
    const char* text = nullptr;
    throw_status(heddle_plan_explain(made, &text));
    return hash_of(text);
  };
}

Call draw_c_one_call(std::mt19937_64& random, const CallSettings& settings) {
  return [call = std::make_shared<const CAttention>(random, settings)] {
    throw_status(heddle_attention_into(&call->tensors, &call->options));
    std::int32_t passed = 0;
    const char* report = nullptr;
    throw_status(heddle_check_attention(&call->tensors, &call->options, &passed, &report));
    if (passed == 0) throw Error(ErrorCode::internal, report);
    return call->drawn.results();
  };
}

Call draw_c_block_mask(std::mt19937_64& random, const CallSettings& settings) {
  const heddle_sequence sequence = {0, drawn(random, 1, 300), 0, drawn(random, 1, 300), 0, 0};
  return [=, threads = settings.threads] {
    heddle_block_mask_options options{};
    options.struct_size = sizeof options;
    options.heads = 2;
    options.sequences = &sequence;
    options.sequence_count = 1;
    options.sequence_size = sizeof sequence;
    options.mask_mod = "q_idx * 3 >= kv_idx or kv_idx % 7 == h";
    options.threads = threads;
    options.q_block = options.kv_block = 32;
    heddle_block_mask* made = nullptr;
    throw_status(heddle_block_mask_create(&options, &made));
    const std::unique_ptr<heddle_block_mask, void (*)(heddle_block_mask*)> mask(made, heddle_block_mask_destroy);
    const char* text = nullptr;
    throw_status(heddle_block_mask_text(made, 0, 1, &text));
    return hash_of(text);
  };
}

Call draw_c_texts(std::mt19937_64&, const CallSettings&) {
  return [] {
    const char* text = nullptr;
    throw_status(heddle_devices_json(&text));
    // The loader's words about a GPU that is missing are fewer where memory was out; not compared.
    const std::uint64_t hash = hash_of(std::string(text).substr(0, 30).c_str());
    throw_status(heddle_counts_json(&text));
    throw_status(heddle_set_event_listener([](const char*, void*) {}, nullptr));
    throw_status(heddle_set_event_listener(nullptr, nullptr));
    throw_status(heddle_clear_plan_cache());
    return hash;
  };
}

}  // namespace heddle::test
