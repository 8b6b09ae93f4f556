// Attention over ranks behind opaque pointers: a caller's communicator as two functions, and NCCL's.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "errors.h"
#include "from_c.h"
#include "heddle/context_parallel.h"
#include "heddle/error.h"
#include "heddle/nccl_communicator.h"
#include "structs.h"

struct heddle_nccl {
  heddle::NcclCommunicator communicator;
};

namespace heddle::capi {
namespace {

std::int32_t nccl_exchange(void* context, const void* send, const std::int64_t* send_bytes, void* receive,
                           const std::int64_t* receive_bytes, void* stream) noexcept {
  auto& communicator = static_cast<heddle_nccl*>(context)->communicator;
  const auto size = static_cast<std::size_t>(communicator.size());
  return call([&] { communicator.exchange(send, {send_bytes, size}, receive, {receive_bytes, size}, stream); });
}

std::int32_t nccl_agree(void* context, std::uint64_t number, std::int32_t* all) noexcept {
  return call([&] { *all = static_cast<heddle_nccl*>(context)->communicator.agree(number) ? 1 : 0; });
}

/// The caller's two functions.
class CCommunicator final : public Communicator {
 public:
  explicit CCommunicator(const heddle_communicator& given) : given_(given) {}
  std::int64_t rank() const override { return given_.rank; }
  std::int64_t size() const override { return given_.size; }
  Device device() const override { return {static_cast<DeviceKind>(given_.device_kind), given_.device_index}; }
  void exchange(const void* send, std::span<const std::int64_t> send_bytes, void* receive,
                std::span<const std::int64_t> receive_bytes, void* stream) override {
    check("exchange", given_.exchange(given_.context, send, send_bytes.data(), receive, receive_bytes.data(), stream));
  }
  bool agree(std::uint64_t number) override {
    std::int32_t all = 0;
    check("agree", given_.agree(given_.context, number, &all));
    return all != 0;
  }

 private:
  void check(const char* function, std::int32_t result) const {
    if (result == 0) return;
    std::string why = fmt::format("the communicator's {} gave {} on rank {}", function, result, given_.rank);
    // NCCL's have said why; a caller's function has not.
    if (given_.exchange == nccl_exchange) why += fmt::format(": {}", heddle_last_error());
    throw Error(ErrorCode::device, why);
  }

  heddle_communicator given_;
};

heddle_communicator checked(const heddle_communicator* communicator) {
  require(communicator, "communicator", "heddle_communicator");
  const heddle_communicator given = known_fields("communicator", communicator);
  if (given.exchange == nullptr) refuse("communicator.exchange is null; a function is accepted");
  if (given.agree == nullptr) refuse("communicator.agree is null; a function is accepted");
  if (given.size < 1) refuse(fmt::format("communicator.size is {}; 1 and more are accepted", given.size));
  if (given.rank < 0 || given.rank >= given.size) {
    refuse(fmt::format("communicator.rank is {}; 0 to {} are accepted", given.rank, given.size - 1));
  }
  if (given.device_kind < HEDDLE_DEVICE_CPU || given.device_kind > HEDDLE_DEVICE_ROCM) {
    refuse(
        fmt::format("communicator.device_kind is {}; HEDDLE_DEVICE_CPU, HEDDLE_DEVICE_CUDA and HEDDLE_DEVICE_ROCM "
                    "are accepted",
                    given.device_kind));
  }
  return given;
}

ContextChecks to_checks(std::int32_t checks) {
  if (checks < HEDDLE_CHECKS_AUTOMATIC || checks > HEDDLE_CHECKS_FIRST) {
    refuse(fmt::format(
        "checks is {}; HEDDLE_CHECKS_AUTOMATIC, HEDDLE_CHECKS_CALLS and HEDDLE_CHECKS_FIRST are accepted", checks));
  }
  return static_cast<ContextChecks>(checks);
}

AddedGradients to_added(std::int32_t added) {
  constexpr std::int32_t kAll = HEDDLE_ADDS_DQ | HEDDLE_ADDS_DK | HEDDLE_ADDS_DV;
  if (added < 0 || added > kAll) {
    refuse(fmt::format("added is {}; sums of HEDDLE_ADDS_DQ, HEDDLE_ADDS_DK and HEDDLE_ADDS_DV, 0 to {}, are accepted",
                       added, kAll));
  }
  return {.q = (added & HEDDLE_ADDS_DQ) != 0, .k = (added & HEDDLE_ADDS_DK) != 0, .v = (added & HEDDLE_ADDS_DV) != 0};
}

}  // namespace
}  // namespace heddle::capi

struct heddle_context {
  std::unique_ptr<heddle::Communicator> communicator;
  std::unique_ptr<heddle::ContextAttention> attention;
};

using namespace heddle::capi;

heddle_status heddle_context_create(const heddle_partition* partition, const heddle_block_mask* mask,
                                    const heddle_attention_options* options, const heddle_communicator* communicator,
                                    int32_t checks, heddle_context** context) {
  return call([&] {
    require(context, "context", "place for a heddle_context*");
    *context = nullptr;
    require(partition, "partition", "heddle_partition");
    require(mask, "mask", "heddle_block_mask");
    const heddle::ContextChecks wanted = to_checks(checks);
    auto made = std::make_unique<heddle_context>();
    made->communicator = std::make_unique<CCommunicator>(checked(communicator));
    made->attention = std::make_unique<heddle::ContextAttention>(partition->made, *mask->mask, to_options(options),
                                                                 *made->communicator, wanted);
    *context = made.release();
  });
}

heddle_status heddle_context_forward(heddle_context* context, const heddle_attention_tensors* tensors) {
  return call([&] {
    require(context, "context", "heddle_context");
    context->attention->forward(to_tensors(tensors));
  });
}

heddle_status heddle_context_backward(heddle_context* context, const heddle_backward_tensors* tensors) {
  return call([&] {
    require(context, "context", "heddle_context");
    context->attention->backward(to_tensors(tensors));
  });
}

heddle_status heddle_context_backward_adding(heddle_context* context, const heddle_backward_tensors* tensors,
                                             int32_t added) {
  return call([&] {
    require(context, "context", "heddle_context");
    context->attention->backward(to_tensors(tensors), to_added(added));
  });
}

heddle_status heddle_context_set_head_groups(heddle_context* context, int64_t groups) {
  return call([&] {
    require(context, "context", "heddle_context");
    context->attention->set_head_groups(groups);
  });
}

void heddle_context_destroy(heddle_context* context) { delete context; }

heddle_status heddle_nccl_make_id(char* id) {
  return call([&] {
    require(id, "id", "place for HEDDLE_NCCL_ID_BYTES bytes");
    std::ranges::copy(heddle::make_nccl_id(), id);
  });
}

heddle_status heddle_nccl_create(const char* id, int64_t rank, int64_t size, int32_t device, int64_t timeout_ms,
                                 heddle_nccl** nccl) {
  return call([&] {
    require(nccl, "nccl", "place for a heddle_nccl*");
    *nccl = nullptr;
    require(id, "id", "array of HEDDLE_NCCL_ID_BYTES bytes");
    if (timeout_ms < 0) refuse(fmt::format("timeout_ms is {}; 0 and more are accepted", timeout_ms));
    heddle::NcclId of_all{};
    std::copy_n(id, of_all.size(), of_all.begin());
    const auto timeout = timeout_ms == 0 ? heddle::NcclCommunicator::kTimeout : std::chrono::milliseconds(timeout_ms);
    *nccl = new heddle_nccl{heddle::NcclCommunicator(of_all, rank, size, device, timeout)};
  });
}

void heddle_nccl_destroy(heddle_nccl* nccl) { delete nccl; }

heddle_status heddle_nccl_communicator(heddle_nccl* nccl, heddle_communicator* communicator) {
  return call([&] {
    require(nccl, "nccl", "heddle_nccl");
    require(communicator, "communicator", "place for a heddle_communicator");
    known_fields("communicator", communicator);
    const std::uint64_t size = communicator->struct_size;
    const heddle_communicator made = {.struct_size = size,
                                      .rank = nccl->communicator.rank(),
                                      .size = nccl->communicator.size(),
                                      .device_kind = HEDDLE_DEVICE_CUDA,
                                      .device_index = nccl->communicator.device().index,
                                      .context = nccl,
                                      .exchange = nccl_exchange,
                                      .agree = nccl_agree};
    *communicator = made;
  });
}

heddle_status heddle_nccl_wait(heddle_nccl* nccl, void* stream) {
  return call([&] {
    require(nccl, "nccl", "heddle_nccl");
    nccl->communicator.wait(stream);
  });
}
