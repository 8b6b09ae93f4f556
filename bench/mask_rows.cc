// Block masks of 128 x 128 found on a GPU and on the host: milliseconds (the median of several), and bytes of device
// memory beside those of the rows. `find` begins with captures and ends with rows in device memory, zone maps included,
// the compiler not; `copy` brings the rows to the host, as planning does today; `host` is BlockMask::build on all
// cores.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/driver/driver.h"
#include "backend/cuda/launch/cuda_gpu.h"
#include "backend/gpu/mask_rows_launch.h"
#include "heddle/error.h"
#include "heddle/mods.h"

namespace heddle {
namespace {

constexpr int kRounds = 21;
constexpr Device kGpu{DeviceKind::cuda, 0};

template <class F>
double milliseconds(F&& f) {
  std::vector<double> rounds;
  for (int i = 0; i < kRounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    rounds.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::ranges::nth_element(rounds, rounds.begin() + kRounds / 2);
  return rounds[kRounds / 2];
}

struct Named {
  std::string name;
  Expr mask;
};

std::vector<Named> masks() {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const Capture ids("ids", DType::i32, 1);
  const Expr same = ids(q) == ids(kv);
  return {{"causal", mods::causal()},
          {"not (q_idx < kv_idx)", !(q < kv)},
          {"q_idx - kv_idx >= 0", q - kv >= 0},
          {"2*q_idx >= 2*kv_idx", 2 * q >= 2 * kv},
          {"2*q_idx - kv_idx >= q_idx", 2 * q - kv >= q},
          {"q_idx + x >= kv_idx + x, x captured", q + ids(0) >= kv + ids(0)},
          {"window 1024", mods::sliding_window(1024)},
          {"q - kv <= 1024 and kv <= q", (q - kv <= 1024) & (kv <= q)},
          {"documents of 3000", mods::documents(ids)},
          {"documents of 3000, causal", mods::causal() & mods::documents(ids)},
          {"not (kv > q or ids differ)", !((kv > q) | (ids(q) != ids(kv)))},
          {"where(ids are the same, causal, False)", where(same, kv <= q, false)},
          {"dilated window (4096, 4)", mods::dilated_window(4096, 4)}};
}

void measure(const Named& named, std::int64_t tokens, const Bindings& here, const Bindings& there) {
  const MaskShape shape = MaskShape::uniform(1, 1, tokens, tokens);
  const BlockSize block{128, 128};
  std::unique_ptr<gpu::MaskRows> rows;
  double find = 0, copied = 0;
  const BlockMask by_gpu =
      mask::build_elsewhere(named.mask, shape, block, there,
                            [&](const Expr& simplified, const MaskShape& of, BlockSize size,
                                std::span<const mask::Matrix> matrices, const Bindings& values) {
                              rows = std::make_unique<gpu::MaskRows>(cuda::cuda_gpu(), kGpu.index, simplified);
                              find = milliseconds([&] { rows->find(of, size, matrices, values); });
                              mask::Rows result;
                              copied = milliseconds([&] { result = rows->on_host(); });
                              return result;
                            });
  BlockMask by_host;
  const double host = milliseconds([&] { by_host = BlockMask::build(named.mask, shape, block, here); });
  fmt::print("{:40} {:8} {:8.3f} {:8.3f} {:8.2f} {:10} {:10} {:>6}\n", named.name, tokens, find, copied, host,
             rows->bytes(), rows->row_bytes(), by_gpu == by_host ? "equal" : "DIFFER");
}

void measure_all() {
  fmt::print("{:40} {:>8} {:>8} {:>8} {:>8} {:>10} {:>10}\n", "mask", "tokens", "find ms", "copy ms", "host ms",
             "bytes", "of rows");
  for (const std::int64_t tokens : {std::int64_t{8192}, std::int64_t{1} << 17, std::int64_t{1} << 20}) {
    Tensor ids = Tensor::empty(DType::i32, {tokens});
    for (std::int64_t i = 0; i < tokens; ++i) {
      static_cast<std::int32_t*>(ids.data())[i] = static_cast<std::int32_t>(i / 3000);
    }
    const Tensor copy = ids.to(kGpu);
    Bindings here, there;
    here.captures["ids"] = ids;
    there.captures["ids"] = copy;
    for (const Named& named : masks()) measure(named, tokens, here, there);
  }
}

}  // namespace
}  // namespace heddle

int main() try {
  if (const std::string missing = heddle::cuda::driver_missing(); !missing.empty()) {
    fmt::print("no GPU: {}\n", missing);
    return 0;
  }
  heddle::measure_all();
} catch (const heddle::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
