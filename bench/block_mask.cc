// Costs of building block masks on one thread: the least time of several builds, the questions asked and the runs
// stored. `bench_block_mask TEXT` measures the masks alone whose name has the text.
#include "heddle/block_mask.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "heddle/mods.h"

namespace heddle {
namespace {

constexpr std::int64_t kMillion = 1 << 20, kLong = 1 << 17, kMiddle = 1 << 14;
constexpr int kRounds = 7;
std::string wanted;  // part of the names of masks

template <class F>
double least_milliseconds(F&& f) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    least =
        std::min(least, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  return least;
}

void measure(const std::string& what, const Expr& mask, std::int64_t tokens, const Bindings& bindings = {}) {
  if (what.find(wanted) == std::string::npos) return;
  const MaskShape shape = MaskShape::uniform(1, 1, tokens, tokens);
  BlockMask built;
  const double build = least_milliseconds([&] { built = BlockMask::build(mask, shape, {128, 128}, bindings, 1); });
  const double turn = least_milliseconds([&] { built.transposed(); });
  const BlockMask::Statistics s = built.statistics();
  fmt::print("{:41} {:8} {:8.2f} {:8.2f} {:9} {:7} {:8} {:7.1f} %\n", what, tokens, build, turn, s.range_queries,
             s.evaluated_tiles, s.bytes, 100 * s.density());
}

/// The captures of the masks below.
class Tensors {
 public:
  Tensors() {
    std::uint32_t random = 1;
    for (std::int64_t i = 0; i < kLong; ++i) {
      documents_.push_back(static_cast<std::int32_t>(i / 3000));
      random = random * 1664525 + 1013904223;
      clusters_.push_back(static_cast<std::int32_t>(random >> 16) % 50);
    }
    for (std::int64_t r = 0; r < 4096; ++r) {
      for (std::int64_t c = 0; c < 4096; ++c) pattern_.push_back((r / 128 * 7 + c / 128) % 3 == 0 ? 1 : 0);
    }
    bindings_.captures["doc"] = {documents_.data(), DType::i32, Dims{kLong}};
    bindings_.captures["cluster"] = {clusters_.data(), DType::i32, Dims{kLong}};
    bindings_.captures["pattern"] = {pattern_.data(), DType::boolean, Dims{4096, 4096}};
  }
  const Bindings& bindings() const { return bindings_; }

 private:
  std::vector<std::int32_t> documents_, clusters_;
  std::vector<std::uint8_t> pattern_;
  Bindings bindings_;
};

void measure_all() {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const Tensors tensors;
  const Capture doc("doc", DType::i32, 1), cluster("cluster", DType::i32, 1), pattern("pattern", DType::boolean, 2);
  fmt::print("{:41} {:>8} {:>8} {:>8} {:>9} {:>7} {:>8} {:>9}\n", "mask, blocks of 128 x 128", "tokens", "ms",
             "turn ms", "queries", "tiles", "bytes", "density");
  measure("q_idx >= kv_idx", q >= kv, kMillion);
  measure("not (kv_idx > q_idx)", !(kv > q), kMillion);
  measure("2*q_idx - kv_idx >= q_idx", 2 * q - kv >= q, kMillion);
  measure("sliding_window(4096)", mods::sliding_window(4096), kMillion);
  measure("global_and_window(128, 1024)", mods::global_and_window(128, 1024), kMillion);
  measure("(q_idx // 128) % 2 == (kv_idx // 128) % 2", floor_div(q, 128) % 2 == floor_div(kv, 128) % 2, kMillion);
  measure("stripes of 128 within causal", (floor_div(q, 128) % 2 == floor_div(kv, 128) % 2) & (q >= kv), kMillion);
  measure("every 128th key, window of 128, causal", (((q - kv) % 128 == 0) | (q - kv < 128)) & (q >= kv), kMillion);
  measure("ends of segments of 2048, causal",
          ((floor_div(q, 2048) == floor_div(kv, 2048)) | (kv % 2048 >= 1920)) & (q >= kv), kMillion);
  measure("q_idx % 2 == 0", q % 2 == 0, kMillion);
  measure("(q_idx - kv_idx) % 4096 < 128", (q - kv) % 4096 < 128, kMillion);
  measure("(q_idx // 128) % 2 == 0", floor_div(q, 128) % 2 == 0, kMillion);
  measure("kv_idx % 2 == 0", kv % 2 == 0, kMillion);
  measure("documents of 3000", mods::documents(doc), kLong, tensors.bindings());
  measure("documents of 3000, causal", mods::causal() & mods::documents(doc), kLong, tensors.bindings());
  measure("dilated_window(4096, 4)", mods::dilated_window(4096, 4), kLong);
  measure("neighbourhood_2d(128, 7, 7)", mods::neighbourhood_2d(128, 7, 7), kMiddle);
  measure("half of the queries, at random", cluster(q) < 25, kLong, tensors.bindings());
  measure("a dense tensor of blocks", pattern(q, kv), 4096, tensors.bindings());
  measure("50 clusters in random order", cluster(q) == cluster(kv), kMiddle, tensors.bindings());
  measure("random_uniform < 0.5", random_uniform(1, 0, 0, q, kv) < 0.5, kMiddle);
}

}  // namespace
}  // namespace heddle

int main(int count, char** arguments) {
  if (count > 1) heddle::wanted = arguments[1];
  heddle::measure_all();
  return 0;
}
