// Keys and values of several sequences in pages, as serving engines keep them: a page has room for kPageRows characters
// of one sequence, in every layer, and the page table says which pages a sequence has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "../train/attention_layer.h"
#include "heddle/heddle.h"

inline constexpr std::int64_t kPageRows = 16;

class PagedCache {
 public:
  /// For `sequences` sequences that have `pages` pages together.
  PagedCache(const heddle::Device& device, std::size_t layers, std::size_t sequences, std::int64_t pages);

  /// Gives each sequence the pages that so many more characters need. Throws heddle::Error if not enough are free;
  /// then no sequence has got any.
  void make_room(std::span<const std::int64_t> new_rows);
  /// Counts characters whose keys and values all layers have appended.
  void count(std::span<const std::int64_t> new_rows);

  /// [pages, kHeads, kPageRows, kHeadDim] on the device.
  const heddle::Tensor& keys(std::size_t layer) const { return keys_[layer]; }
  const heddle::Tensor& values(std::size_t layer) const { return values_[layer]; }
  /// i32 [sequences, pages], on the device.
  const heddle::Tensor& table() const { return table_; }
  std::span<const std::int64_t> lengths() const { return lengths_; }
  const heddle::Device& device() const { return device_; }

  /// A character a page: the sequence that has it, or a dot where it is free.
  std::string picture() const;

 private:
  heddle::Device device_;
  std::vector<heddle::Tensor> keys_, values_;
  heddle::Tensor table_;
  std::vector<std::vector<std::int32_t>> pages_;  // of each sequence
  std::vector<std::int32_t> free_;                // the next one last
  std::vector<std::int64_t> lengths_;
};
