#include "paged_cache.h"

#include <fmt/format.h>

namespace {

std::size_t pages_for(std::int64_t rows) { return static_cast<std::size_t>((rows + kPageRows - 1) / kPageRows); }

}  // namespace

PagedCache::PagedCache(const heddle::Device& device, std::size_t layers, std::size_t sequences, std::int64_t pages)
    : device_(device), pages_(sequences), lengths_(sequences) {
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (auto* pool : {&keys_, &values_}) {
      pool->push_back(heddle::Tensor::empty_on(device, heddle::DType::f32, {pages, kHeads, kPageRows, kHeadDim}));
    }
  }
  for (std::int64_t page = pages; page-- > 0;) free_.push_back(static_cast<std::int32_t>(page));
}

void PagedCache::make_room(std::span<const std::int64_t> new_rows) {
  std::size_t needed = 0;
  for (std::size_t n = 0; n < pages_.size(); ++n) needed += pages_for(lengths_[n] + new_rows[n]) - pages_[n].size();
  if (needed > free_.size()) {
    throw heddle::Error(heddle::ErrorCode::invalid_argument,
                        fmt::format("the cache has {} free pages of {} characters, and {} are needed", free_.size(),
                                    kPageRows, needed));
  }
  for (std::size_t n = 0; n < pages_.size(); ++n) {
    while (pages_[n].size() < pages_for(lengths_[n] + new_rows[n])) {
      pages_[n].push_back(free_.back());
      free_.pop_back();
    }
  }
  if (needed == 0) return;
  const std::int64_t columns = keys_[0].shape()[0];
  heddle::Tensor table = heddle::Tensor::zeros(heddle::DType::i32, {static_cast<std::int64_t>(pages_.size()), columns});
  auto* row = static_cast<std::int32_t*>(table.data());
  for (const auto& pages : pages_) {
    std::copy(pages.begin(), pages.end(), row);
    row += columns;
  }
  table_ = table.to(device_);
}

void PagedCache::count(std::span<const std::int64_t> new_rows) {
  for (std::size_t n = 0; n < lengths_.size(); ++n) lengths_[n] += new_rows[n];
}

std::string PagedCache::picture() const {
  std::string picture(static_cast<std::size_t>(keys_[0].shape()[0]), '.');
  for (std::size_t n = 0; n < pages_.size(); ++n) {
    for (const std::int32_t page : pages_[n]) picture[static_cast<std::size_t>(page)] = static_cast<char>('1' + n);
  }
  return picture;
}
