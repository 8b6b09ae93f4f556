// append_kv on the CPU: rows of k, v and q on their way to a cache, and to the turned queries.
#include "backend/cpu/cpu_append_kv.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/element.h"
#include "base/parallel.h"
#include "problem/append_checks.h"

namespace heddle::cpu {
namespace {

using problem::AppendSizes;

constexpr std::int64_t kAppendedRows = 64;         // of one task, of every head
constexpr std::int64_t kAppendedBySelf = 1 << 16;  // up to so many elements one thread does all

/// A row of a tensor [entry, head, row, column].
template <class View>
std::int64_t offset(const View& view, std::int64_t entry, std::int64_t head, std::int64_t row) {
  return entry * view.strides[0] + head * view.strides[1] + row * view.strides[2];
}

void load_row(const ConstTensorView& from, std::int64_t at, std::vector<double>& x) {
  base::with_storage_type(from.dtype, [&]<class T>(std::type_identity<T>) {
    for (std::size_t d = 0; d < x.size(); ++d) {
      x[d] = base::decode(base::load_raw<T>(from.data, at + static_cast<std::int64_t>(d)));
    }
  });
}

/// In 8 bits, larger magnitudes become the largest finite number.
double within(DType dtype, double x) {
  const double most = dtype == DType::e4m3 ? 448 : dtype == DType::e5m2 ? 57344 : INFINITY;
  return x > most ? most : x < -most ? -most : x;
}

void store_row(const TensorView& to, std::int64_t at, const std::vector<double>& x) {
  base::with_storage_type(to.dtype, [&]<class T>(std::type_identity<T>) {
    for (std::size_t d = 0; d < x.size(); ++d) {
      base::store_raw(to.data, at + static_cast<std::int64_t>(d), base::encode<T>(within(to.dtype, x[d])));
    }
  });
}

/// The angles of a position, for rows of all heads. Without a rotary embedding it turns nothing.
class Angles {
 public:
  explicit Angles(const std::optional<Rotary>& rotary)
      : rotary_(rotary), cos_(rotary ? static_cast<std::size_t>(rotary->cos.shape[1]) : 0), sin_(cos_) {}

  void load(std::int64_t position) {
    if (!rotary_) return;
    load_row(rotary_->cos, position * rotary_->cos.strides[0], cos_);
    load_row(rotary_->sin, position * rotary_->sin.strides[0], sin_);
  }
  void turn(std::vector<double>& x) const {
    for (std::size_t i = 0; i < cos_.size(); ++i) {
      const std::size_t first = rotary_->interleaved ? 2 * i : i,
                        second = rotary_->interleaved ? 2 * i + 1 : i + cos_.size();
      const double a = x[first], b = x[second];
      x[first] = a * cos_[i] - b * sin_[i];
      x[second] = b * cos_[i] + a * sin_[i];
    }
  }

 private:
  const std::optional<Rotary>& rotary_;
  std::vector<double> cos_, sin_;
};

double factor(const std::optional<ConstTensorView>& descale, std::int64_t b, std::int64_t head) {
  if (!descale) return 1;
  const std::int64_t at =
      (descale->shape[0] > 1 ? b * descale->strides[0] : 0) + (descale->shape[1] > 1 ? head * descale->strides[1] : 0);
  return static_cast<double>(base::load_raw<float>(descale->data, at));
}

class Append {
 public:
  Append(const AppendTensors& tensors, const AppendOptions& options)
      : tensors_(tensors), options_(options), sizes_(problem::append_sizes(tensors, options)) {}

  /// New rows [begin, end) of a sequence, of every head.
  void keys_and_values(std::int64_t b, std::int64_t begin, std::int64_t end) const {
    std::vector<double> key(static_cast<std::size_t>(tensors_.k.shape[3])),
        value(tensors_.v ? static_cast<std::size_t>(tensors_.v->shape[3]) : 0);
    Angles angles(options_.rotary);
    const std::int64_t first = first_row(b);
    for (std::int64_t i = begin; i < end; ++i) {
      angles.load(position(b, i));
      const problem::AppendIndex index = problem::append_index(options_, sizes_, b, i);
      for (std::int64_t head = 0; head < tensors_.k.shape[1]; ++head) {
        load_row(tensors_.k, offset(tensors_.k, entry(b), head, first + i), key);
        angles.turn(key);
        divide(key, factor(options_.k_descale, b, head));
        store_row(tensors_.k_cache, offset(tensors_.k_cache, index.entry, head, index.row), key);
        if (!tensors_.v) continue;
        load_row(*tensors_.v, offset(*tensors_.v, entry(b), head, first + i), value);
        divide(value, factor(options_.v_descale, b, head));
        store_row(*tensors_.v_cache, offset(*tensors_.v_cache, index.entry, head, index.row), value);
      }
    }
  }
  void queries(std::int64_t b, std::int64_t begin, std::int64_t end) const {
    std::vector<double> query(static_cast<std::size_t>(tensors_.q->shape[3]));
    Angles angles(options_.rotary);
    const std::int64_t first = first_row(b);
    for (std::int64_t i = begin; i < end; ++i) {
      angles.load(position(b, options_.rotary->queries_at_first ? 0 : i));
      for (std::int64_t head = 0; head < tensors_.q->shape[1]; ++head) {
        load_row(*tensors_.q, offset(*tensors_.q, entry(b), head, first + i), query);
        angles.turn(query);
        store_row(*tensors_.q_out, offset(*tensors_.q_out, entry(b), head, first + i), query);
      }
    }
  }

  void run() const {
    std::vector<Task> tasks;
    for (std::int64_t b = 0; b < sizes_.batch; ++b) {
      const problem::AppendSpan span = problem::append_span(options_, sizes_, b);
      const std::int64_t rows = span.end - span.begin, of_queries = options_.cu_seqlens ? rows : sizes_.q_rows;
      for (std::int64_t i = 0; i < rows; i += kAppendedRows)
        tasks.push_back({b, i, std::min(rows, i + kAppendedRows), false});
      if (!tensors_.q) continue;
      for (std::int64_t i = 0; i < of_queries; i += kAppendedRows) {
        tasks.push_back({b, i, std::min(of_queries, i + kAppendedRows), true});
      }
    }
    const auto count = [](const std::optional<ConstTensorView>& view) { return view ? view->count() : 0; };
    const std::int64_t elements = tensors_.k.count() + count(tensors_.v) + count(tensors_.q);
    base::parallel_tasks(elements < kAppendedBySelf ? 1 : 0, std::ssize(tasks), [&](int, std::int64_t i) {
      const Task& task = tasks[static_cast<std::size_t>(i)];
      if (task.of_queries) {
        queries(task.b, task.begin, task.end);
      } else {
        keys_and_values(task.b, task.begin, task.end);
      }
    });
  }

 private:
  struct Task {
    std::int64_t b, begin, end;
    bool of_queries;
  };

  static void divide(std::vector<double>& x, double by) {
    if (by == 1) return;
    for (double& each : x) each /= by;
  }
  /// Where a sequence's rows stand in k, v and q.
  std::int64_t entry(std::int64_t b) const { return options_.cu_seqlens ? 0 : b; }
  std::int64_t first_row(std::int64_t b) const { return problem::append_span(options_, sizes_, b).begin; }
  std::int64_t position(std::int64_t b, std::int64_t i) const {
    if (!options_.rotary) return 0;
    const std::optional<ConstTensorView>& given = options_.rotary->positions;
    return problem::integer_at(given ? *given : options_.kv_lengths, b) + i;
  }

  const AppendTensors& tensors_;
  const AppendOptions& options_;
  const AppendSizes sizes_;
};

}  // namespace

void append_kv(const AppendTensors& tensors, const AppendOptions& options) { Append(tensors, options).run(); }

}  // namespace heddle::cpu
