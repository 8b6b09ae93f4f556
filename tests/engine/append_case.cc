#include "engine/append_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "base/element.h"
#include "unit_roundoff.h"

namespace heddle::test {
namespace {

using Rng = std::mt19937;

std::int64_t draw(Rng& rng, std::int64_t least, std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(least, most)(rng);
}
DType draw_of(Rng& rng, const std::vector<DType>& types) {
  return types[static_cast<std::size_t>(draw(rng, 0, std::ssize(types) - 1))];
}

Tensor random_buffer(Rng& rng, DType dtype, std::int64_t count, double size = 3) {
  std::normal_distribution<double> normal;
  const Tensor x = Tensor::empty(DType::f64, {count});
  for (std::int64_t i = 0; i < count; ++i) static_cast<double*>(x.data())[i] = size * normal(rng);
  return x.to(dtype);
}

Tensor integers(DType dtype, const std::vector<std::int64_t>& values) {
  const Tensor x = Tensor::empty(DType::i64, {std::ssize(values)});
  std::ranges::copy(values, static_cast<std::int64_t*>(x.data()));
  return x.to(dtype);
}

/// Rows after heads or before them, in either direction, at an odd place of a larger buffer.
StridedTensor drawn_tensor(Rng& rng, DType dtype, const Dims& shape, bool heads_last) {
  StridedTensor x;
  x.shape = shape;
  x.offset = draw(rng, 0, 1) * 8;
  x.strides =
      heads_last ? Dims{shape[2] * shape[1] * shape[3], shape[3], shape[1] * shape[3], 1} : contiguous_strides(shape);
  x.buffer = random_buffer(rng, dtype, x.offset + element_count(shape) + 8);
  if (shape[2] > 0 && draw(rng, 0, 2) == 0) {
    x.offset += (shape[2] - 1) * x.strides[2];
    x.strides[2] *= -1;
  }
  return x;
}

constexpr double kMost[] = {448, 57344};

double limit_of(DType dtype) {
  return dtype == DType::e4m3 ? kMost[0] : dtype == DType::e5m2 ? kMost[1] : std::numeric_limits<double>::infinity();
}
double smallest_normal(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::e5m2:
      return 0x1p-14;
    case DType::e4m3:
      return 0x1p-6;
    default:
      return 0x1p-126;
  }
}

double element(const Tensor& x, std::int64_t i) { return base::load_element(x.data(), x.dtype(), i); }
double rounded(DType dtype, double x) {
  return base::with_storage_type(dtype,
                                 [&]<class T>(std::type_identity<T>) { return base::decode(base::encode<T>(x)); });
}

/// The right content of an output's buffer: exactly, or within `slack`.
struct Expected {
  std::vector<double> value, slack;
  explicit Expected(const Tensor& buffer) : slack(static_cast<std::size_t>(buffer.count())) {
    for (std::int64_t i = 0; i < buffer.count(); ++i) value.push_back(element(buffer, i));
  }
};

class Oracle {
 public:
  explicit Oracle(const AppendCase& before) : case_(before), spec_(before.spec) {
    for (const StridedTensor* out : {&before.k_cache, &before.v_cache, &before.q_out}) {
      if (out->shape.size() > 0) expected_.try_emplace(out->buffer.data(), out->buffer);
    }
    const std::int64_t rows = before.k.shape[2];
    for (std::int64_t b = 0; b < spec_.batch; ++b) {
      const std::int64_t first = spec_.packed ? whole(before.starts, b) : 0,
                         end = spec_.packed ? whole(before.starts, b + 1) : rows;
      for (std::int64_t i = 0; i < end - first; ++i) new_row(b, i, spec_.packed ? 0 : b, first + i);
      const std::int64_t queries = spec_.packed ? end - first : spec_.q_rows;
      for (std::int64_t i = 0; i < queries && spec_.queries; ++i) query(b, i, spec_.packed ? 0 : b, first + i);
    }
  }
  const Expected& of(const StridedTensor& out) const { return expected_.at(out.buffer.data()); }

 private:
  static std::int64_t whole(const Tensor& x, std::int64_t i) { return std::llround(element(x, i)); }

  void new_row(std::int64_t b, std::int64_t i, std::int64_t entry, std::int64_t row) {
    const std::int64_t at = whole(case_.lengths, b) + i;
    if (at < 0) return;
    std::int64_t to = b, inside = at;
    if (spec_.page_rows > 0) {
      std::int64_t first = 0, pages = 0;
      if (spec_.listed) {
        first = whole(case_.page_starts, b);
        pages = whole(case_.page_starts, b + 1) - first;
      } else {
        pages = case_.table.shape()[1];
        first = b * pages;
      }
      if (at >= pages * spec_.page_rows) return;
      to = whole(case_.table, first + at / spec_.page_rows);
      inside = at % spec_.page_rows;
    }
    if (inside >= case_.k_cache.shape[2] || to < 0 || to >= case_.k_cache.shape[0]) return;
    for (std::int64_t head = 0; head < spec_.heads; ++head) {
      for (std::int64_t d = 0; d < spec_.qk_dim; ++d) {
        expect(case_.k_cache, case_.k_cache.offset_of(to, head, inside, d), turned(case_.k, entry, head, row, d, b, i),
               spec_.factors ? element(case_.k_factors, b * spec_.heads + head) : 1);
      }
      for (std::int64_t d = 0; d < spec_.v_dim; ++d) {
        expect(case_.v_cache, case_.v_cache.offset_of(to, head, inside, d), {at_of(case_.v, entry, head, row, d), 0},
               spec_.factors ? element(case_.v_factors, head) : 1);
      }
    }
  }
  void query(std::int64_t b, std::int64_t i, std::int64_t entry, std::int64_t row) {
    for (std::int64_t head = 0; head < spec_.q_heads; ++head) {
      for (std::int64_t d = 0; d < spec_.qk_dim; ++d) {
        expect(case_.q_out, case_.q_out.offset_of(entry, head, row, d),
               turned(case_.q, entry, head, row, d, b, spec_.queries_at_first ? 0 : i), 1);
      }
    }
  }

  /// A number, and the size of the terms whose rounding it may have; 0: it is exact.
  struct Value {
    double x, terms;
  };
  static double at_of(const StridedTensor& from, std::int64_t entry, std::int64_t head, std::int64_t row,
                      std::int64_t d) {
    return element(from.buffer, from.offset_of(entry, head, row, d));
  }
  Value turned(const StridedTensor& from, std::int64_t entry, std::int64_t head, std::int64_t row, std::int64_t d,
               std::int64_t b, std::int64_t i) const {
    const double own = at_of(from, entry, head, row, d);
    if (spec_.pairs == Pairs::none || d >= spec_.turned) return {own, 0};
    const std::int64_t half = spec_.turned / 2;
    const bool halves = spec_.pairs == Pairs::halves, first = halves ? d < half : d % 2 == 0;
    const std::int64_t partner = halves ? (first ? d + half : d - half) : d ^ 1, pair = halves ? d % half : d / 2;
    std::int64_t position = whole(spec_.given_positions ? case_.positions : case_.lengths, b) + i;
    position = std::clamp<std::int64_t>(position, 0, case_.cos.shape()[0] - 1);
    const double other = at_of(from, entry, head, row, partner), c = element(case_.cos, position * half + pair),
                 s = element(case_.sin, position * half + pair);
    return {first ? own * c - other * s : own * c + other * s, std::abs(own * c) + std::abs(other * s)};
  }

  void expect(const StridedTensor& out, std::int64_t offset, const Value& value, double factor) {
    Expected& expected = expected_.at(out.buffer.data());
    const DType dtype = out.buffer.dtype();
    const double most = limit_of(dtype), x = std::clamp(value.x / factor, -most, most);
    const auto i = static_cast<std::size_t>(offset);
    const bool exact = value.terms == 0 && factor == 1;
    expected.value[i] = exact ? rounded(dtype, x) : x;
    const bool f64 = spec_.rows == DType::f64 || spec_.angles == DType::f64;
    expected.slack[i] = exact ? 0
                              : unit_roundoff(dtype) * std::max(std::abs(x), smallest_normal(dtype)) * (1 + 0x1p-10) +
                                    4 * (f64 ? 0x1p-53 : 0x1p-24) * (value.terms / factor + std::abs(x));
  }

  const AppendCase& case_;
  const AppendSpec& spec_;
  std::map<const void*, Expected> expected_;
};

}  // namespace

std::string AppendSpec::text() const {
  return fmt::format(
      "{} to {} and {}, q_out {}, B {}, {} heads on {}, {} new rows, {} queries, D {}/{}, {}pages of {}{}{}{}{}{}{}, "
      "pairs "
      "{}, {} columns turned, angles {}, integers {}",
      name(rows), name(keys), name(values), name(q_out), batch, q_heads, heads, new_rows, queries ? q_rows : 0, qk_dim,
      v_dim, listed ? "listed " : "", page_rows, packed ? ", packed" : "", beside ? ", beside" : "",
      factors ? ", factors" : "", queries_at_first ? ", queries at first" : "", given_positions ? ", positions" : "",
      queries ? ", queries" : "", static_cast<int>(pairs), turned, name(angles), name(integers));
}

AppendSpec drawn_append(unsigned seed) {
  Rng rng(seed);
  const std::vector<DType> all = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2};
  const auto chance = [&](int of) { return draw(rng, 1, of) == 1; };
  AppendSpec spec;
  spec.rows = draw_of(rng, all);
  spec.keys = draw_of(rng, all);
  spec.values = chance(2) ? spec.keys : draw_of(rng, all);
  spec.q_out = draw_of(rng, all);
  spec.batch = draw(rng, 1, 5);
  spec.heads = draw(rng, 1, 3);
  spec.q_heads = spec.heads * draw(rng, 1, 4);
  spec.new_rows = draw(rng, 0, 9);
  spec.qk_dim = chance(2) ? draw(rng, 1, 20) * 8 : draw(rng, 1, 150);
  spec.v_dim = chance(2) ? spec.qk_dim : draw(rng, 1, 150);
  spec.page_rows = chance(3) ? 0 : draw(rng, 1, 20);
  spec.packed = chance(3);
  spec.listed = spec.page_rows > 0 && seed % 2 == 1;
  spec.beside = spec.v_dim == spec.qk_dim && spec.values == spec.keys && chance(2);
  spec.factors = size_of(spec.keys) == 1 && size_of(spec.values) == 1 && chance(2);
  spec.pairs = static_cast<Pairs>(draw(rng, 0, 2));
  if (spec.qk_dim < 2) spec.pairs = Pairs::none;
  if (spec.pairs != Pairs::none) {
    spec.turned = chance(2) ? spec.qk_dim / 2 * 2 : 2 * draw(rng, 1, spec.qk_dim / 2);
    spec.queries = chance(2);
    spec.queries_at_first = chance(3);
    spec.given_positions = chance(2);
    spec.angles = draw_of(rng, {DType::f64, DType::f32, DType::bf16, DType::f16});
  }
  spec.q_rows = chance(2) ? spec.new_rows : draw(rng, 1, 5);
  spec.integers = chance(2) ? DType::i32 : DType::i64;
  return spec;
}

TensorView StridedTensor::view() const {
  auto* data = static_cast<std::byte*>(buffer.data()) + offset * size_of(buffer.dtype());
  return {data, buffer.dtype(), shape, strides, buffer.view().device};
}
std::int64_t StridedTensor::offset_of(std::int64_t entry, std::int64_t head, std::int64_t row,
                                      std::int64_t column) const {
  return offset + entry * strides[0] + head * strides[1] + row * strides[2] + column * strides[3];
}

AppendCase::AppendCase(const AppendSpec& asked, unsigned seed) : spec(asked) {
  Rng rng(seed);
  std::vector<std::int64_t> before, begin = {0};
  for (std::int64_t b = 0; b < spec.batch; ++b) {
    before.push_back(draw(rng, 0, 30));
    begin.push_back(begin.back() + (spec.packed ? draw(rng, 0, 2 * spec.new_rows) : spec.new_rows));
  }
  const std::int64_t all = begin.back() + 3, entries = spec.packed ? 1 : spec.batch,
                     rows = spec.packed ? all : spec.new_rows, room = 30 + (spec.packed ? all : spec.new_rows);
  lengths = integers(spec.integers, before);
  if (spec.packed) starts = integers(spec.integers, begin);
  const bool heads_last = draw(rng, 0, 1) == 1;
  k = drawn_tensor(rng, spec.rows, {entries, spec.heads, rows, spec.qk_dim}, heads_last);
  v = drawn_tensor(rng, spec.rows, {entries, spec.heads, rows, spec.v_dim}, heads_last);
  if (spec.queries) {
    const Dims shape = {entries, spec.q_heads, spec.packed ? rows : spec.q_rows, spec.qk_dim};
    q = drawn_tensor(rng, spec.rows, shape, heads_last);
    q_out = drawn_tensor(rng, spec.q_out, shape, !heads_last);
  }
  std::int64_t cached = spec.batch, cached_rows = room;
  if (spec.page_rows > 0) {
    const std::int64_t pages = (room + spec.page_rows - 1) / spec.page_rows;
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(pages * spec.batch + 2));
    std::iota(numbers.begin(), numbers.end(), 0);
    std::ranges::shuffle(numbers, rng);
    cached = std::ssize(numbers);
    cached_rows = spec.page_rows;
    numbers.resize(static_cast<std::size_t>(pages * spec.batch));
    const Tensor flat = integers(DType::i32, numbers);
    table = Tensor::empty(DType::i32, {spec.batch, pages});
    std::copy_n(static_cast<std::int32_t*>(flat.data()), flat.count(), static_cast<std::int32_t*>(table.data()));
    if (spec.listed) make_list(before, begin, numbers);
  }
  k_cache = drawn_tensor(rng, spec.keys, {cached, spec.heads, cached_rows, spec.qk_dim}, heads_last);
  v_cache = drawn_tensor(rng, spec.values, {cached, spec.heads, cached_rows, spec.v_dim}, heads_last);
  if (spec.beside) {
    const std::int64_t row = 2 * spec.heads * spec.qk_dim;
    k_cache.buffer = v_cache.buffer = random_buffer(rng, spec.keys, cached * cached_rows * row);
    k_cache.offset = 0;
    v_cache.offset = row / 2;
    k_cache.strides = v_cache.strides = {cached_rows * row, spec.qk_dim, row, 1};
  }
  if (spec.factors) {
    k_factors = Tensor::empty(DType::f32, {spec.batch, spec.heads});
    v_factors = Tensor::empty(DType::f32, {1, spec.heads});
    for (const Tensor* factors : {&k_factors, &v_factors}) {
      for (std::int64_t i = 0; i < factors->count(); ++i) {
        static_cast<float*>(factors->data())[i] = 0.001F * static_cast<float>(draw(rng, 1, 2000));
      }
    }
  }
  if (spec.pairs == Pairs::none) return;
  const std::int64_t most = 80 + all + spec.q_rows;  // positions
  std::vector<std::int64_t> first;
  for (std::int64_t b = 0; b < spec.batch; ++b) first.push_back(draw(rng, 0, most - all - spec.q_rows));
  if (spec.given_positions) positions = integers(spec.integers, first);
  for (Tensor* angles : {&cos, &sin}) {
    const Tensor flat = random_buffer(rng, spec.angles, most * (spec.turned / 2), 0.7);
    *angles = Tensor::empty(spec.angles, {most, spec.turned / 2});
    std::copy_n(static_cast<const std::byte*>(flat.data()), flat.count() * size_of(spec.angles),
                static_cast<std::byte*>(angles->data()));
  }
}

// Each sequence has the pages that it needs, and some have one more. Before the first ones and behind the last ones
// stands an entry that is no page.
void AppendCase::make_list(const std::vector<std::int64_t>& before, const std::vector<std::int64_t>& begin,
                           const std::vector<std::int64_t>& numbers) {
  std::vector<std::int64_t> list = {-1}, of_sequences = {1};
  std::size_t taken = 0;
  for (std::size_t b = 0; b < before.size(); ++b) {
    const std::int64_t rows = before[b] + begin[b + 1] - begin[b];
    const std::int64_t pages = (rows + spec.page_rows - 1) / spec.page_rows + static_cast<std::int64_t>(b % 2);
    for (std::int64_t n = 0; n < pages && taken < numbers.size(); ++n) list.push_back(numbers[taken++]);
    of_sequences.push_back(std::ssize(list));
  }
  list.push_back(-1);
  table = integers(DType::i32, list);
  page_starts = integers(DType::i32, of_sequences);
}

AppendCase AppendCase::on(const Device& device) const {
  AppendCase there = *this;
  std::map<const void*, Tensor> moved;
  for (StridedTensor* x : {&there.k, &there.v, &there.q, &there.k_cache, &there.v_cache, &there.q_out}) {
    if (x->shape.size() == 0) continue;
    const auto [found, is_new] = moved.try_emplace(x->buffer.data());
    if (is_new) found->second = x->buffer.to(device);
    x->buffer = found->second;
  }
  for (Tensor* x : {&there.lengths, &there.starts, &there.table, &there.page_starts, &there.k_factors, &there.v_factors,
                    &there.cos, &there.sin, &there.positions}) {
    if (x->count() > 0) *x = x->to(device);
  }
  return there;
}

AppendTensors AppendCase::tensors() const {
  AppendTensors tensors{.k = k.view(), .k_cache = k_cache.view(), .v = v.view(), .v_cache = v_cache.view()};
  if (spec.queries) {
    tensors.q = q.view();
    tensors.q_out = q_out.view();
  }
  return tensors;
}

AppendOptions AppendCase::options() const {
  AppendOptions options{.kv_lengths = lengths};
  if (spec.packed) options.cu_seqlens = starts;
  if (spec.page_rows > 0) options.page_table = table;
  if (spec.listed) options.page_starts = page_starts;
  if (spec.factors) {
    options.k_descale = k_factors;
    options.v_descale = v_factors;
  }
  if (spec.pairs == Pairs::none) return options;
  options.rotary = Rotary{.cos = cos,
                          .sin = sin,
                          .interleaved = spec.pairs == Pairs::interleaved,
                          .queries_at_first = spec.queries_at_first};
  if (spec.given_positions) options.rotary->positions = positions;
  return options;
}

std::string AppendCase::wrong(const AppendCase& before, const AppendCase& ran) {
  const Oracle oracle(before);
  const std::pair<const StridedTensor*, const StridedTensor*> outputs[] = {
      {&before.k_cache, &ran.k_cache}, {&before.v_cache, &ran.v_cache}, {&before.q_out, &ran.q_out}};
  for (const auto& [own, out] : outputs) {
    if (own->shape.size() == 0) continue;
    const Expected& expected = oracle.of(*own);
    const Tensor found = out->buffer.to(Device{});
    for (std::int64_t i = 0; i < found.count(); ++i) {
      const double x = element(found, i), y = expected.value[static_cast<std::size_t>(i)];
      if (x == y || std::abs(x - y) <= expected.slack[static_cast<std::size_t>(i)]) continue;
      return fmt::format("{}: element {} of {}'s buffer is {}, expected {} within {}", before.spec.text(), i,
                         own == &before.k_cache   ? "k_cache"
                         : own == &before.v_cache ? "v_cache"
                                                  : "q_out",
                         x, y, expected.slack[static_cast<std::size_t>(i)]);
    }
  }
  return {};
}

}  // namespace heddle::test
