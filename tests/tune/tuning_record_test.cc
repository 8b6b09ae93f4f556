// Records of measurements on disk: what is kept, and what is not trusted.
#include "tune/tuning_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "backend/libraries/own_folder.h"
#include "scoped_environment.h"

namespace heddle::tune {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kClass = "heddle on a machine\nforward";
const Record kRecord = {.times = {{"a 1 x 2", 0.5}, {"b 3 x 4", 0.75}}, .planned = "b 3 x 4"};

class Records : public testing::Test {
 protected:
  OwnFolder folder_;
  fs::path cache_ = folder_.path() / "cache";
  ScopedVariable variable_{"HEDDLE_CACHE_DIR", cache_.c_str()};

  fs::path only_file() const { return fs::directory_iterator(cache_)->path(); }

  /// The trouble reported for the stored record after `change` is made to its text.
  template <class Change>
  std::string trouble_after(Change&& change) {
    std::string trouble;
    store(kClass, kRecord, trouble);
    EXPECT_EQ(trouble, "");
    std::stringstream text;
    text << std::ifstream(only_file()).rdbuf();
    std::ofstream(only_file()) << change(text.str());
    EXPECT_EQ(load(kClass, trouble), std::nullopt);
    return trouble;
  }
};

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  EXPECT_NE(text.find(what), std::string::npos) << text;
  return text.replace(text.find(what), what.size(), with);
}

TEST_F(Records, AreReadAsTheyWereStored) {
  std::string trouble;
  store(kClass, kRecord, trouble);
  EXPECT_EQ(load(kClass, trouble), kRecord);
  EXPECT_EQ(load("heddle on another machine\nforward", trouble), std::nullopt);
  EXPECT_EQ(trouble, "");
}

TEST_F(Records, AreReplaced) {
  std::string trouble;
  store(kClass, {.times = {{"c", 0.25}}, .planned = "c"}, trouble);
  store(kClass, kRecord, trouble);
  EXPECT_EQ(load(kClass, trouble), kRecord);
  EXPECT_EQ(std::distance(fs::directory_iterator(cache_), fs::directory_iterator()), 1);
}

TEST_F(Records, ALookForOneMakesNoFolder) {
  std::string trouble;
  EXPECT_EQ(load(kClass, trouble), std::nullopt);
  EXPECT_EQ(trouble, "");
  EXPECT_FALSE(fs::exists(cache_));
}

TEST_F(Records, ThatAreDamagedCountAsNone) {
  EXPECT_THAT(trouble_after([](const std::string& text) { return text.substr(0, text.size() / 2); }),
              HasSubstr("is damaged"));
  EXPECT_THAT(trouble_after([](const std::string&) { return "[1]"; }), HasSubstr("is damaged"));
  EXPECT_THAT(
      trouble_after([](const std::string& text) { return replaced(text, "\"seconds\":0.5", "\"seconds\":\"x\""); }),
      HasSubstr("is damaged"));
}

TEST_F(Records, WhoseTimesAreNoneCountAsNone) {
  for (const char* time : {"-0.5", "0.875", "1e999"}) {
    const std::string trouble = trouble_after(
        [&](const std::string& text) { return replaced(text, "\"seconds\":0.5", std::string("\"seconds\":") + time); });
    EXPECT_THAT(trouble, HasSubstr("it counts as none")) << time;
  }
  EXPECT_THAT(trouble_after([](const std::string& text) {
                const std::size_t begin = text.find('[');
                return text.substr(0, begin) + "[]}";
              }),
              HasSubstr("has times that are none"));
}

TEST_F(Records, OfAnotherProblemInTheSameFileCountAsNone) {
  EXPECT_THAT(trouble_after([](const std::string& text) { return replaced(text, "forward", "backward"); }),
              HasSubstr("is of another problem"));
}

TEST_F(Records, AFolderThatOthersMayWriteToIsNotTrusted) {
  std::string trouble;
  store(kClass, kRecord, trouble);
  ASSERT_EQ(::chmod(cache_.c_str(), 0777), 0);
  EXPECT_EQ(load(kClass, trouble), std::nullopt);
  EXPECT_THAT(trouble, HasSubstr("others may write to it"));
  trouble.clear();
  store(kClass, kRecord, trouble);
  EXPECT_THAT(trouble, HasSubstr("what was measured is not kept"));
}

TEST_F(Records, AFolderThatCannotBeMadeIsTold) {
  std::ofstream(folder_.path() / "file") << "x";
  const ScopedVariable inside_a_file("HEDDLE_CACHE_DIR", (folder_.path() / "file" / "cache").c_str());
  std::string trouble;
  store(kClass, kRecord, trouble);
  EXPECT_THAT(trouble, HasSubstr("cannot be used: Not a directory; what was measured is not kept"));
}

TEST_F(Records, WithoutAPlaceAreNotKept) {
  const ScopedVariable none("HEDDLE_CACHE_DIR", nullptr), xdg("XDG_CACHE_HOME", nullptr), home("HOME", nullptr);
  std::string trouble;
  store(kClass, kRecord, trouble);
  EXPECT_THAT(trouble, HasSubstr("neither HEDDLE_CACHE_DIR, XDG_CACHE_HOME nor HOME is set"));
}

}  // namespace
}  // namespace heddle::tune
