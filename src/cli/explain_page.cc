#include "explain_page.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "heddle/error.h"
#include "page_text.h"

namespace heddle::cli {
namespace {

constexpr std::int64_t kMostNumbers = 300'000;  // of the page, some 2 MB

/// One score matrix: the rows of blocks that differ, each as [begin, end, 1 if full, ...], and for each row which of
/// them it is. Null if it takes more than `room` numbers.
Json matrix_json(const BlockMask& mask, std::int64_t sequence, std::int64_t head, std::int64_t& room) {
  std::map<std::vector<std::int64_t>, std::int64_t> known;
  Json rows = Json::array(), index = Json::array();
  for (std::int64_t q_block = 0; q_block < mask.q_blocks(sequence); ++q_block) {
    std::vector<std::int64_t> row;
    for (const Run& run : mask.row(sequence, head, q_block)) {
      row.insert(row.end(), {run.begin, run.end, run.kind == RunKind::full ? 1 : 0});
    }
    const auto [at, is_new] = known.emplace(row, static_cast<std::int64_t>(known.size()));
    room -= 1 + (is_new ? static_cast<std::int64_t>(row.size()) : 0);
    if (room < 0) return nullptr;
    if (is_new) rows.push_back(row);
    index.push_back(at->second);
  }
  return {{"rows", std::move(rows)}, {"index", std::move(index)}};
}

/// "sequence 1, head 0", or what all of them share.
std::string name_of(const BlockMask& mask, std::int64_t sequence, std::int64_t head) {
  const std::string first = mask.shared_by_batch() ? "sequences of this length, first" : "sequence";
  const std::string second = mask.shared_by_heads() ? "all heads" : fmt::format("head {}", head);
  return fmt::format("{} {}, {}", first, sequence, second);
}

}  // namespace

Json mask_for_page(const BlockMask* mask) {
  if (mask == nullptr) return nullptr;
  if (mask->is_transposed()) {
    const BlockMask rows = mask->transposed();
    return mask_for_page(&rows);
  }
  const std::vector<Sequence>& sequences = mask->shape().sequences;
  Json matrices = Json::array();
  std::int64_t room = kMostNumbers, left_out = 0;
  std::map<std::pair<std::int64_t, std::int64_t>, bool> drawn;  // lengths, of masks that equal sequences share
  for (std::int64_t sequence = 0; sequence < std::ssize(sequences); ++sequence) {
    const Sequence& one = sequences[static_cast<std::size_t>(sequence)];
    if (mask->shared_by_batch() && !drawn.emplace(std::pair{one.q_len, one.kv_len}, true).second) continue;
    const std::int64_t heads = mask->shared_by_heads() ? 1 : mask->shape().heads;
    for (std::int64_t head = 0; head < heads; ++head) {
      std::int64_t left = room;
      Json matrix = left_out > 0 ? Json() : matrix_json(*mask, sequence, head, left);
      if (matrix.is_null()) {
        ++left_out;
        continue;
      }
      room = left;
      matrix["name"] = name_of(*mask, sequence, head);
      matrix["q_len"] = one.q_len;
      matrix["kv_len"] = one.kv_len;
      matrix["q_blocks"] = mask->q_blocks(sequence);
      matrix["kv_blocks"] = mask->kv_blocks(sequence);
      matrices.push_back(std::move(matrix));
    }
  }
  Json json = {{"block", {mask->block().q, mask->block().kv}}, {"left_out", left_out}, {"picture", nullptr}};
  if (matrices.empty() && left_out > 0) json["picture"] = mask->svg(0, 0);
  json["matrices"] = std::move(matrices);
  return json;
}

std::string explain_page(const Json& data) {
  std::string page;
  for (const char* const* piece = page_texts()->pieces; *piece != nullptr; ++piece) page += *piece;
  constexpr std::string_view kPlace = "@DATA@";
  const std::size_t place = page.find(kPlace);
  if (place == std::string::npos) throw Error(ErrorCode::internal, "the page of explain has no place for its data");
  // A mod's text may hold "</script>": within JSON's strings alone, where \u003c is the same character.
  std::string text;
  for (const char character : data.dump()) {
    if (character == '<') {
      text += "\\u003c";
    } else {
      text += character;
    }
  }
  return page.replace(place, kPlace.size(), text);
}

}  // namespace heddle::cli
