#include "mask/classify.h"

#include <algorithm>
#include <memory>

#include "base/parallel.h"
#include "mask/descent.h"
#include "mask/equal_rows.h"
#include "mask/repeated_part.h"
#include "mask/shape.h"

namespace heddle::mask {
namespace {

constexpr std::int64_t kStripRows = 64;         // a task; a taller strip would save 3 % of causal's queries
constexpr std::int64_t kStripGap = 4;           // rows that repeat, one after the other, end a strip
constexpr std::int64_t kStripBlocks = 1 << 20;  // bounds what a strip can hold while it is open
constexpr std::int64_t kBatchBlocks = 1 << 22;  // strips that are in memory together; the first batches are smaller
constexpr std::int64_t kFirstBatch = 1 << 19;
constexpr std::int64_t kBatchRows = 1 << 20;
constexpr std::int64_t kElementsPerTask = 1 << 16;
/// Range queries a row from which on a batch's mask is worth a look for a part that repeats: causal costs 6, a window
/// 12, stripes within causal two for each block that attends.
constexpr std::int64_t kManyQueries = 64;

/// Origin of a row: an earlier row that it repeats, or, if `earlier` is -1, a strip.
struct Source {
  std::int64_t earlier;
  std::size_t strip = 0;
  std::int32_t row = 0;  // of the strip
};

struct OpenBlocks {
  Strip* strip;
  std::size_t begin, end;  // of strip->rows.open()
};

class Classifier {
 public:
  explicit Classifier(const Classification& what)
      : what_(what),
        ranges_(what.mask, what.precision, what.captures),
        equal_rows_(what),
        scratch_(static_cast<std::size_t>(what.threads > 0 ? what.threads : base::available_cores())) {}

  void add(const Matrix& matrix) {
    const Sequence& sequence = sequence_of(matrix);
    const std::int64_t rows = block_count(sequence.q_len, what_.block.q);
    const std::int64_t columns = block_count(sequence.kv_len, what_.block.kv);
    const std::int64_t height =
        std::clamp<std::int64_t>(kStripBlocks / std::max<std::int64_t>(columns, 1), 1, kStripRows);
    const std::vector<std::int32_t> first_equal = equal_rows_.first_equal(matrix);
    part_ = nullptr;
    is_part_asked_ = false;
    if (costs_many_queries_) find_part(matrix);
    bool open = false;
    for (std::int32_t row = 0; row < rows; ++row) {
      open = open && row - strips_.back().row_begin < height && row - strips_.back().row_end < kStripGap;
      if (!open && (batch_blocks_ >= most_blocks_ || std::ssize(sources_) >= kBatchRows)) {
        flush();
        if (costs_many_queries_ && !is_part_asked_) find_part(matrix);
      }
      if (!first_equal.empty() && first_equal[static_cast<std::size_t>(row)] != row) {
        sources_.push_back({.earlier = rows_ + first_equal[static_cast<std::size_t>(row)]});
        continue;
      }
      if (!open) {
        strips_.push_back({matrix, row, row, static_cast<std::int32_t>(columns), StripRows(0)});
        parts_.push_back(part_);
      }
      open = true;
      Strip& strip = strips_.back();
      batch_blocks_ += (row + 1 - strip.row_end) * columns;
      strip.row_end = row + 1;
      sources_.push_back({.earlier = -1, .strip = strips_.size() - 1, .row = row - strip.row_begin});
    }
    rows_ += rows;
  }

  Classified take() {
    flush();
    return std::move(found_);
  }

 private:
  const Sequence& sequence_of(const Matrix& matrix) const {
    return what_.shape.sequences[static_cast<std::size_t>(matrix.sequence)];
  }

  /// The part of the matrix at hand that repeats, for strips to come.
  void find_part(const Matrix& matrix) {
    part_ = RepeatedPart::find(what_, matrix);
    is_part_asked_ = true;
  }

  void flush() {
    base::parallel_tasks(what_.threads, std::ssize(strips_), [&](int worker, std::int64_t task) {
      Strip& strip = strips_[static_cast<std::size_t>(task)];
      strip.rows = StripRows(strip.row_end - strip.row_begin);
      std::vector<expr::Range>& scratch = scratch_[static_cast<std::size_t>(worker)];
      const RepeatedPart* part = parts_[static_cast<std::size_t>(task)].get();
      if (strip.columns == 0) return;
      if (part != nullptr) return part->fill(strip, ranges_, sequence_of(strip.matrix), what_.block, scratch);
      descend(strip, ranges_, sequence_of(strip.matrix), what_.block, scratch);
    });
    evaluate_open();
    for (const Source& source : sources_) {
      if (source.earlier >= 0) {
        found_.rows.repeat(source.earlier);
      } else {
        strips_[source.strip].rows.take(source.row, runs_);
        found_.rows.add(runs_);
      }
    }
    std::int64_t rows = 0, queries = 0;
    for (const Strip& strip : strips_) {
      rows += strip.row_end - strip.row_begin;
      queries += strip.range_queries;
      found_.evaluated_tiles += std::ssize(strip.rows.open());
    }
    found_.classified_rows += rows;
    found_.range_queries += queries;
    costs_many_queries_ = costs_many_queries_ || queries > kManyQueries * rows;
    sources_.clear();
    strips_.clear();
    parts_.clear();
    batch_blocks_ = 0;
    most_blocks_ = std::min(2 * most_blocks_, kBatchBlocks);
  }

  void evaluate_open() {
    // Blocks may be as large as i32 allows a side.
    const std::int64_t side = std::min(what_.block.q, kElementsPerTask) * std::min(what_.block.kv, kElementsPerTask);
    const auto blocks_per_task = static_cast<std::size_t>(std::max<std::int64_t>(1, kElementsPerTask / side));
    std::vector<OpenBlocks> tasks;
    for (Strip& strip : strips_) {
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
  EqualRows equal_rows_;
  std::vector<std::vector<expr::Range>> scratch_;           // by worker
  std::vector<Source> sources_;                             // of the rows that follow those in found_
  std::vector<Strip> strips_;                               // the batch
  std::vector<std::shared_ptr<const RepeatedPart>> parts_;  // of the strips; null: they are not split
  std::shared_ptr<const RepeatedPart> part_;                // of the matrix at hand
  bool is_part_asked_ = false;                              // for it
  bool costs_many_queries_ = false;                         // some batch did
  std::int64_t batch_blocks_ = 0;
  std::int64_t most_blocks_ = kFirstBatch;  // of a batch
  std::int64_t rows_ = 0;                   // of the matrices before the one at hand
  std::vector<Run> runs_;
  Classified found_;
};

}  // namespace

Classified classify(const Classification& what, std::span<const Matrix> matrices) {
  Classifier classifier(what);
  for (const Matrix& matrix : matrices) classifier.add(matrix);
  return classifier.take();
}

}  // namespace heddle::mask
