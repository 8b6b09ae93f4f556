// append_kv on a GPU against its definition, rows without a place, and one graph over lengths that change.
// HEDDLE_TEST_BACKEND=cpu runs the first on the CPU.
#include <gtest/gtest.h>

#include <cstdint>

#include "engine/append_case.h"
#include "heddle/heddle.h"
#include "kernels/cuda/gpu_runs.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

class GpuAppend : public GpuTest {};

Device there() { return gpu_backend() == BackendChoice::cuda ? Device{DeviceKind::cuda, 0} : Device{}; }

void append(const AppendCase& call) {
  const Stream stream;
  AppendOptions options = call.options();
  options.stream = stream.handle();
  append_kv(call.tensors(), options);
  stream.wait();
}

TEST_F(GpuAppend, DrawnCases) {
  for (unsigned seed = 0; seed < (reduced() ? 8U : 80U); ++seed) {
    const AppendCase before(drawn_append(seed), seed), ran = before.on(there());
    append(ran);
    EXPECT_EQ(AppendCase::wrong(before, ran), "") << "seed " << seed;
  }
}

// More rows than one turn of all CTAs takes, moved eight columns at once.
TEST_F(GpuAppend, ManyRows) {
  for (const Pairs pairs : {Pairs::none, Pairs::halves}) {
    const AppendCase before({.batch = 5,
                             .heads = 8,
                             .new_rows = reduced() ? 50 : 900,
                             .qk_dim = 128,
                             .v_dim = 128,
                             .page_rows = 16,
                             .pairs = pairs,
                             .turned = 128},
                            1);
    const AppendCase ran = before.on(there());
    append(ran);
    EXPECT_EQ(AppendCase::wrong(before, ran), "");
  }
}

TEST_F(GpuAppend, RowsWithoutAPlaceAreNotWritten) {
  if (there().kind == DeviceKind::cpu) GTEST_SKIP() << "the CPU refuses them";
  for (const std::int64_t page_rows : {0, 4}) {
    const AppendCase before({.batch = 4, .page_rows = page_rows, .pairs = Pairs::interleaved, .turned = 64}, 7);
    auto* lengths = static_cast<std::int32_t*>(before.lengths.data());
    lengths[0] = -2;
    lengths[1] = static_cast<std::int32_t>(page_rows == 0 ? before.k_cache.shape[2] - 1
                                                          : before.table.shape()[1] * page_rows - 1);
    lengths[2] = 0x7fffffff;
    if (page_rows > 0) {
      for (std::int64_t n = 0; n < before.table.shape()[1]; ++n) {
        static_cast<std::int32_t*>(before.table.data())[3 * before.table.shape()[1] + n] =
            n % 2 == 0 ? -1 : static_cast<std::int32_t>(before.k_cache.shape[0]);
      }
    }
    const AppendCase ran = before.on(there());
    append(ran);
    EXPECT_EQ(AppendCase::wrong(before, ran), "") << page_rows;
  }
}

// Entries behind a sequence's own are another one's; starts outside of the list stand for its ends.
TEST_F(GpuAppend, NewRowsStayInTheirPartOfAList) {
  if (there().kind == DeviceKind::cpu) GTEST_SKIP() << "the CPU refuses them";
  const AppendCase before({.batch = 4, .page_rows = 4, .listed = true}, 3);
  auto* starts = static_cast<std::int32_t*>(before.page_starts.data());
  auto* lengths = static_cast<std::int32_t*>(before.lengths.data());
  lengths[0] = 4 * (starts[1] - starts[0]) - 2;
  lengths[2] = 0x7fffffff;
  const AppendCase ran = before.on(there());
  append(ran);
  EXPECT_EQ(AppendCase::wrong(before, ran), "");
}

TEST_F(GpuAppend, OneGraphForAllLengths) {
  if (there().kind == DeviceKind::cpu) GTEST_SKIP() << "the CPU has no graphs";
  const AppendSpec spec = {
      .keys = DType::e4m3, .values = DType::e4m3, .batch = 3, .page_rows = 7, .packed = true, .factors = true};
  const AppendCase first(spec, 1), there_first = first.on(there());
  append(there_first);  // compiles
  const Stream stream;
  AppendOptions options = there_first.options();
  options.stream = stream.handle();
  const cuda::ContextScope scope(0);
  const cuda::Driver& cu = cuda::driver();
  cuda::CUgraph graph = nullptr;
  cuda::CUgraphExec executable = nullptr;
  cuda::check(cu.StreamBeginCapture(stream.handle(), cuda::CUstreamCaptureMode::global), "beginning a capture");
  append_kv(there_first.tensors(), options);
  cuda::check(cu.StreamEndCapture(stream.handle(), &graph), "ending a capture");
  cuda::check(cu.GraphInstantiate(&executable, graph, 0), "making a graph");
  for (const std::int32_t moved : {0, 3, 11}) {
    AppendCase before = first;
    before.k_cache.buffer = there_first.k_cache.buffer.to(Device{});
    before.v_cache.buffer = there_first.v_cache.buffer.to(Device{});
    auto* lengths = static_cast<std::int32_t*>(before.lengths.data());
    for (int b = 0; b < 3; ++b) lengths[b] = (lengths[b] + moved) % 30;
    cuda::copy_and_wait(0, there_first.lengths.data(), lengths, 12);
    cuda::check(cu.GraphLaunch(executable, stream.handle()), "launching a graph");
    stream.wait();
    EXPECT_EQ(AppendCase::wrong(before, there_first), "") << moved;
  }
  cu.GraphExecDestroy(executable);
  cu.GraphDestroy(graph);
}

}  // namespace
}  // namespace heddle::test
