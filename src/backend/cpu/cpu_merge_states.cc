// merge_states on the CPU: results over disjoint sets of keys become the result over their union.
#include "backend/cpu/cpu_merge_states.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/element.h"
#include "base/parallel.h"

namespace heddle::cpu {
namespace {

using backend::MergeArguments;
using backend::MergePart;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
/// Rows of one task; and the number of elements below which one thread does all.
constexpr std::int64_t kTaskRows = 64;
constexpr std::int64_t kSerialElements = 1 << 16;

/// Row (b, h, s) of a tensor whose first three axes are those.
struct RowIndex {
  std::int64_t b, h, s;
  template <class View>
  std::int64_t offset(const View& view) const {
    return b * view.strides[0] + h * view.strides[1] + s * view.strides[2];
  }
};

/// sum [Dv] and the row's lse; `weights` is scratch, one a part.
double merge_row(std::span<const MergePart> parts, const RowIndex& row, std::vector<double>& weights,
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

void merge_states(const MergeArguments& arguments) {
  const TensorView& to = arguments.o;
  const std::optional<TensorView>& to_lse = arguments.lse;
  const std::int64_t rows = to.shape[0] * to.shape[1] * to.shape[2];
  const int threads = rows * to.shape[3] * std::ssize(arguments.parts) < kSerialElements ? 1 : 0;
  base::parallel_tasks(threads, (rows + kTaskRows - 1) / kTaskRows, [&](int, std::int64_t task) {
    std::vector<double> weights(arguments.parts.size()), sum(static_cast<std::size_t>(to.shape[3]));
    for (std::int64_t r = task * kTaskRows; r < std::min(rows, (task + 1) * kTaskRows); ++r) {
      const RowIndex row = {r / to.shape[2] / to.shape[1], r / to.shape[2] % to.shape[1], r % to.shape[2]};
      const double merged = merge_row(arguments.parts, row, weights, sum);
      const std::int64_t offset = row.offset(to);
      base::with_storage_type(to.dtype, [&]<class T>(std::type_identity<T>) {
        for (std::size_t d = 0; d < sum.size(); ++d) {
          base::store_raw(to.data, offset + static_cast<std::int64_t>(d), base::encode<T>(sum[d]));
        }
      });
      if (to_lse) base::store_element(to_lse->data, to_lse->dtype, row.offset(*to_lse), merged);
    }
  });
}

}  // namespace heddle::cpu
