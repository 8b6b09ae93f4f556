#include "mask/placement.h"

#include <algorithm>
#include <numeric>

namespace heddle::mask {
namespace {

/// How many chunks each rank may hold: equal numbers, one more for the first ones.
std::vector<std::int64_t> rooms_of(const PlacementProblem& problem) {
  std::vector<std::int64_t> rooms(static_cast<std::size_t>(problem.ranks), problem.chunks() / problem.ranks);
  for (std::int64_t rank = 0; rank < problem.chunks() % problem.ranks; ++rank) ++rooms[static_cast<std::size_t>(rank)];
  return rooms;
}

Owners contiguous(const PlacementProblem& problem) {
  Owners owners;
  const std::vector<std::int64_t> rooms = rooms_of(problem);
  for (std::int64_t rank = 0; rank < problem.ranks; ++rank) {
    owners.insert(owners.end(), static_cast<std::size_t>(rooms[static_cast<std::size_t>(rank)]),
                  static_cast<std::int32_t>(rank));
  }
  return owners;
}

/// The whole sequence in 2 N equal parts, of which rank r holds part r and part 2 N - 1 - r. So each rank has two
/// ranges.
Owners zigzag(const PlacementProblem& problem) {
  Owners owners(static_cast<std::size_t>(problem.chunks()));
  const std::vector<std::int64_t> rooms = rooms_of(problem);
  std::int64_t begin = 0, end = problem.chunks();
  for (std::int64_t rank = 0; rank < problem.ranks; ++rank) {
    const std::int64_t room = rooms[static_cast<std::size_t>(rank)], back = room / 2, front = room - back;
    std::fill_n(owners.begin() + begin, front, static_cast<std::int32_t>(rank));
    std::fill_n(owners.begin() + end - back, back, static_cast<std::int32_t>(rank));
    begin += front;
    end -= back;
  }
  return owners;
}

/// The rank with room that has the least to do.
std::size_t idlest(std::span<const double> loads, std::span<const std::int64_t> rooms) {
  std::size_t found = loads.size();
  for (std::size_t rank = 0; rank < loads.size(); ++rank) {
    if (rooms[rank] > 0 && (found == loads.size() || loads[rank] < loads[found])) found = rank;
  }
  return found;
}

Owners heap(const PlacementProblem& problem) {
  std::vector<std::int64_t> rooms = rooms_of(problem), order(static_cast<std::size_t>(problem.chunks()));
  std::iota(order.begin(), order.end(), 0);
  const auto time_of = [&](std::int64_t c) { return problem.times[static_cast<std::size_t>(c)]; };
  std::ranges::stable_sort(order, std::ranges::greater(), time_of);
  std::vector<double> loads(static_cast<std::size_t>(problem.ranks));
  Owners owners(static_cast<std::size_t>(problem.chunks()));
  for (const std::int64_t c : order) {
    const std::size_t rank = idlest(loads, rooms);
    owners[static_cast<std::size_t>(c)] = static_cast<std::int32_t>(rank);
    loads[rank] += time_of(c);
    --rooms[rank];
  }
  return owners;
}

struct Group {
  std::int64_t begin, end;  // chunks
  double time;
};

std::vector<Group> documents_of(const PlacementProblem& problem) {
  std::vector<Group> groups;
  for (std::int64_t c = 0; c < problem.chunks(); ++c) {
    const bool is_first =
        std::ranges::all_of(problem.masks, [&](const auto& mask) { return mask.needs.ends_alone(c); });
    if (groups.empty() || is_first) groups.push_back({c, c, 0});
    groups.back().end = c + 1;
    groups.back().time += problem.times[static_cast<std::size_t>(c)];
  }
  return groups;
}

/// The longest group first, to the idlest rank that has room for it whole; else it is cut where the roomiest one is
/// full.
Owners documents(const PlacementProblem& problem) {
  std::vector<Group> groups = documents_of(problem);
  std::ranges::stable_sort(groups, std::ranges::greater(), &Group::time);
  std::vector<std::int64_t> rooms = rooms_of(problem);
  std::vector<double> loads(static_cast<std::size_t>(problem.ranks));
  Owners owners(static_cast<std::size_t>(problem.chunks()));
  for (Group group : groups) {
    while (group.begin < group.end) {
      std::vector<std::int64_t> fitting = rooms;
      for (std::int64_t& room : fitting) room = room >= group.end - group.begin ? room : 0;
      std::size_t rank = idlest(loads, fitting);
      if (rank == loads.size()) rank = static_cast<std::size_t>(std::ranges::max_element(rooms) - rooms.begin());
      const std::int64_t end = std::min(group.end, group.begin + rooms[rank]);
      for (std::int64_t c = group.begin; c < end; ++c) {
        owners[static_cast<std::size_t>(c)] = static_cast<std::int32_t>(rank);
        loads[rank] += problem.times[static_cast<std::size_t>(c)];
      }
      rooms[rank] -= end - group.begin;
      group.begin = end;
    }
  }
  return owners;
}

}  // namespace

Owners placed(const PlacementProblem& problem, Placing placing) {
  switch (placing) {
    case Placing::contiguous:
      return contiguous(problem);
    case Placing::zigzag:
      return zigzag(problem);
    case Placing::documents:
      return documents(problem);
    case Placing::heap:
      return heap(problem);
  }
  return contiguous(problem);
}

std::vector<RankLoad> loads_of(const PlacementProblem& problem, const Owners& owners) {
  std::vector<RankLoad> loads(static_cast<std::size_t>(problem.ranks));
  for (std::size_t c = 0; c < owners.size(); ++c) {
    loads[static_cast<std::size_t>(owners[c])].attention += problem.times[c];
  }
  const Owners& key_owners = problem.keys_move ? owners : problem.key_owners;
  for (const WeighedNeeds& mask : problem.masks) {
    const std::int64_t words = mask.needs.words();
    Bits needed(static_cast<std::size_t>(problem.ranks * words));
    for (std::size_t c = 0; c < owners.size(); ++c) {
      std::uint64_t* of_rank = needed.data() + owners[c] * words;
      const std::uint64_t* of_chunk = mask.needs.of(static_cast<std::int64_t>(c));
      for (std::int64_t word = 0; word < words; ++word) of_rank[word] |= of_chunk[word];
    }
    for (std::int64_t k = 0; k < mask.needs.keys(); ++k) {
      const std::int64_t rows = std::min(problem.kv_len, (k + 1) * problem.chunk) - k * problem.chunk;
      for (std::int64_t rank = 0; rank < problem.ranks; ++rank) {
        if (key_owners[static_cast<std::size_t>(k)] == rank || !has(needed.data() + rank * words, k)) continue;
        RankLoad& load = loads[static_cast<std::size_t>(rank)];
        load.received += mask.weight * static_cast<double>(rows);
        load.exchange += mask.row_time * static_cast<double>(rows);
      }
    }
  }
  return loads;
}

double cost_of(const PlacementProblem& problem, std::span<const RankLoad> loads) {
  constexpr double kEvenEnough = 1.03;  // of the mean: below it, fewer rows are worth more than balance
  double attention = 0, exchange = 0, slowest = 0;
  for (const RankLoad& load : loads) {
    attention += load.attention;
    exchange += load.exchange;
    slowest = std::max({slowest, load.attention, load.exchange});
  }
  const auto ranks = static_cast<double>(problem.ranks);
  return std::max(slowest, kEvenEnough * attention / ranks) + problem.exposed * exchange / ranks;
}

}  // namespace heddle::mask
