#include "reference/attend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>

#include "base/element.h"
#include "base/parallel.h"
#include "reference/dot.h"
#include "reference/row_bounds.h"
#include "reference/row_offsets.h"

namespace heddle::reference {
namespace {

using problem::AttentionProblem;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kTaskRows = 64;  // so that loading a head's keys and values is little beside using them

// Rows [first, first + count) of one (tensor batch, head) of a [B, H, S, D] tensor.
std::vector<double> load_rows(const ConstTensorView& view, std::int64_t batch, std::int64_t head, std::int64_t first,
                              std::int64_t count) {
  const std::int64_t columns = view.shape[3];
  const std::int64_t tensor_batch = view.shape[0] == 1 ? 0 : batch;
  std::vector<double> rows;
  rows.reserve(static_cast<std::size_t>(count * columns));
  base::with_storage_type(view.dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t row = first; row < first + count; ++row) {
      const std::int64_t start = tensor_batch * view.strides[0] + head * view.strides[1] + row * view.strides[2];
      for (std::int64_t column = 0; column < columns; ++column) {
        rows.push_back(base::decode(base::load_raw<T>(view.data, start + column)));
      }
    }
  });
  return rows;
}

// The keys or values of a sequence; rows of pages where a table lists them.
std::vector<double> load_keys(const ConstTensorView& view, const AttentionProblem& problem,
                              const AttentionOptions& options, std::int64_t b, std::int64_t head) {
  const Sequence& sequence = problem.sequences[static_cast<std::size_t>(b)];
  if (problem.page_rows == 0) {
    return load_rows(view, problem.packed ? 0 : b, head, sequence.kv_begin, sequence.kv_len);
  }
  std::vector<double> rows;
  for (std::int64_t j = 0; j < sequence.kv_len; ++j) {
    const std::vector<double> row =
        load_rows(view, page_number(problem, options, b, j, view.shape[0]), head, j % problem.page_rows, 1);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

/// Rows of `columns` columns, and behind each the columns of its row in `rest`.
std::vector<double> beside(const std::vector<double>& rows, std::int64_t columns, const std::vector<double>& rest,
                           std::int64_t rest_columns) {
  std::vector<double> whole;
  whole.reserve(rows.size() + rest.size());
  auto from = rest.begin();
  for (auto row = rows.begin(); row != rows.end(); row += columns, from += rest_columns) {
    whole.insert(whole.end(), row, row + columns);
    whole.insert(whole.end(), from, from + rest_columns);
  }
  return whole;
}

double descale_of(const std::optional<ConstTensorView>& factor, std::int64_t b, std::int64_t head) {
  if (!factor) return 1;
  return get_element(*factor, {factor->shape[0] == 1 ? 0 : b, factor->shape[1] == 1 ? 0 : head});
}

// Computes rows one after the other; the buffers are one thread's.
class RowAttention {
 public:
  RowAttention(const AttentionProblem& problem, const ElementMods& mods, const ElementMods* in_reals, double step)
      : problem_(problem),
        mods_(mods),
        step_(step),
        flushed_(problem.precision == expr::Precision::f64 ? 0x1p-970 : 0x1p-102),
        o_(static_cast<std::size_t>(problem.v_dim)),
        magnitude_(o_.size()),
        floor_(o_.size()),
        largest_(o_.size()),
        sums_(o_.size()) {
    if (in_reals != nullptr) find_bounds_.emplace(problem, *in_reals, step);
  }

  RowResult operator()(const RowInputs& row) {
    clear();
    compute_scores(row);
    if (problem_.normalizer == Normalizer::softmax) {
      softmax(row);
    } else {
      const bool sigmoid = problem_.normalizer == Normalizer::sigmoid;
      bound_errors(row);
      for (double& t : t_) t = t == -kInfinity ? kMasked : sigmoid ? 1 / (1 + std::exp(-t)) : t;
      accumulate(row);
    }
    return result();
  }

  RowResult past_the_end() {
    clear();
    return result();
  }

 private:
  static constexpr double kMasked = -kInfinity;  // in t and in p: no p is -inf

  void clear() {
    for (auto* values : {&o_, &magnitude_, &floor_, &largest_}) std::ranges::fill(*values, 0);
    bounds_ = {};
    top_ = max_score_ = -kInfinity;
    log_sum_ = 0;
  }

  RowResult result() const {
    return {.o = o_,
            .top = top_,
            .log_sum = log_sum_,
            .max_score = max_score_,
            .magnitude = magnitude_,
            .floor = floor_,
            .bounds = bounds_};
  }

  void compute_scores(const RowInputs& row) {
    t_.assign(static_cast<std::size_t>(row.kv_len), kMasked);
    s_.assign(t_.size(), 0);
    terms_.assign(t_.size(), 0);
    for (std::int64_t j = 0; j < row.kv_len; ++j) {
      if (!mods_.attends(row.position, j)) continue;
      const Dot product = dot(row.query, row.keys + j * problem_.qk_dim);
      const auto at = static_cast<std::size_t>(j);
      s_[at] = row.scale * product.sum;
      terms_[at] = std::abs(row.scale) * product.terms;
      t_[at] = mods_.score(row.position, j, s_[at]);
    }
  }

  // Before the scores become weights.
  void bound_errors(const RowInputs& row) {
    if (!find_bounds_) return;
    bounds_ = (*find_bounds_)(
        row, {.s = s_, .terms = terms_, .t = t_, .top = top_, .log_sum = log_sum_, .largest = max_score_});
  }

  // Leaves o in o_, m in top_ and ln l in log_sum_.
  void softmax(const RowInputs& row) {
    double m = row.sink;
    bool poisoned = std::isnan(row.sink) || row.sink == kInfinity;
    for (double t : t_) {
      if (std::isnan(t) || t == kInfinity) max_score_ = kNaN;
      max_score_ = std::isnan(max_score_) ? max_score_ : std::max(max_score_, t);
      m = std::max(m, t);
    }
    poisoned = poisoned || std::isnan(max_score_);
    if (poisoned) {
      std::ranges::fill(o_, kNaN);
      top_ = kNaN;
      bound_errors(row);  // a sink that is NaN or +inf leaves the row its largest score
      return;
    }
    if (m == -kInfinity) return;
    Sum sum = std::exp(row.sink - m);
    for (double t : t_) sum += t == -kInfinity ? 0 : std::exp(t - m);
    top_ = m;
    log_sum_ = std::log(static_cast<double>(sum));
    bound_errors(row);
    for (double& t : t_) t = t == -kInfinity ? kMasked : std::exp(t - m);
    accumulate(row, sum);
  }

  // By how much rounding errors may change p / l of key j; `share` is |p| / l, at least the flushed one, `growth` is
  // exp(e) - 1.
  double error_of_share(std::size_t j, double share, double growth) const {
    if (problem_.normalizer == Normalizer::none) return step_ * bounds_.exponent;  // p is t
    return bounds_.error_of_share(j, share, growth);
  }

  // o = sum(p w v) / l, with p in t_. The sums may leave the range of double where o does not.
  void accumulate(const RowInputs& row, Sum l = 1) {
    std::ranges::fill(sums_, Sum{0});
    const double growth = std::expm1(step_ * (1 + bounds_.exponent));
    for (std::int64_t j = 0; j < row.kv_len; ++j) {
      const double p = t_[static_cast<std::size_t>(j)];
      if (p == kMasked) continue;
      const double w = mods_.weight(row.position, j);
      const double* v = row.values + j * problem_.v_dim;
      const double share = static_cast<double>(std::max(std::abs(p), flushed_) / l);
      const double error = error_of_share(static_cast<std::size_t>(j), share, growth);
      for (std::size_t d = 0; d < o_.size(); ++d) {
        const double size = std::abs(w * v[d]);
        sums_[d] += static_cast<Sum>(p) * w * v[d];
        magnitude_[d] += times_size(share, size);
        floor_[d] += times_size(error, size);
        largest_[d] = std::max(largest_[d], size);
      }
    }
    const bool softmax = problem_.normalizer == Normalizer::softmax;
    for (std::size_t d = 0; d < o_.size(); ++d) {
      o_[d] = static_cast<double>(sums_[d] / l);
      if (softmax) floor_[d] = std::min(floor_[d], 2 * largest_[d]);
    }
  }

  const AttentionProblem& problem_;
  const ElementMods& mods_;
  const double step_, flushed_;
  std::vector<double> s_, terms_;                            // by key
  std::vector<double> t_, o_, magnitude_, floor_, largest_;  // largest_: of |w v|
  std::vector<Sum> sums_;
  double max_score_ = -kInfinity;
  RowBounds bounds_;
  std::optional<RowBoundsFinder> find_bounds_;  // empty if no caller reads bounds
  double top_ = -kInfinity, log_sum_ = 0;
};

// Rows [first, last) of one sequence, for all query heads of one kv head.
struct Task {
  std::int64_t b, kv_head, first, last;
};

std::vector<Task> make_tasks(const AttentionProblem& problem, RowOrder order) {
  std::vector<Task> tasks;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    // Rows behind a packed batch's last sequence count as rows past its end.
    const Sequence& sequence = problem.sequences[static_cast<std::size_t>(b)];
    const std::int64_t rows =
        !problem.packed || b + 1 == problem.batch ? problem.q_rows - sequence.q_begin : sequence.q_len;
    const std::int64_t task_rows = order == RowOrder::any ? kTaskRows : std::max<std::int64_t>(rows, 1);
    for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) {
      for (std::int64_t first = 0; first < rows; first += task_rows) {
        tasks.push_back({b, kv_head, first, std::min(first + task_rows, rows)});
      }
    }
  }
  return tasks;
}

void run_task(const AttentionProblem& problem, const backend::RunArguments& arguments, const ElementMods& mods,
              const ElementMods* in_reals, const Task& task, double step, const VisitRow& visit) {
  const Sequence& sequence = problem.sequences[static_cast<std::size_t>(task.b)];
  const std::int64_t tensor_batch = problem.packed ? 0 : task.b;
  const AttentionTensors& tensors = arguments.tensors;
  const AttentionOptions& options = *arguments.options;
  auto keys = load_keys(tensors.k, problem, options, task.b, task.kv_head);
  if (options.k_rest) {
    keys = beside(keys, problem.qk_dim - problem.k_rest_dim,
                  load_keys(*options.k_rest, problem, options, task.b, task.kv_head), problem.k_rest_dim);
  }
  auto values = load_keys(tensors.v, problem, options, task.b, task.kv_head);
  const double v_descale = descale_of(options.v_descale, task.b, task.kv_head);
  for (double& x : values) x *= v_descale;

  RowAttention compute(problem, mods, in_reals, step);
  for (std::int64_t h = task.kv_head * problem.group(); h < (task.kv_head + 1) * problem.group(); ++h) {
    const double scale =
        problem.scale * descale_of(options.q_descale, task.b, h) * descale_of(options.k_descale, task.b, task.kv_head);
    const double sink = options.sinks ? get_element(*options.sinks, {h}) : -kInfinity;
    for (std::int64_t i = task.first; i < task.last; ++i) {
      const RowIndex index = {tensor_batch, h, sequence.q_begin + i};
      if (i >= sequence.q_len) {
        visit(index, nullptr, compute.past_the_end());
        continue;
      }
      auto query = load_rows(tensors.q, tensor_batch, h, index.row, 1);
      if (options.q_rest) {
        const auto rest = load_rows(*options.q_rest, tensor_batch, h, index.row, 1);
        query.insert(query.end(), rest.begin(), rest.end());
      }
      const RowInputs row = {{task.b, h, i}, sequence.kv_len, scale,       v_descale,
                             sink,           query,           keys.data(), values.data()};
      visit(index, &row, compute(row));
    }
  }
}

}  // namespace

void attend(const AttentionProblem& problem, const backend::RunArguments& arguments, double step, const VisitRow& visit,
            RowOrder order) {
  const ElementMods mods(problem, arguments, expr::Precision::f64);
  std::optional<ElementMods> in_reals;
  if (step > 0) in_reals.emplace(problem, arguments, problem.precision);
  const std::vector<Task> tasks = make_tasks(problem, order);
  const auto& progress = arguments.options->progress;
  std::mutex progress_mutex;
  std::int64_t done = 0;
  base::parallel_tasks(arguments.options->threads, std::ssize(tasks), [&](int, std::int64_t task) {
    run_task(problem, arguments, mods, in_reals ? &*in_reals : nullptr, tasks[static_cast<std::size_t>(task)], step,
             visit);
    if (!progress) return;
    const std::lock_guard lock(progress_mutex);
    progress(static_cast<double>(++done) / static_cast<double>(tasks.size()));
  });
}

}  // namespace heddle::reference
