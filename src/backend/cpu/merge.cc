// merge_states: results over disjoint sets of keys become the result over their union.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/element.h"
#include "base/parallel.h"
#include "heddle/attention.h"
#include "problem/overlap.h"
#include "problem/places.h"
#include "problem/refuse.h"

namespace heddle {
namespace {

using problem::refuse;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
/// Rows of one task, and the elements below which one thread does it all.
constexpr std::int64_t kTaskRows = 64;
constexpr std::int64_t kSerialElements = 1 << 16;

struct Part {
  ConstTensorView o, lse;
  std::string o_name, lse_name;
};

void check_o(const std::string& name, const ConstTensorView& o, const Dims& expected) {
  problem::check_view(name, o);
  problem::check_on_cpu(name, o);
  if (o.rank() != 4) refuse("{} has shape {}; 4 axes [B, Hq, Sq, Dv] are accepted", name, to_string(o.shape));
  if (!is_floating(o.dtype)) {
    refuse("{} is {}; f64, f32, f16, bf16, e4m3 and e5m2 are accepted", name, heddle::name(o.dtype));
  }
  if (!(o.shape == expected)) {
    refuse("{} has shape {}; o's {} is accepted", name, to_string(o.shape), to_string(expected));
  }
  if (o.shape[3] > 1 && o.strides[3] != 1) {
    refuse("{} has strides {}; a last stride of 1 is accepted", name, to_string(o.strides));
  }
  problem::check_memory(name, o);
}

void check_lse(const std::string& name, const ConstTensorView& lse, const Dims& o_shape) {
  problem::check_view(name, lse);
  problem::check_on_cpu(name, lse);
  if (lse.dtype != DType::f32 && lse.dtype != DType::f64) {
    refuse("{} is {}; f32 and f64 are accepted", name, heddle::name(lse.dtype));
  }
  const Dims expected = {o_shape[0], o_shape[1], o_shape[2]};
  if (!(lse.shape == expected)) {
    refuse("{} has shape {}; {} is accepted", name, to_string(lse.shape), to_string(expected));
  }
  problem::check_memory(name, lse);
}

// Every element in the same place: row by row, reading all parts before writing is then safe.
bool same_place(const ConstTensorView& x, const ConstTensorView& y) {
  if (x.data != y.data || x.dtype != y.dtype || !(x.shape == y.shape)) return false;
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (x.shape[axis] > 1 && x.strides[axis] != y.strides[axis]) return false;
  }
  return true;
}

// o may be one of the parts' o, lse one of their lse.
void check_output(const std::string& name, const ConstTensorView& output, const std::vector<Part>& parts, bool is_o) {
  if (problem::overlaps_itself(output)) {
    refuse("{} has shape {} and strides {}, so that elements share memory; one place an element is accepted", name,
           to_string(output.shape), to_string(output.strides));
  }
  const auto check = [&](const std::string& input_name, const ConstTensorView& input, bool may_be_same) {
    if (!problem::overlaps(output, input) || (may_be_same && same_place(output, input))) return;
    refuse("{} overlaps {} in memory; none of its bytes, or all of it in place, is accepted", name, input_name);
  };
  for (const Part& part : parts) {
    check(part.o_name, part.o, is_o);
    check(part.lse_name, part.lse, !is_o);
  }
}

std::vector<Part> check_parts(std::span<const ConstTensorView> o_parts, std::span<const ConstTensorView> lse_parts,
                              const TensorView& o, const std::optional<TensorView>& lse) {
  if (o_parts.empty()) refuse("o_parts is empty; at least one part is accepted");
  if (o_parts.size() != lse_parts.size()) {
    refuse("o_parts has {} parts and lse_parts {}; as many are accepted", o_parts.size(), lse_parts.size());
  }
  check_o("o", o, o.shape);
  if (lse) check_lse("lse", *lse, o.shape);
  std::vector<Part> parts;
  for (std::size_t i = 0; i < o_parts.size(); ++i) {
    Part part{o_parts[i], lse_parts[i], fmt::format("o_parts[{}]", i), fmt::format("lse_parts[{}]", i)};
    check_o(part.o_name, part.o, o.shape);
    check_lse(part.lse_name, part.lse, o.shape);
    parts.push_back(std::move(part));
  }
  check_output("o", o, parts, true);
  if (lse) {
    check_output("lse", *lse, parts, false);
    if (problem::overlaps(o, *lse)) refuse("o overlaps lse in memory; outputs that share no byte are accepted");
  }
  return parts;
}

/// Row (b, h, s) of a tensor whose first three axes are those.
struct RowIndex {
  std::int64_t b, h, s;
  template <class View>
  std::int64_t offset(const View& view) const {
    return b * view.strides[0] + h * view.strides[1] + s * view.strides[2];
  }
};

/// sum [Dv] and the row's lse; `weights` is scratch, one a part.
double merge_row(const std::vector<Part>& parts, const RowIndex& row, std::vector<double>& weights,
                 std::vector<double>& sum) {
  std::ranges::fill(sum, 0.0);
  double top = kMinusInfinity;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    weights[i] = base::load_element(parts[i].lse.data, parts[i].lse.dtype, row.offset(parts[i].lse));
    top = std::max(top, weights[i]);
  }
  double total = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    // A part in which nothing attended counts nothing, whatever its o holds.
    if (weights[i] == kMinusInfinity) continue;
    const double weight = std::exp(weights[i] - top);
    total += weight;
    const std::int64_t offset = row.offset(parts[i].o);
    base::with_storage_type(parts[i].o.dtype, [&]<class T>(std::type_identity<T>) {
      for (std::size_t d = 0; d < sum.size(); ++d) {
        sum[d] += weight * base::decode(base::load_raw<T>(parts[i].o.data, offset + static_cast<std::int64_t>(d)));
      }
    });
  }
  if (total == 0) return kMinusInfinity;
  for (double& x : sum) x /= total;
  return top + std::log(total);
}

}  // namespace

void merge_states(std::span<const ConstTensorView> o_parts, std::span<const ConstTensorView> lse_parts,
                  const TensorView& o, const std::optional<TensorView>& lse) {
  const std::vector<Part> parts = check_parts(o_parts, lse_parts, o, lse);
  const std::int64_t rows = o.shape[0] * o.shape[1] * o.shape[2];
  const int threads = rows * o.shape[3] * std::ssize(parts) < kSerialElements ? 1 : 0;
  base::parallel_tasks(threads, (rows + kTaskRows - 1) / kTaskRows, [&](int, std::int64_t task) {
    std::vector<double> weights(parts.size()), sum(static_cast<std::size_t>(o.shape[3]));
    for (std::int64_t r = task * kTaskRows; r < std::min(rows, (task + 1) * kTaskRows); ++r) {
      const RowIndex row = {r / o.shape[2] / o.shape[1], r / o.shape[2] % o.shape[1], r % o.shape[2]};
      const double merged = merge_row(parts, row, weights, sum);
      const std::int64_t offset = row.offset(o);
      base::with_storage_type(o.dtype, [&]<class T>(std::type_identity<T>) {
        for (std::size_t d = 0; d < sum.size(); ++d) {
          base::store_raw(o.data, offset + static_cast<std::int64_t>(d), base::encode<T>(sum[d]));
        }
      });
      if (lse) base::store_element(lse->data, lse->dtype, row.offset(*lse), merged);
    }
  });
}

}  // namespace heddle
