#include "heddle/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/cuda/driver/cuda_objects.h"
#include "backend/cuda/nccl/nccl.h"
#include "heddle/error.h"

namespace heddle {
namespace {

using cuda::CUstream;
using cuda::nccl;
using cuda::ncclInProgress;
using cuda::ncclResult_t;
using cuda::ncclSuccess;

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

std::byte* advanced(void* data, std::int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }
const std::byte* advanced(const void* data, std::int64_t bytes) { return static_cast<const std::byte*>(data) + bytes; }

/// Waits a little between two questions: little at first.
class Patience {
 public:
  explicit Patience(std::chrono::milliseconds timeout) : end_(std::chrono::steady_clock::now() + timeout) {}
  /// False once the time is over.
  bool wait() {
    if (std::chrono::steady_clock::now() > end_) return false;
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(2 * pause_, std::chrono::microseconds(1000));
    return true;
  }

 private:
  std::chrono::steady_clock::time_point end_;
  std::chrono::microseconds pause_{1};
};

}  // namespace

struct NcclCommunicator::State {
  cuda::ncclComm_t comm = nullptr;
  int rank = 0, size = 1, device = 0;
  std::chrono::milliseconds timeout{};
  bool owned = false;
  std::string given_up;     // why later calls throw
  CUstream words_stream{};  // of agree()
  cuda::DeviceMemory words;

  ~State() {
    // The end of a process may have taken the driver away: nothing here is checked.
    try {
      const cuda::ContextScope scope(device);
      if (words_stream != nullptr) cuda::driver().StreamDestroy(words_stream);
      if (!owned || comm == nullptr) return;
      bool finished = nccl().CommFinalize(comm) == ncclSuccess;
      ncclResult_t error = ncclInProgress;
      for (Patience patience(timeout); !finished && patience.wait();) {
        if (nccl().CommGetAsyncError(comm, &error) != ncclSuccess || error != ncclInProgress) break;
      }
      finished = finished || error == ncclSuccess;
      finished ? nccl().CommDestroy(comm) : nccl().CommAbort(comm);
    } catch (const std::exception&) {
    }
  }

  [[noreturn]] void give_up(std::string_view doing, const std::string& why) {
    given_up = fmt::format("rank {} of {} gave up {}: {}", rank, size, doing, why);
    if (owned && comm != nullptr) {
      nccl().CommAbort(comm);
      comm = nullptr;
    }
    throw Error(ErrorCode::device, given_up);
  }
  void check_alive() const {
    if (!given_up.empty()) throw Error(ErrorCode::device, given_up);
  }
  std::string late() const { return fmt::format("other ranks did not answer within {} ms", timeout.count()); }

  /// Waits until a call that may go on in the background has ended.
  void finish(ncclResult_t result, std::string_view doing) {
    for (Patience patience(timeout); result == ncclInProgress;) {
      if (!patience.wait()) give_up(doing, late());
      ncclResult_t error = ncclSuccess;
      const ncclResult_t asked = nccl().CommGetAsyncError(comm, &error);
      result = asked != ncclSuccess ? asked : error;
    }
    if (result != ncclSuccess) give_up(doing, cuda::nccl_words(result));
  }

  void wait(CUstream stream, std::string_view doing) {
    check_alive();
    const cuda::ContextScope scope(device);
    for (Patience patience(timeout);;) {
      const cuda::CUresult result = cuda::driver().StreamQuery(stream);
      ncclResult_t error = ncclSuccess;
      const ncclResult_t asked = nccl().CommGetAsyncError(comm, &error);
      if (asked != ncclSuccess) error = asked;
      if (error != ncclSuccess && error != ncclInProgress) give_up(doing, cuda::nccl_words(error));
      if (result == cuda::CUDA_SUCCESS) return;
      if (result != cuda::CUDA_ERROR_NOT_READY) cuda::check(result, "waiting for a stream");
      if (!patience.wait()) give_up(doing, late());
    }
  }

  void enqueue(const void* send, std::span<const std::int64_t> send_bytes, void* receive,
               std::span<const std::int64_t> receive_bytes, CUstream stream) {
    check_alive();
    const cuda::ContextScope scope(device);
    finish(nccl().GroupStart(), "an exchange");
    ncclResult_t result = ncclSuccess;
    const auto keep = [&](ncclResult_t one) { result = result == ncclSuccess ? one : result; };
    std::int64_t sent = 0, received = 0, own_sent = 0, own_received = 0;
    for (int other = 0; other < size; ++other) {
      const std::int64_t out = send_bytes[static_cast<std::size_t>(other)],
                         in = receive_bytes[static_cast<std::size_t>(other)];
      if (other == rank) {
        own_sent = sent;
        own_received = received;
      } else {
        if (out > 0) {
          keep(nccl().Send(advanced(send, sent), static_cast<std::size_t>(out), cuda::ncclInt8, other, comm, stream));
        }
        if (in > 0) {
          keep(nccl().Recv(advanced(receive, received), static_cast<std::size_t>(in), cuda::ncclInt8, other, comm,
                           stream));
        }
      }
      sent += out;
      received += in;
    }
    const ncclResult_t ended = nccl().GroupEnd();
    finish(result == ncclSuccess || result == ncclInProgress ? ended : result, "an exchange");
    const std::int64_t own = send_bytes[static_cast<std::size_t>(rank)];
    if (own > 0) {
      cuda::check(cuda::driver().MemcpyAsync(reinterpret_cast<cuda::CUdeviceptr>(advanced(receive, own_received)),
                                             reinterpret_cast<cuda::CUdeviceptr>(advanced(send, own_sent)),
                                             static_cast<std::size_t>(own), stream),
                  "copying a rank's own rows");
    }
  }
};

NcclId make_nccl_id() {
  cuda::ncclUniqueId id{};
  const ncclResult_t result = nccl().GetUniqueId(&id);
  if (result != ncclSuccess) throw Error(ErrorCode::device, "making an id: " + cuda::nccl_words(result));
  return std::to_array(id.internal);
}

NcclCommunicator::NcclCommunicator(const NcclId& id, std::int64_t rank, std::int64_t size, int device,
                                   std::chrono::milliseconds timeout)
    : state_(std::make_unique<State>()) {
  if (size < 1 || size > Partition::kMostRanks) {
    refuse(fmt::format("size is {}; 1 to {} are accepted", size, Partition::kMostRanks));
  }
  if (rank < 0 || rank >= size) refuse(fmt::format("rank is {}; 0 to {} are accepted", rank, size - 1));
  State& state = *state_;
  nccl();
  const cuda::ContextScope scope(device);
  state.rank = static_cast<int>(rank);
  state.size = static_cast<int>(size);
  state.device = device;
  state.timeout = timeout;
  state.owned = true;
  cuda::ncclUniqueId of_all{};
  std::ranges::copy(id, of_all.internal);
  cuda::ncclConfig_t config;
  state.finish(nccl().CommInitRankConfig(&state.comm, state.size, of_all, state.rank, &config), "joining");
}

NcclCommunicator::NcclCommunicator(void* comm, std::chrono::milliseconds timeout) : state_(std::make_unique<State>()) {
  if (comm == nullptr) refuse("comm is null; an ncclComm_t is accepted");
  State& state = *state_;
  state.comm = static_cast<cuda::ncclComm_t>(comm);
  state.timeout = timeout;
  state.finish(nccl().CommUserRank(state.comm, &state.rank), "asking a communicator");
  state.finish(nccl().CommCount(state.comm, &state.size), "asking a communicator");
  state.finish(nccl().CommCuDevice(state.comm, &state.device), "asking a communicator");
}

NcclCommunicator::~NcclCommunicator() = default;

std::int64_t NcclCommunicator::rank() const { return state_->rank; }
std::int64_t NcclCommunicator::size() const { return state_->size; }
Device NcclCommunicator::device() const { return {DeviceKind::cuda, state_->device}; }

void NcclCommunicator::exchange(const void* send, std::span<const std::int64_t> send_bytes, void* receive,
                                std::span<const std::int64_t> receive_bytes, void* stream) {
  for (const auto& [what, bytes] : {std::pair("send_bytes", send_bytes), {"receive_bytes", receive_bytes}}) {
    if (std::ssize(bytes) == size() && std::ranges::all_of(bytes, [](std::int64_t count) { return count >= 0; })) {
      continue;
    }
    refuse(fmt::format("{} has {} counts; one from 0 on for each of the {} ranks is accepted", what, bytes.size(),
                       size()));
  }
  const auto own = static_cast<std::size_t>(rank());
  if (send_bytes[own] != receive_bytes[own]) {
    refuse(fmt::format("rank {} sends itself {} bytes and receives {}; equal numbers are accepted", own,
                       send_bytes[own], receive_bytes[own]));
  }
  state_->enqueue(send, send_bytes, receive, receive_bytes, static_cast<CUstream>(stream));
}

bool NcclCommunicator::agree(std::uint64_t number) {
  State& state = *state_;
  state.check_alive();
  const cuda::ContextScope scope(state.device);
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  const auto count = static_cast<std::size_t>(state.size);
  if (state.words_stream == nullptr) {
    cuda::check(cuda::driver().StreamCreate(&state.words_stream, cuda::CUstream_flags::non_blocking),
                "making a stream");
    state.words = cuda::DeviceMemory(state.device, 2 * count * kWord);
  }
  // Each rank gets this word, and gives its own.
  std::vector<std::uint64_t> words(count, number);
  const std::vector<std::int64_t> bytes(count, kWord);
  auto* sent = static_cast<std::uint64_t*>(state.words.data());
  const auto copy = [&](void* to, const void* from) {
    cuda::check(
        cuda::driver().MemcpyAsync(reinterpret_cast<cuda::CUdeviceptr>(to), reinterpret_cast<cuda::CUdeviceptr>(from),
                                   count * kWord, state.words_stream),
        "copying words");
  };
  copy(sent, words.data());
  state.enqueue(sent, bytes, sent + count, bytes, state.words_stream);
  state.wait(state.words_stream, "comparing");
  copy(words.data(), sent + count);
  state.wait(state.words_stream, "comparing");
  return std::ranges::all_of(words, [&](std::uint64_t word) { return word == number; });
}

void NcclCommunicator::wait(void* stream) const { state_->wait(static_cast<CUstream>(stream), "waiting"); }

}  // namespace heddle
