#include "mask/classify.h"

#include <algorithm>

#include "base/parallel.h"
#include "mask/descent.h"
#include "mask/shape.h"

namespace heddle::mask {
namespace {

constexpr std::int64_t kStripRows = 64;         // a task; a taller strip would save 3 % of causal's queries
constexpr std::int64_t kStripBlocks = 1 << 20;  // bounds what a strip can hold while it is open
constexpr std::int64_t kBatchBlocks = 1 << 22;  // strips that are in memory together
constexpr std::int64_t kElementsPerTask = 1 << 16;

struct OpenBlocks {
  Strip* strip;
  std::size_t begin, end;  // of strip->rows.open()
};

class Classifier {
 public:
  explicit Classifier(const Classification& what)
      : what_(what),
        ranges_(what.mask, what.precision, what.captures),
        scratch_(static_cast<std::size_t>(what.threads > 0 ? what.threads : base::available_cores())) {}

  void add(const Matrix& matrix) {
    const Sequence& sequence = sequence_of(matrix);
    const std::int64_t rows = block_count(sequence.q_len, what_.block.q);
    const std::int64_t columns = block_count(sequence.kv_len, what_.block.kv);
    const std::int64_t height =
        std::clamp<std::int64_t>(kStripBlocks / std::max<std::int64_t>(columns, 1), 1, kStripRows);
    for (std::int64_t begin = 0; begin < rows; begin += height) {
      const std::int64_t end = std::min(rows, begin + height);
      batch_.push_back({matrix, static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end),
                        static_cast<std::int32_t>(columns), StripRows(static_cast<std::int32_t>(end - begin))});
      batch_blocks_ += (end - begin) * columns;
      if (batch_blocks_ >= kBatchBlocks) flush();
    }
  }

  Rows take() {
    flush();
    return std::move(rows_);
  }

 private:
  const Sequence& sequence_of(const Matrix& matrix) const {
    return what_.shape.sequences[static_cast<std::size_t>(matrix.sequence)];
  }

  void flush() {
    base::parallel_tasks(what_.threads, std::ssize(batch_), [&](int worker, std::int64_t task) {
      Strip& strip = batch_[static_cast<std::size_t>(task)];
      if (strip.columns > 0) {
        descend(strip, ranges_, sequence_of(strip.matrix), what_.block, scratch_[static_cast<std::size_t>(worker)]);
      }
    });
    evaluate_open();
    for (const Strip& strip : batch_) {
      strip.rows.finish(rows_);
      rows_.range_queries += strip.range_queries;
      rows_.evaluated_tiles += std::ssize(strip.rows.open());
    }
    batch_.clear();
    batch_blocks_ = 0;
  }

  void evaluate_open() {
    // Blocks may be as large as i32 allows a side.
    const std::int64_t side = std::min(what_.block.q, kElementsPerTask) * std::min(what_.block.kv, kElementsPerTask);
    const auto blocks_per_task = static_cast<std::size_t>(std::max<std::int64_t>(1, kElementsPerTask / side));
    std::vector<OpenBlocks> tasks;
    for (Strip& strip : batch_) {
      const std::size_t count = strip.rows.open().size();
      for (std::size_t begin = 0; begin < count; begin += blocks_per_task) {
        tasks.push_back({&strip, begin, std::min(count, begin + blocks_per_task)});
      }
    }
    base::parallel_tasks(what_.threads, std::ssize(tasks), [&](int, std::int64_t task) {
      const OpenBlocks& some = tasks[static_cast<std::size_t>(task)];
      for (std::size_t i = some.begin; i < some.end; ++i) evaluate(*some.strip, some.strip->rows.open()[i]);
    });
  }

  void evaluate(Strip& strip, const StripRows::Open& open) const {
    const Sequence& sequence = sequence_of(strip.matrix);
    const std::int64_t q = (strip.row_begin + open.row) * what_.block.q, kv = strip.rows.column(open) * what_.block.kv;
    const Content content = what_.evaluate({.sequence = strip.matrix.sequence,
                                            .head = strip.matrix.head,
                                            .q_begin = q,
                                            .q_end = std::min(sequence.q_len, q + what_.block.q),
                                            .kv_begin = kv,
                                            .kv_end = std::min(sequence.kv_len, kv + what_.block.kv)});
    strip.rows.resolve(open, content == Content::empty  ? Class::empty
                             : content == Content::full ? Class::full
                                                        : Class::partial);
  }

  const Classification& what_;
  MaskRanges ranges_;
  std::vector<std::vector<expr::Range>> scratch_;  // by worker
  std::vector<Strip> batch_;
  std::int64_t batch_blocks_ = 0;
  Rows rows_;
};

}  // namespace

Rows classify(const Classification& what, std::span<const Matrix> matrices) {
  Classifier classifier(what);
  for (const Matrix& matrix : matrices) classifier.add(matrix);
  return classifier.take();
}

}  // namespace heddle::mask
