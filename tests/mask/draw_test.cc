// Pictures of block masks: exact text, well-formed and bounded SVG.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "expect_error.h"
#include "heddle/block_mask.h"
#include "mask/random_mask.h"

namespace heddle::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const Expr kCausal = leaf::kv_idx() <= leaf::q_idx();

/// Empty when every tag is closed in order, attributes are quoted, and no text holds a bare special character.
std::string xml_fault(const std::string& text) {
  std::vector<std::string> open;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '&') {
      const std::size_t end = text.find(';', at);
      const std::string entity = text.substr(at, end - at + 1);
      if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;") return "entity " + entity;
      at = end + 1;
      continue;
    }
    if (text[at] == '>') return "a bare > at " + std::to_string(at);
    if (text[at] != '<') {
      at = std::min(text.find_first_of("<>&", at), text.size());
      continue;
    }
    const std::size_t end = text.find('>', at);
    if (end == std::string::npos) return "an open tag at " + std::to_string(at);
    std::string tag = text.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.find('<') != std::string::npos || std::ranges::count(tag, '"') % 2 != 0) return "tag " + tag;
    if (tag[0] == '/') {
      if (open.empty() || "/" + open.back() != tag) return "closes " + tag;
      open.pop_back();
      continue;
    }
    const bool closed = tag.back() == '/';
    if (closed) tag.pop_back();
    // The rest without the quoted values: a name, and names of attributes with their equals sign.
    std::string names;
    bool quoted = false;
    for (const char c : tag) {
      if (c == '"') quoted = !quoted;
      if (!quoted && c != '"') names += c;
    }
    if (names.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-:= ") !=
        std::string::npos) {
      return "names " + names;
    }
    if (!closed) open.push_back(tag.substr(0, tag.find(' ')));
  }
  return open.empty() ? "" : "open " + open.back();
}

/// The closed figures of a picture's paths.
std::int64_t bars(const std::string& svg) {
  std::int64_t count = 0;
  for (std::size_t at = svg.find(" d=\""); at != std::string::npos; at = svg.find(" d=\"", at + 1)) {
    const std::string path = svg.substr(at, svg.find('"', at + 4) - at);
    count += std::ranges::count(path, 'z');
  }
  return count;
}

TEST(BlockMaskText, IsACharacterABlock) {
  const BlockMask mask =
      BlockMask::build(kCausal & (leaf::q_idx() - leaf::kv_idx() < 6), MaskShape::uniform(1, 1, 10, 12), {2, 3});
  EXPECT_EQ(mask.text(),
            "+...\n"
            "#+..\n"
            "#+..\n"
            "+#+.\n"
            ".+#+\n");
  EXPECT_EQ(mask.transposed().text(),
            "+##+.\n"
            ".++#+\n"
            "...+#\n"
            "....+\n");
}

TEST(BlockMaskText, CoarsensBeyond128) {
  const BlockMask mask = BlockMask::build(kCausal, MaskShape::uniform(1, 1, 300, 600), {1, 1});
  const std::string text = mask.text();
  EXPECT_EQ(std::ranges::count(text, '\n'), 100);  // 3 blocks a line
  EXPECT_EQ(text.find('\n'), 120U);                // 5 a column
  EXPECT_EQ(text.substr(0, 3), "+..");
  for (std::size_t r = 0; r < 100; ++r) {
    for (std::size_t c = 0; c < 120; ++c) {
      const char expected = 5 * c + 4 <= 3 * r ? '#' : 5 * c > 3 * r + 2 ? '.' : '+';
      ASSERT_EQ(text[r * 121 + c], expected) << r << ", " << c;
    }
  }
}

TEST(BlockMaskText, ShowsTheHeadThatIsAskedFor) {
  const BlockMask mask =
      BlockMask::build(leaf::kv_idx() < 2 * leaf::h() + leaf::b(), MaskShape::uniform(2, 2, 2, 4), {2, 2});
  EXPECT_EQ(mask.text(0, 0), "..\n");
  EXPECT_EQ(mask.text(0, 1), "#.\n");
  EXPECT_EQ(mask.text(1, 0), "+.\n");
  EXPECT_EQ(mask.text(1, 1), "#+\n");
  expect_error([&] { mask.text(0, 2); }, ErrorCode::invalid_argument,
               std::string("the block mask has no head 2; it covers 2"));
  expect_error([&] { mask.svg(2, 0); }, ErrorCode::invalid_argument,
               std::string("the block mask has no sequence 2; it covers 2"));
}

TEST(BlockMaskText, OfNothingIsNothing) {
  EXPECT_EQ(BlockMask::build(kCausal, MaskShape::uniform(1, 1, 0, 5), {2, 2}).text(), "");
  EXPECT_EQ(BlockMask::build(kCausal, MaskShape::uniform(1, 1, 3, 0), {2, 2}).text(), "\n\n");
}

TEST(BlockMaskSvg, SaysWhatItShows) {
  const std::string svg = BlockMask::build(kCausal, MaskShape::uniform(1, 2, 512, 512), {128, 128}).svg(0, 1);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_THAT(svg, HasSubstr("kv_idx &lt;= q_idx"));
  EXPECT_THAT(svg, HasSubstr("sequence 0, head 1"));
  EXPECT_THAT(svg, HasSubstr("4 \u00d7 4 blocks of 128 \u00d7 128"));
  EXPECT_THAT(svg, HasSubstr(">queries (q_idx)<"));
  EXPECT_THAT(svg, HasSubstr(">keys (kv_idx)<"));
  for (const char* label : {">0<", ">128<", ">256<", ">384<", ">512<"}) EXPECT_THAT(svg, HasSubstr(label));
  EXPECT_THAT(svg, HasSubstr(">6<"));       // full
  EXPECT_THAT(svg, HasSubstr(">37.5 %<"));  // full and empty
  EXPECT_THAT(svg, HasSubstr(">25.0 %<"));  // partial
  EXPECT_THAT(svg, HasSubstr(">62.5 %<"));  // density
}

TEST(BlockMaskSvg, DrawsEqualRowsOnce) {
  const BlockMask mask = BlockMask::build(leaf::kv_idx() < 64, MaskShape::uniform(1, 1, 128, 128), {16, 16});
  const std::string svg = mask.svg();
  EXPECT_EQ(bars(svg), 1);
  EXPECT_THAT(svg, HasSubstr("h280v560h-280z")) << "half of the plot's width, all of its height";
}

TEST(BlockMaskSvg, StaysSmall) {
  constexpr std::int64_t kMillion = 1 << 20;
  const std::string svg = BlockMask::build(kCausal, MaskShape::uniform(1, 1, kMillion, kMillion), {128, 128}).svg();
  EXPECT_LT(svg.size(), 60000U);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_THAT(svg, HasSubstr("1\u2009048\u2009576"));
  EXPECT_THAT(svg, HasSubstr("8\u2009192 \u00d7 8\u2009192 blocks of 128 \u00d7 128, drawn 32 \u00d7 32 to a cell"));

  const BlockMask noise = BlockMask::build(random_uniform(1, 0, 0, leaf::q_idx(), leaf::kv_idx()) < 0.5,
                                           MaskShape::uniform(1, 1, 1024, 1024), {4, 4});
  EXPECT_LT(noise.svg().size(), 3000000U);
  const BlockMask every_second =
      BlockMask::build((leaf::q_idx() + leaf::kv_idx()) % 2 == 0, MaskShape::uniform(1, 1, 512, 512), {1, 1});
  EXPECT_LT(every_second.svg().size(), 1 << 20) << "two blocks a side make one cell of one mixture";
}

TEST(BlockMaskSvg, IsWellFormedForAnyMask) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    RandomMasks random(seed);
    const Expr mask = random.draw();
    const BlockMask built = BlockMask::build(mask, random.shape(), random.block(), random.bindings());
    EXPECT_EQ(xml_fault(built.svg()), "") << print(mask);
    EXPECT_THAT(built.svg(), Not(HasSubstr("nan")));
    EXPECT_THAT(built.transposed().svg(), HasSubstr("Block mask, transposed"));
  }
}

TEST(BlockMaskSvg, CutsWhatNobodyReads) {
  Expr sum = leaf::q_idx();
  for (int i = 0; i < 40; ++i) sum = sum * leaf::kv_idx() + leaf::q_idx();
  const MaskShape shape = MaskShape::uniform(1, 1, 4, 4);
  EXPECT_THAT(BlockMask::build(sum > 0, shape, {2, 2}).svg(), HasSubstr("\u2026</text>"));
  // So many terms give a text too long to print.
  std::vector<Expr> terms;
  for (int i = 0; i < 8192; ++i) terms.push_back(leaf::kv_idx() == 100'000 + i);
  for (; terms.size() > 1; terms.resize(terms.size() / 2)) {
    for (std::size_t i = 0; i < terms.size() / 2; ++i) terms[i] = terms[2 * i] || terms[2 * i + 1];
  }
  const std::string svg = BlockMask::build(terms[0], shape, {2, 2}).svg();
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_THAT(svg, HasSubstr("a mask of "));
}

TEST(BlockMaskSvg, SaysWhenThereIsNoExpression) {
  const MaskShape shape = MaskShape::uniform(1, 1, 4, 4);
  const BlockMask all = BlockMask::build({}, shape, {2, 2});
  EXPECT_THAT(all.svg(), HasSubstr("everything attends"));
  EXPECT_THAT(BlockMask::from_lists(all.to_lists(), shape, {2, 2}).svg(), HasSubstr("given lists"));
}

}  // namespace
}  // namespace heddle::test
