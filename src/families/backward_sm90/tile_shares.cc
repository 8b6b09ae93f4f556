#include "families/backward_sm90/tile_shares.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "families/backward_sm90/backward_sm90.h"

namespace heddle::plan {
namespace {

using shared::BackwardItem;
using shared::BackwardSm90Config;
using shared::QueryRun;

/// By panels of 64 columns. With two and four fitted to bench/compare.py --backward on an H200, S 512 to 8192, full and
/// causal, which they meet within 5 and 8 % (docs/notes/compare_backward.md); with one to the times of S 512 and 8192
/// before there was a warpgroup for dQ. With three not measured: by what shared memory moves in a step.
constexpr BackwardClocks kClocks[] = {{2250, 8300}, {3480, 14600}, {3950, 13000}, {5050, 11500}};
/// If a warpgroup of its own computes dQ; also fitted, within 6 %.
constexpr BackwardClocks kApartClocks = {1960, 5800};

// Bytes that a multiprocessor writes to the L2 cache or reads there in a clock, and what counting takes. Estimates.
constexpr double kBytesAClock = 50, kCountClocks = 3000;
// Lists are cut where the time predicted without is this much above that of equal work for all, and of what the cut
// list takes. With less, times measured on an H200 were 0 to 1.3 % longer.
constexpr double kWorthwhile = 1.02;
// Ends of the list that are tried: so many, at most. Of those predicted to end within 0.2 % of the soonest the shortest
// is cut, since tiles that begin together read the same queries at the same time.
constexpr std::size_t kTriedEnds = 32;
constexpr double kEndsAlike = 1.002;

/// When multiprocessors are free, the first one first.
class Multiprocessors {
 public:
  explicit Multiprocessors(int count) : free_({}, std::vector<double>(static_cast<std::size_t>(count))) {}
  double run(double clocks) {
    const double end = free_.top() + clocks;
    free_.pop();
    free_.push(end);
    end_ = std::max(end_, end);
    return end;
  }
  double first_free() const { return free_.top(); }
  double end() const { return end_; }
  std::vector<double> sorted() const {
    auto free = free_;
    std::vector<double> times;
    for (; !free.empty(); free.pop()) times.push_back(free.top());
    return times;
  }

 private:
  std::priority_queue<double, std::vector<double>, std::greater<>> free_;
  double end_ = 0;
};

/// Steps [first, first + steps) of an item.
struct Piece {
  std::size_t item;
  int first, steps;
  double begin;
};

struct Costs {
  BackwardClocks clocks;
  double place;  // a share's sums, written or read

  explicit Costs(const BackwardSm90Config& config)
      : clocks(backward_sm90_clocks(config)), place(4 * config.share_floats() / config.tile_ctas() / kBytesAClock) {}
  double of(int steps) const { return clocks.tile + clocks.step * steps; }
  double of_share() const { return place + kCountClocks; }
};

/// Deals the steps of items to multiprocessors that are free at these times, so that each ends at `end` at the latest,
/// and a tile has `most_shares` at most. Empty if not all steps find room.
std::vector<Piece> dealt(std::span<const BackwardItem> items, const std::vector<double>& free, double end,
                         int most_shares, const Costs& costs) {
  std::vector<Piece> pieces;
  std::size_t item = 0;
  int done = 0;
  const auto pass = [&] {
    while (item < items.size() && done == items[item].steps) {
      if (items[item].steps == 0) pieces.push_back({item, 0, 0, free.front()});
      ++item;
      done = 0;
    }
  };
  pass();
  for (double time : free) {
    while (item < items.size()) {
      const int steps = items[item].steps, left = steps - done;
      const int least = std::max(1, (steps + most_shares - 1) / most_shares);
      const double room = end - time;
      int taken = done == 0 && costs.of(steps) <= room ? steps : 0;
      if (taken == 0) {
        const double of_steps = room - costs.of(0) - costs.of_share();
        taken = std::min(left, static_cast<int>(std::floor(std::max(0.0, of_steps) / costs.clocks.step)));
        if (taken < left) taken = std::min(taken, left - least);
        if (taken < std::min(least, left)) break;
      }
      pieces.push_back({item, done, taken, time});
      time += costs.of(taken) + (taken < steps ? costs.of_share() : 0);
      done += taken;
      pass();
    }
  }
  if (item < items.size()) pieces.clear();
  return pieces;
}

struct Cut {
  std::size_t first = 0;  // of the items that are dealt
  std::vector<Piece> pieces{};
  double end = 0;
};

/// The end of the list from item `first` on, dealt so that it ends as early as possible with so many shares.
Cut best_cut(const std::vector<BackwardItem>& items, std::size_t first, const Multiprocessors& before, int most_shares,
             const Costs& costs, double end_uncut) {
  const std::span<const BackwardItem> tail = std::span(items).subspan(first);
  const std::vector<double> free = before.sorted();
  double low = before.first_free(), high = end_uncut;
  Cut cut{.first = first, .pieces = dealt(tail, free, high, most_shares, costs), .end = high};
  constexpr double kPrecision = 0.25;  // of a step
  while (!cut.pieces.empty() && high - low > kPrecision * costs.clocks.step) {
    const double middle = (low + high) / 2;
    std::vector<Piece> pieces = dealt(tail, free, middle, most_shares, costs);
    if (pieces.empty()) {
      low = middle;
    } else {
      high = middle;
      cut.pieces = std::move(pieces);
    }
  }
  std::vector<int> shares(tail.size());
  for (const Piece& piece : cut.pieces) ++shares[piece.item];
  const int most = shares.empty() ? 0 : *std::ranges::max_element(shares);
  cut.end = std::max(high, before.end()) + (most > 1 ? most * costs.place : 0);
  return cut;
}

/// Gives the pieces of each item its steps in the order in which they begin, so that CTAs with keys of one head are at
/// about the same queries at any time, as those with whole tiles are: what one has read is in L2 for the others.
void order_by_begin(std::vector<Piece>& pieces) {
  std::ranges::stable_sort(pieces, {}, [](const Piece& piece) { return std::pair(piece.item, piece.begin); });
  for (std::size_t p = 1; p < pieces.size(); ++p) {
    const Piece& before = pieces[p - 1];
    pieces[p].first = pieces[p].item == before.item ? before.first + before.steps : 0;
  }
}

/// Puts the pieces in the place of the items that they are cut from. Returns how many places shares have.
int apply(Cut cut, BackwardSchedule& schedule) {
  order_by_begin(cut.pieces);
  const std::vector<BackwardItem> tail(schedule.items.begin() + static_cast<std::ptrdiff_t>(cut.first),
                                       schedule.items.end());
  schedule.items.resize(cut.first);
  std::vector<int> shares(tail.size()), place(tail.size()), number(tail.size());
  int places = 0;
  for (const Piece& piece : cut.pieces) ++shares[piece.item];
  for (std::size_t i = 0; i < tail.size(); ++i) {
    place[i] = places;
    if (shares[i] > 1) places += shares[i];
  }
  std::vector<std::pair<double, BackwardItem>> items;
  for (const Piece& piece : cut.pieces) {
    BackwardItem item = tail[piece.item];
    if (shares[piece.item] > 1) {
      item = share_of(item, piece.first, piece.steps, schedule);
      item.share = shared::share_word(place[piece.item], number[piece.item]++, shares[piece.item]);
    }
    items.emplace_back(piece.begin, item);
  }
  std::ranges::stable_sort(items, {}, &std::pair<double, BackwardItem>::first);
  for (const auto& [begin, item] : items) schedule.items.push_back(item);
  schedule.longest = 0;
  for (const BackwardItem& item : schedule.items) {
    schedule.longest = std::max<std::int64_t>(schedule.longest, item.steps);
  }
  return places;
}

}  // namespace

BackwardClocks backward_sm90_clocks(const BackwardSm90Config& config) {
  if (config.d_q_apart) return kApartClocks;
  return kClocks[static_cast<std::size_t>(std::max(config.qk_panels(), config.v_panels()) - 1)];
}

BackwardItem share_of(BackwardItem item, int first, int steps, BackwardSchedule& schedule) {
  const int first_run = static_cast<int>(schedule.runs.size());
  int skipped = first, left = steps;
  for (int r = item.first_run; r < item.first_run + item.runs && left > 0; ++r) {
    QueryRun run = schedule.runs[static_cast<std::size_t>(r)];
    const int passed = std::min(skipped, run.end - run.begin);
    skipped -= passed;
    run.begin += passed;
    run.end = std::min(run.end, run.begin + left);
    left -= run.end - run.begin;
    if (run.begin < run.end) schedule.runs.push_back(run);
  }
  item.first_run = first_run;
  item.runs = static_cast<int>(schedule.runs.size()) - first_run;
  item.steps = steps;
  return item;
}

bool takes_shares(const problem::AttentionProblem& problem, const BackwardSm90Config& config) {
  return !config.ordered && !problem.device_lengths && problem.wanted.captures.empty() && problem.wanted.params.empty();
}

int share_tiles(const BackwardSm90Config& config, int multiprocessors, std::int64_t most, BackwardSchedule& schedule) {
  const std::vector<BackwardItem>& items = schedule.items;
  // The list is that of all kernels for the work, whichever the compiler takes: the fastest one's times count.
  const std::vector<BackwardSm90Config> apart = with_d_q_apart(config);
  const Costs costs(apart.empty() ? config : apart.front());
  const auto count = static_cast<std::size_t>(std::max(1, multiprocessors / config.tile_ctas()));
  Multiprocessors all(static_cast<int>(count));
  double work = 0;
  for (const BackwardItem& item : items) {
    work += costs.of(item.steps);
    all.run(costs.of(item.steps));
  }
  const double end_uncut = all.end();
  if (end_uncut <= kWorthwhile * work / static_cast<double>(count)) return 0;
  const std::size_t tail =
      std::min({items.size(), 2 * count, static_cast<std::size_t>(std::max<std::int64_t>(0, most))});
  Multiprocessors before(static_cast<int>(count));
  std::vector<Cut> cuts;
  double soonest = end_uncut / kWorthwhile, begun = -1;
  for (std::size_t i = 0, next = items.size() - tail; i < items.size(); ++i) {
    if (i >= next && before.first_free() != begun) {  // tiles that begin together are cut together
      // More shares end sooner, and take longer to add.
      for (int shares = 2; shares <= shared::kMostShares; shares *= 2) {
        Cut cut = best_cut(items, i, before, shares, costs, end_uncut);
        if (cut.pieces.empty() || cut.end > kEndsAlike * soonest) continue;
        soonest = std::min(soonest, cut.end);
        cuts.push_back(std::move(cut));
      }
      next = i + std::max<std::size_t>(1, tail / kTriedEnds);
    }
    begun = before.first_free();
    before.run(costs.of(items[i].steps));
  }
  std::erase_if(cuts, [&](const Cut& cut) { return cut.end > kEndsAlike * soonest; });
  if (cuts.empty()) return 0;
  Cut& taken =
      *std::ranges::min_element(cuts, {}, [&](const Cut& cut) { return std::pair(items.size() - cut.first, cut.end); });
  if (std::ssize(taken.pieces) > shared::kMostSharePlaces) return 0;
  return apply(std::move(taken), schedule);
}

TileSharesMemory tile_shares_memory(const BackwardSm90Config& config, int places) {
  const auto aligned = [](std::int64_t bytes) {
    return (bytes + shared::kLineBytes - 1) / shared::kLineBytes * shared::kLineBytes;
  };
  TileSharesMemory memory{};
  memory.sums = aligned(std::int64_t{4} * places * config.share_counters());
  memory.bytes = memory.sums + std::int64_t{4} * places * config.share_floats();
  return memory;
}

}  // namespace heddle::plan
