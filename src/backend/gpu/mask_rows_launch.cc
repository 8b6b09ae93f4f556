#include "backend/gpu/mask_rows_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/gpu/set_mod_values.h"
#include "backend/jit/builder.h"
#include "heddle/error.h"
#include "mask/shape.h"

namespace heddle::gpu {
namespace {

using shared::MaskMatrix;
using shared::MaskRun;
using shared::MaskZone;
using shared::ZoneCell;

// The device's runs are copied as they are.
static_assert(sizeof(Run) == sizeof(MaskRun) && offsetof(Run, end) == offsetof(MaskRun, end) &&
              offsetof(Run, kind) == offsetof(MaskRun, kind) && static_cast<int>(RunKind::full) == 1);

constexpr std::int64_t kMostColumns = 1 << 30, kMostRows = 1 << 30;  // of blocks, of one score matrix and of all
constexpr std::size_t kAlignment = 16;

/// Enlarges the memory to at least `bytes` bytes.
void reserve(const Gpu& gpu, int device, Memory& memory, std::size_t bytes) {
  if (memory.bytes() >= bytes) return;
  memory = Memory();  // the old goes before the new comes
  memory = Memory(gpu.devices(), device, bytes);
}

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

MaskZone zone_of(const shared::ModCapture& tensor, int rank, int axis) {
  MaskZone zone{.cells = nullptr, .tensor = tensor, .rank = rank, .axis = axis, .groups = 0, .slices = 0};
  if (axis < 0) return zone;
  zone.groups = (tensor.extent[axis] + shared::kZoneGroup - 1) / shared::kZoneGroup;
  zone.slices = 1;
  for (int i = 0; i < rank; ++i) {
    if (i != axis) zone.slices *= tensor.extent[i];
  }
  if (zone.groups == 0 || zone.slices == 0) zone.groups = zone.slices = 0;
  return zone;
}

std::size_t cells_of(const MaskZone& zone) {
  return 2 * static_cast<std::size_t>(zone.groups) * static_cast<std::size_t>(zone.slices);
}

MaskMatrix matrix_of(const MaskShape& shape, const mask::Matrix& matrix, std::int64_t first_row, BlockSize block) {
  const Sequence& sequence = shape.sequences[static_cast<std::size_t>(matrix.sequence)];
  return {.b = static_cast<int>(matrix.sequence),
          .h = static_cast<int>(matrix.head),
          .first_row = static_cast<int>(first_row),
          .columns = static_cast<int>(mask::block_count(sequence.kv_len, block.kv)),
          .q_len = static_cast<int>(sequence.q_len),
          .kv_len = static_cast<int>(sequence.kv_len),
          .q_start = static_cast<int>(sequence.q_start),
          .q_token = static_cast<int>(sequence.q_begin - sequence.q_start),
          .kv_token = static_cast<int>(sequence.kv_begin)};
}

/// Params that the kernels set themselves need a value for set_mod_values().
Bindings with_token_words(const Bindings& bindings, const RowMask& mask) {
  Bindings all = bindings;
  for (const int word : {mask.q_token_word, mask.kv_token_word}) {
    if (word >= 0) all.params[mask.layout.params[static_cast<std::size_t>(word)].first] = 0;
  }
  return all;
}

}  // namespace

MaskRows::MaskRows(const Gpu& gpu, int device, const Expr& simplified, const plan::KvStart& start)
    : gpu_(gpu),
      device_(device),
      start_(start),
      mask_(row_mask(simplified, start)),
      program_(gpu.load(device, gpu.source(device, "mask_rows", mask_rows_text(mask_)))),
      zone_groups_(program_->function("zone_groups")),
      zone_trees_(program_->function("zone_trees")),
      find_rows_(program_->function("find_rows")),
      scan_counts_(program_->function("scan_counts")) {}

void MaskRows::set_zones(const Bindings& bindings) {
  set_mod_values(mask_.layout, with_token_words(bindings, mask_), starts_->bindings(), params_.mod);
  std::size_t cells = 0;
  params_.zone_count = static_cast<int>(mask_.layout.captures.size());
  for (std::size_t i = 0; i < mask_.layout.captures.size(); ++i) {
    params_.zones[i] = zone_of(params_.mod.captures[i], mask_.layout.captures[i].rank, mask_.axes[i]);
    cells += cells_of(params_.zones[i]);
  }
  reserve(gpu_, device_, zones_, cells * sizeof(ZoneCell));
  auto* next = static_cast<ZoneCell*>(zones_.data());
  for (int i = 0; i < params_.zone_count; ++i) {
    params_.zones[i].cells = next;
    next += cells_of(params_.zones[i]);
  }
}

void MaskRows::set_matrices(const MaskShape& shape, BlockSize block, std::span<const mask::Matrix> matrices) {
  std::vector<MaskMatrix> all;
  std::int64_t rows = 0;
  for (const mask::Matrix& matrix : matrices) {
    const std::int64_t of_matrix =
        mask::block_count(shape.sequences[static_cast<std::size_t>(matrix.sequence)].q_len, block.q);
    if (of_matrix > 0) all.push_back(matrix_of(shape, matrix, rows, block));
    rows += of_matrix;
  }
  const std::size_t matrix_bytes = aligned(all.size() * sizeof(MaskMatrix));
  reserve(gpu_, device_, rows_, matrix_bytes + static_cast<std::size_t>(rows + 1) * sizeof(long long));
  gpu_.devices().copy_and_wait(device_, rows_.data(), all.data(), all.size() * sizeof(MaskMatrix));
  params_.matrices = static_cast<const MaskMatrix*>(rows_.data());
  params_.matrix_count = static_cast<int>(all.size());
  params_.offset = reinterpret_cast<long long*>(static_cast<char*>(rows_.data()) + matrix_bytes);
  params_.rows = static_cast<int>(rows);
  params_.q_block = block.q;
  params_.kv_block = block.kv;
}

void MaskRows::launch(void* function, unsigned grid, unsigned height, unsigned threads) {
  program_->launch(function, {.ctas = grid, .height = height, .threads = threads}, nullptr, &params_,
                   "launching mask_rows");
}

void MaskRows::find(const MaskShape& shape, BlockSize block, std::span<const mask::Matrix> matrices,
                    const Bindings& bindings) {
  constexpr std::int64_t kWarps = shared::kMaskThreads / 32, kMostGrid = 1 << 16;
  starts_.emplace(gpu_.devices(), device_, start_, shape.sequences, std::nullopt);
  set_zones(bindings);
  set_matrices(shape, block, matrices);
  std::int64_t groups = 0, slices = 0;
  for (int i = 0; i < params_.zone_count; ++i) {
    const MaskZone& zone = params_.zones[i];
    groups = std::max(groups, static_cast<std::int64_t>(zone.groups) * zone.slices);
    slices = std::max<std::int64_t>(slices, zone.slices);
  }
  if (groups > 0) {
    const auto height = static_cast<unsigned>(params_.zone_count);
    const std::int64_t ctas = std::min((groups + kWarps - 1) / kWarps, kMostGrid);
    launch(zone_groups_, static_cast<unsigned>(ctas), height, shared::kMaskThreads);
    launch(zone_trees_, static_cast<unsigned>(std::min(slices, kMostGrid)), height, shared::kScanThreads);
  }
  const auto rows = static_cast<unsigned>(params_.rows);
  params_.runs = nullptr;
  if (rows > 0) launch(find_rows_, rows, 1, shared::kMaskThreads);
  launch(scan_counts_, 1, 1, shared::kScanThreads);
  gpu_.devices().copy_and_wait(device_, &run_count_, params_.offset + rows, sizeof run_count_);
  reserve(gpu_, device_, runs_, static_cast<std::size_t>(run_count_) * sizeof(MaskRun));
  params_.runs = static_cast<MaskRun*>(runs_.data());
  params_.capacity = run_count_;
  if (run_count_ > 0) launch(find_rows_, rows, 1, shared::kMaskThreads);
  gpu_.wait(device_, "waiting for the rows of a block mask");
}

mask::Rows MaskRows::on_host() const {
  mask::Rows rows;
  static_assert(sizeof(std::int64_t) == sizeof(long long));
  rows.offset.resize(static_cast<std::size_t>(params_.rows) + 1);
  gpu_.devices().copy_and_wait(device_, rows.offset.data(), params_.offset, rows.offset.size() * sizeof(long long));
  std::vector<MaskRun> runs(static_cast<std::size_t>(run_count_));
  gpu_.devices().copy_and_wait(device_, runs.data(), params_.runs, runs.size() * sizeof(MaskRun));
  rows.runs.reserve(runs.size());
  for (const MaskRun& run : runs) rows.runs.push_back({run.begin, run.end, static_cast<RunKind>(run.kind)});
  return rows;
}

std::int64_t MaskRows::bytes() const {
  return static_cast<std::int64_t>(zones_.bytes() + rows_.bytes() + runs_.bytes());
}

std::int64_t MaskRows::row_bytes() const {
  return run_count_ * static_cast<std::int64_t>(sizeof(MaskRun)) +
         (params_.rows + std::int64_t{1}) * static_cast<std::int64_t>(sizeof(long long));
}

std::string mask_rows_refused(const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings,
                              DType reals, bool clamp_reads) {
  if (reals != DType::f32) return fmt::format("its real arithmetic is {}", name(reals));
  if (std::string reason = row_mask_refused(mask); !reason.empty()) return reason;
  if (!clamp_reads && !mask::reads_inside_for_all_values(mask, shape, bindings)) {
    return "whether its reads are inside their tensors depends on what captures hold";
  }
  std::int64_t rows = 0;
  for (const Sequence& sequence : shape.sequences) {
    if (mask::block_count(sequence.kv_len, block.kv) > kMostColumns) return "its rows have more than 2^30 blocks";
    rows += shape.heads * mask::block_count(sequence.q_len, block.q);
  }
  if (rows > kMostRows) return "it has more than 2^30 rows of blocks";
  return {};
}

backend::BuiltMask build_mask(const Gpu& gpu, int device, const Expr& mask, const MaskShape& shape, BlockSize block,
                              const Bindings& bindings, DType reals, bool clamp_reads,
                              std::shared_ptr<backend::DeviceMaskRows>& rows) {
  if (std::string reason = mask_rows_refused(mask, shape, block, bindings, reals, clamp_reads); !reason.empty()) {
    return {nullptr, std::move(reason)};
  }
  try {
    const auto find = [&](const Expr& simplified, const MaskShape& of, BlockSize size,
                          std::span<const mask::Matrix> matrices, const Bindings& values) {
      if (rows == nullptr) rows = std::make_shared<MaskRows>(gpu, device, simplified, plan::kv_start_of(of.sequences));
      if (!gpu.keeps_kernels()) throw Error(ErrorCode::unsupported, "the GPU is not here");
      auto& kept = static_cast<MaskRows&>(*rows);
      kept.find(of, size, matrices, values);
      return kept.on_host();
    };
    return {std::make_shared<const BlockMask>(mask::build_elsewhere(mask, shape, block, bindings, find, clamp_reads)),
            {}};
  } catch (const jit::Rejected& rejected) {
    const std::string sentence = rejected.what();
    return {nullptr, sentence.substr(0, sentence.find('\n'))};  // without the compiler's log
  } catch (const Error& error) {
    // These are limits of a kernel, or there is no compiler: the host has none, and needs none.
    if (error.code() != ErrorCode::unsupported) throw;
    return {nullptr, error.what()};
  }
}

}  // namespace heddle::gpu
