#include "heddle/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/report.h"
#include "expect_error.h"
#include "scoped_environment.h"

namespace heddle {
namespace {

using Json = nlohmann::json;

/// Each test reads HEDDLE_LOG anew, in a process of its own: it is read once.
class Events : public testing::Test {
 protected:
  Events() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ~Events() override { set_event_listener({}); }
};

TEST_F(Events, NobodyHearsThemByDefault) {
  EXPECT_FALSE(base::hears_events());
  EXPECT_EQ(base::hearing.load(), base::Hearing::nobody);
  base::report("plan", base::JsonObject().add("ms", 1.0));
}

TEST_F(Events, AListenerHearsALineOfJson) {
  std::vector<std::string> heard;
  set_event_listener([&](const std::string& event) { heard.push_back(event); });
  EXPECT_TRUE(base::hears_events());
  base::report("plan", base::JsonObject().add("family", "cpu").add("reason", "two\nlines, and \xff no UTF-8"));
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_THAT(heard[0], testing::Not(testing::HasSubstr("\n")));
  const Json event = Json::parse(heard[0]);
  EXPECT_EQ(event["event"], "plan");
  EXPECT_EQ(event["family"], "cpu");
  EXPECT_GT(event["time"].get<double>(), 1.7e9);
  EXPECT_GT(event["process"].get<int>(), 0);
  set_event_listener({});
  EXPECT_FALSE(base::hears_events());
  base::report("plan", {});
  EXPECT_EQ(heard.size(), 1U);
}

TEST_F(Events, WhatAListenerThrowsIsDropped) {
  set_event_listener([](const std::string&) { throw std::runtime_error("no"); });
  base::report("plan", {});
}

/// In a process of its own. Exits with 0 if `check` holds.
void exit_with(bool check) { std::_Exit(check ? 0 : 1); }

TEST_F(Events, AFileGetsLines) {
  const std::string file = testing::TempDir() + "/heddle_events.log";
  std::filesystem::remove(file);
  EXPECT_EXIT(
      {
        const ScopedVariable log("HEDDLE_LOG", file.c_str());
        base::hearing = base::Hearing::unknown;
        const bool hears = base::hears_events();
        base::report("plan", base::JsonObject().add("n", 1));
        base::report("refusal", base::JsonObject().add("n", 2));
        exit_with(hears);
      },
      testing::ExitedWithCode(0), "");
  std::ifstream lines(file);
  std::string line;
  std::vector<Json> events;
  while (std::getline(lines, line)) events.push_back(Json::parse(line));
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0]["n"], 1);
  EXPECT_EQ(events[1]["event"], "refusal");
  std::filesystem::remove(file);
}

TEST_F(Events, ALogThatCannotBeOpenedIsAnError) {
  EXPECT_EXIT(
      {
        const ScopedVariable log("HEDDLE_LOG", "/no/such/folder/log");
        base::hearing = base::Hearing::unknown;
        expect_error([] { base::hears_events(); }, ErrorCode::io,
                     testing::HasSubstr("HEDDLE_LOG is '/no/such/folder/log'"));
        exit_with(!testing::Test::HasFailure());
      },
      testing::ExitedWithCode(0), "");
}

/// In an empty folder, which must be empty afterwards unless `file` is expected in it.
void report_with(const char* value, const char* file = nullptr) {
  const std::filesystem::path folder = testing::TempDir() + "/heddle_events_" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  std::filesystem::current_path(folder);
  const ScopedVariable log("HEDDLE_LOG", value);
  base::hearing = base::Hearing::unknown;
  if (base::hears_events()) base::report("plan", {});
  const bool as_expected = file == nullptr ? std::filesystem::is_empty(folder) : std::filesystem::exists(file);
  std::filesystem::remove_all(folder);
  exit_with(as_expected);
}

TEST_F(Events, AMinusAndAOneAreStderr) {
  for (const char* value : {"-", "1"}) {
    EXPECT_EXIT(report_with(value), testing::ExitedWithCode(0), "\"event\":\"plan\"") << value;
  }
}

TEST_F(Events, AZeroIsNobody) { EXPECT_EXIT(report_with("0"), testing::ExitedWithCode(0), "^$"); }

TEST_F(Events, APathToAOneIsAFile) { EXPECT_EXIT(report_with("./1", "1"), testing::ExitedWithCode(0), "^$"); }

}  // namespace
}  // namespace heddle
