#include "engine/backward_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string_view>

#include "heddle/check.h"

namespace heddle::test {
namespace {

// A gradient of a capture is as large as the capture, which may be much larger than the scores. Larger ones are not
// asked for.
constexpr std::int64_t kLargestCapture = 400'000;

// The rounding error of lse in the smallest rows that the criterion looks at more closely (check.h: e is above 2^-10).
// In other rows it allows lse any rounding error.
constexpr double kLargestLseRest = 0x1p-13;

constexpr const char* kLayoutNames[] = {"bhsd", "bshd", "gaps", "sliced", "padded", "reversed", "expanded", "one_row"};

bool is_fp8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

Layout without_overlap(Layout layout) {
  return layout == Layout::expanded || layout == Layout::one_row ? Layout::bhsd : layout;
}

TensorView rows_view(const GuardedTensor& rows) {
  const TensorView& view = rows.view();
  return {view.data,
          view.dtype,
          {view.shape[0], view.shape[1], view.shape[3]},
          {view.strides[0], view.strides[1], view.strides[3]}};
}

// A shape among four axes, the other extents 1. It takes the last axes, or with `apart` those before the last, so that
// no stride need be 1.
struct InFour {
  Dims shape = {1, 1, 1, 1};
  int first = 0;
};
InFour in_four(const Dims& shape, bool apart) {
  if (shape.size() > 4) throw std::logic_error("a capture of more than 4 axes");
  InFour four;
  four.first = std::max(0, 4 - shape.size() - (apart ? 1 : 0));
  for (int axis = 0; axis < shape.size(); ++axis) four.shape[four.first + axis] = shape[axis];
  return four;
}

// The captures and params that score_mod and weight_mod read and that have a gradient.
struct Reads {
  std::set<std::string> captures, params;
};
Reads differentiable_reads(const AttentionOptions& options) {
  Reads reads;
  for (const Expr& mod : {options.score_mod, options.weight_mod}) {
    if (mod.empty()) continue;
    const Symbols symbols = symbols_of(mod);
    for (const auto& [name, capture] : symbols.captures) {
      if (is_floating(capture.dtype)) reads.captures.insert(name);
    }
    for (const auto& [name, type] : symbols.params) {
      if (type == ExprType::f32) reads.params.insert(name);
    }
  }
  // The reference computes those of all captures, if of any.
  const auto is_large = [&](const std::string& name) {
    return options.bindings.captures.at(name).count() > kLargestCapture;
  };
  if (std::ranges::any_of(reads.captures, is_large)) reads.captures.clear();
  return reads;
}

void run_cpu_forward(const AttentionCase& attention_case) {
  AttentionTensors tensors = attention_case.tensors();
  tensors.max_scores.reset();
  AttentionOptions options = attention_case.options();
  options.backend = BackendChoice::cpu;
  attention_into(tensors, options);
}

}  // namespace

const std::vector<BackendChoice>& backward_backends() {
  static const std::vector<BackendChoice> all = {BackendChoice::cpu}, given = {backend_under_test()};
  return std::getenv("HEDDLE_TEST_BACKEND") != nullptr ? given : all;
}

const std::vector<BackendChoice>& bitwise_backward_backends() {
  static const std::vector<BackendChoice> backends = [] {
    std::vector<BackendChoice> bitwise = backward_backends();
    std::erase(bitwise, BackendChoice::reference);
    return bitwise;
  }();
  return backends;
}

bool needs_lse_rest(CaseSpec spec) {
  if (spec.normalizer != Normalizer::softmax) return false;
  spec.with_lse_rest = true;
  AttentionCase attention_case(spec);
  run_cpu_forward(attention_case);
  const TensorView& rest = attention_case.lse_rest_rows.view();
  bool is_large = false;
  attention_case.lse_rest_rows.for_each_element(
      [&](const Dims& at, std::int64_t) { is_large = is_large || std::abs(get_element(rest, at)) > kLargestLseRest; });
  return is_large;
}

std::string BackwardSpec::text() const {
  return fmt::format("backward layout {} dO as {} gradients {} {} wanted {}{}", kLayoutNames[static_cast<int>(layout)],
                     d_o_as_q ? "q" : "o", gradient_dtype ? name(*gradient_dtype) : "default",
                     with_d_lse ? "d_lse" : "no d_lse", wanted, deterministic ? " deterministic" : "");
}

BackwardCase::BackwardCase(AttentionCase& attention_case, const BackwardSpec& spec)
    : forward_(attention_case), spec_(spec) {
  forward_.options().deterministic = spec.deterministic;
  const TensorView& o = forward_.o.view();
  d_o = GuardedTensor(spec.d_o_as_q ? forward_.spec().q_dtype : o.dtype, o.shape, spec.layout);
  d_lse_rows = GuardedTensor(forward_.lse_rows.view().dtype, forward_.lse_rows.view().shape,
                             without_overlap(spec.layout), GuardedMemory::Side::start);
  forward_.draw_beside_queries(d_o, 2);
  forward_.draw_beside_queries(d_lse_rows, 3);
  make_row_gradients();
  make_gradients_of_reads();
  if (gradients_.empty()) make_gradient("dq", dtype_of(forward_.spec().q_dtype), forward_.q.view().shape);
}

DType BackwardCase::dtype_of(DType own) const {
  if (spec_.gradient_dtype) return *spec_.gradient_dtype;
  return is_fp8(own) ? DType::bf16 : own;
}

void BackwardCase::make_row_gradients() {
  const auto wants = [&](std::string_view letter) {
    return spec_.wanted == "all" || (spec_.wanted != "reads" && spec_.wanted.find(letter) != std::string::npos);
  };
  const auto make = [&](const char* name, const GuardedTensor& of) {
    const Layout layout = without_overlap(spec_.layout);
    const DType dtype = dtype_of(of.view().dtype);
    Gradient gradient = {name, GuardedTensor(dtype, of.view().shape, layout, GuardedMemory::Side::end), {}};
    gradient.view = gradient.memory.view();
    gradients_.push_back(std::move(gradient));
  };
  if (wants("q")) make("dq", forward_.q);
  if (wants("k")) make("dk", forward_.k);
  if (wants("v")) make("dv", forward_.v);
}

void BackwardCase::make_gradients_of_reads() {
  if (spec_.wanted != "all" && spec_.wanted.find("reads") == std::string::npos) return;
  const AttentionOptions& options = forward_.options();
  const DType real = forward_.spec().q_dtype == DType::f64 ? DType::f64 : DType::f32;
  if (options.sinks) make_gradient("d_sinks", dtype_of(real), options.sinks->shape);
  const Reads reads = differentiable_reads(options);
  for (const std::string& name : reads.captures) {
    const ConstTensorView& capture = options.bindings.captures.at(name);
    make_gradient(fmt::format("d_captures['{}']", name), dtype_of(capture.dtype), capture.shape);
  }
  for (const std::string& name : reads.params) make_gradient(fmt::format("d_params['{}']", name), dtype_of(real), {});
}

// Makes a gradient; half of them have a last stride that is not 1, where the axes allow it.
void BackwardCase::make_gradient(const std::string& name, DType dtype, const Dims& shape) {
  constexpr Layout kLayouts[] = {Layout::bhsd, Layout::gaps, Layout::reversed, Layout::sliced};
  const InFour four = in_four(shape, forward_.below(2) == 0);
  Gradient gradient = {name, GuardedTensor(dtype, four.shape, kLayouts[forward_.below(4)]), {}};
  const TensorView& all = gradient.memory.view();
  const auto from = [&](const Dims& dims) {
    std::vector<std::int64_t> own;
    for (int axis = 0; axis < shape.size(); ++axis) own.push_back(dims[four.first + axis]);
    return Dims(own);
  };
  gradient.view = TensorView(all.data, dtype, from(all.shape), from(all.strides));
  gradients_.push_back(std::move(gradient));
}

const Gradient& BackwardCase::gradient(const std::string& name) const {
  const auto found = std::ranges::find(gradients_, name, &Gradient::name);
  if (found == gradients_.end()) throw std::logic_error("not asked for: " + name);
  return *found;
}

BackwardTensors BackwardCase::tensors() const {
  const AttentionTensors forward = forward_.tensors();
  BackwardTensors tensors{.q = forward.q, .k = forward.k, .v = forward.v, .o = forward.o, .d_o = d_o.view()};
  if (forward.lse) tensors.lse = *forward.lse;
  if (forward.lse_rest) tensors.lse_rest = *forward.lse_rest;
  if (forward.lse && spec_.with_d_lse) tensors.d_lse = rows_view(d_lse_rows);
  for (const Gradient& gradient : gradients_) {
    const std::string& name = gradient.name;
    const auto quoted = [&] { return name.substr(name.find('\'') + 1, name.rfind('\'') - name.find('\'') - 1); };
    if (name == "dq") tensors.dq = gradient.view;
    if (name == "dk") tensors.dk = gradient.view;
    if (name == "dv") tensors.dv = gradient.view;
    if (name == "d_sinks") tensors.d_sinks = gradient.view;
    if (name.starts_with("d_captures")) tensors.d_captures[quoted()] = gradient.view;
    if (name.starts_with("d_params")) tensors.d_params[quoted()] = gradient.view;
  }
  return tensors;
}

void BackwardCase::run_forward() { run_cpu_forward(forward_); }

void BackwardCase::run(BackendChoice backend) {
  forward_.options().backend = backend;
  for (const Gradient& gradient : gradients_) {
    const std::span<std::byte> memory = gradient.memory.memory();
    std::memset(memory.data(), 0xff, memory.size());
  }
  inputs_before_ = input_bits();
  attention_backward_into(tensors(), forward_.options());
}

void BackwardCase::judge() const {
  for (const Gradient& gradient : gradients_) EXPECT_TRUE(gradient.memory.gaps_untouched()) << gradient.name;
  EXPECT_EQ(input_bits(), inputs_before_) << "an input was written";
  const GradientReport report = check_backward(tensors(), forward_.options());
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(report.tensors.size(), gradients_.size());
}

std::vector<std::vector<std::byte>> BackwardCase::bits() const {
  std::vector<std::vector<std::byte>> bits;
  for (const Gradient& gradient : gradients_) bits.push_back(gradient.memory.bytes());
  return bits;
}

std::vector<std::vector<std::byte>> BackwardCase::input_bits() const {
  std::vector<std::vector<std::byte>> bits;
  const GuardedTensor &q = forward_.q, &k = forward_.k, &v = forward_.v, &o = forward_.o, &lse = forward_.lse_rows;
  for (const GuardedTensor* input : {&q, &k, &v, &o, &lse, &d_o, &d_lse_rows}) {
    bits.push_back(input->bytes());
  }
  if (forward_.spec().with_lse_rest) bits.push_back(forward_.lse_rest_rows.bytes());
  return bits;
}

void run_and_judge(BackwardCase& c, BackendChoice backend) {
  SCOPED_TRACE(fmt::format("{} on {}", c.text(), name(backend)));
  c.run_forward();
  c.run(backend);
  c.judge();
}

}  // namespace heddle::test
