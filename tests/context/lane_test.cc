// Exchanges of one call: in order, beside the caller, and left out after an error.
#include "context/lane.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

namespace heddle::context {
namespace {

TEST(Lane, AtOnceOnTheStreamOfAttention) {
  int word = 0;
  Lane lane(&word);
  void* seen = nullptr;
  lane.start(0, [&](void* stream) { seen = stream; });
  EXPECT_EQ(seen, &word);
  lane.wait_for(0);
  EXPECT_THROW(lane.start(1, [](void*) { throw std::runtime_error("gone"); }), std::runtime_error);
}

TEST(Lane, RunsBesideTheCallerInOrder) {
  Lane lane(nullptr, nullptr);
  std::promise<void> goes_on;
  std::vector<int> order;
  lane.start(0, [&, waits = goes_on.get_future().share()](void*) {
    waits.wait();
    order.push_back(0);
  });
  for (int mark = 1; mark < Lane::kMarks; ++mark) lane.start(mark, [&, mark](void*) { order.push_back(mark); });
  goes_on.set_value();  // the caller came here while the first one waited
  lane.wait_for(3);
  lane.wait_for(Lane::kMarks - 1);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
  lane.start(1, [&](void*) { order.push_back(5); });
  lane.wait_for(1);
  EXPECT_EQ(order.back(), 5) << "a mark is of its last exchange";
}

TEST(Lane, LeavesOutWhatFollowsAnError) {
  Lane lane(nullptr, nullptr);
  bool went_on = false;
  lane.start(0, [](void*) {});
  lane.start(1, [](void*) { throw std::runtime_error("gone"); });
  lane.start(2, [&](void*) { went_on = true; });
  EXPECT_THROW(lane.wait_for(2), std::runtime_error);
  EXPECT_THROW(lane.wait_for(1), std::runtime_error);
  lane.wait_for(0);
  lane.wait_for(4);  // none was started
  EXPECT_FALSE(went_on);
}

/// Notes what it is asked.
class NotedStream final : public backend::SideStream {
 public:
  void* stream() const override { return const_cast<NotedStream*>(this); }
  void follow(void*) override { notes.emplace_back("follow"); }
  void mark(int number) override { notes.push_back("mark " + std::to_string(number)); }
  void wait_for(int number, void*) const override { notes.push_back("wait " + std::to_string(number)); }
  mutable std::vector<std::string> notes;
};

TEST(Lane, OrdersTheStreamsOfAGpu) {
  NotedStream side;
  int attention = 0;
  {
    Lane lane(&attention, &side);
    lane.start(2, [&](void* stream) {
      EXPECT_EQ(stream, &side);
      side.notes.emplace_back("exchange");
    });
    lane.wait_for(2);
  }
  EXPECT_EQ(side.notes, (std::vector<std::string>{"follow", "exchange", "mark 2", "wait 2"}));
  side.notes.clear();
  EXPECT_THROW(
      {
        Lane lane(&attention, &side);
        throw std::runtime_error("gone");
      },
      std::runtime_error);
  EXPECT_EQ(side.notes.size(), static_cast<std::size_t>(Lane::kMarks)) << "waits for each mark";
}

TEST(Lane, EndsWithTheExchangeAtHand) {
  std::promise<void> began;
  bool ended = false, went_on = false;
  {
    Lane lane(nullptr, nullptr);
    lane.start(0, [&](void*) {
      began.set_value();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ended = true;
    });
    began.get_future().wait();
    lane.start(1, [&](void*) { went_on = true; });
  }
  EXPECT_TRUE(ended);
  EXPECT_FALSE(went_on);
}

}  // namespace
}  // namespace heddle::context
