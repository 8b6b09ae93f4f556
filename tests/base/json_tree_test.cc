#include "base/json_tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "count_allocations.h"
#include "expect_error.h"

namespace heddle::base {
namespace {

JsonTree tree() {
  JsonTree made = JsonTree::object()
                      .add("text", "a \"word\"\n")
                      .add("whole", -3)
                      .add("natural", std::numeric_limits<std::uint64_t>::max())
                      .add("real", 0.1)
                      .add("no number", std::nan(""))
                      .add("is", true)
                      .add("nothing", nullptr)
                      .add("list", JsonTree::array_of(1, "two", nullptr))
                      .add("texts", std::vector<std::string>{"a", "b"})
                      .add("empty list", JsonTree::array())
                      .add("empty object", JsonTree::object());
  made.add("object", JsonTree::object().add("z", 1).add("a", JsonTree::object().add("deep", false)));
  made["added"] = 5;
  made["added"] = std::string("again");
  return made;
}

TEST(JsonTree, IsWrittenAsNlohmannWritesIt) {
  const auto same = nlohmann::ordered_json::parse(tree().dump());
  EXPECT_EQ(tree().dump(), same.dump());
  EXPECT_EQ(tree().dump(2), same.dump(2));
  EXPECT_EQ(same.size(), 13U);
  EXPECT_EQ(same["text"], "a \"word\"\n");
  EXPECT_EQ(same["natural"], std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(same["real"], 0.1);
  EXPECT_TRUE(same["no number"].is_null());
  EXPECT_EQ(same["list"], nlohmann::ordered_json({1, "two", nullptr}));
  EXPECT_EQ(same["object"].begin().key(), "z");
  EXPECT_EQ(same["added"], "again");
  EXPECT_EQ(JsonTree("\xff").dump(), "\"\xef\xbf\xbd\"");
}

TEST(JsonTree, IsRead) {
  const JsonTree made = tree();
  EXPECT_EQ(made.at("text").text(), "a \"word\"\n");
  EXPECT_EQ(made.at("whole").number(), -3);
  EXPECT_EQ(made.at("real").number(), 0.1);
  EXPECT_TRUE(made.at("is").is_true() && made.at("nothing").is_null() && made.at("list").is_array());
  EXPECT_EQ(made.at("list").at(1), JsonTree("two"));
  EXPECT_EQ(made.members().size(), 13U);
  EXPECT_TRUE(made.contains("added"));
  EXPECT_FALSE(made.contains("more"));
  EXPECT_FALSE(JsonTree().contains("x"));
  EXPECT_EQ(made.at("object"), tree().at("object"));
  EXPECT_NE(made, JsonTree());
  expect_error([&] { made.at("list").text(); }, ErrorCode::internal, "a value of JSON is [1,\"two\",null], not a text");
  expect_error([&] { made.at("list").at(3); }, ErrorCode::internal, "[1,\"two\",null] has no element 3");
  expect_error([] { JsonTree::object().add("a", 1).at("b"); }, ErrorCode::internal, "{\"a\":1} has no member 'b'");
  expect_error([] { JsonTree(1).push_back(2); }, ErrorCode::internal, "a value of JSON is 1, not an array");
}

// A tree is destroyed even if memory is out.
TEST(JsonTree, IsDestroyedWithoutAllocations) {
  auto* const made = new JsonTree(tree());
  EXPECT_EQ(test::allocations_of([&] { delete made; }), 0);
}

}  // namespace
}  // namespace heddle::base
