#include "backend/amd/simulator/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace heddle::amd::simulator {
namespace {
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kGap = 1 << 20;
}  // namespace

std::uint64_t Memory::allocate(std::size_t bytes, std::string name) {
  const std::uint64_t begin = next_;
  next_ += (bytes + kPage - 1) / kPage * kPage + kGap;
  allocate_at(begin, bytes, std::move(name));
  return begin;
}

void Memory::allocate_at(std::uint64_t address, std::size_t bytes, std::string name) {
  const auto after = buffers_.lower_bound(address);
  const bool meets_next = after != buffers_.end() && after->first < address + std::max<std::size_t>(bytes, 1);
  const bool meets_previous =
      after != buffers_.begin() && std::prev(after)->first + std::prev(after)->second.bytes.size() > address;
  if (meets_next || meets_previous)
    throw std::invalid_argument(fmt::format("{}: another buffer is at {:#x}", name, address));
  Buffer buffer;
  buffer.begin = address;
  buffer.bytes.assign(bytes, 0xa5);
  buffer.writer.assign(bytes, kNobody);
  buffer.name = std::move(name);
  buffers_.emplace(address, std::move(buffer));
}

bool Memory::free(std::uint64_t address) { return buffers_.erase(address) == 1; }

const Memory::Buffer* Memory::find(std::uint64_t address, std::uint64_t size) const {
  auto after = buffers_.upper_bound(address);
  if (after == buffers_.begin()) return nullptr;
  const Buffer& buffer = std::prev(after)->second;
  return buffer.contains(address, size) ? &buffer : nullptr;
}

Memory::Buffer* Memory::find(std::uint64_t address, std::uint64_t size) {
  return const_cast<Buffer*>(static_cast<const Memory*>(this)->find(address, size));
}

void Memory::write(std::uint64_t address, std::span<const std::uint8_t> bytes) {
  Buffer* buffer = find(address, bytes.size());
  if (!buffer) throw std::out_of_range(fmt::format("write of {} bytes: {}", bytes.size(), location_of(address)));
  const auto at = static_cast<std::ptrdiff_t>(address - buffer->begin);
  std::copy(bytes.begin(), bytes.end(), buffer->bytes.begin() + at);
  std::fill_n(buffer->writer.begin() + at, bytes.size(), kHost);
  if (bytes.size() == buffer->bytes.size()) buffer->defined = true;
}

void Memory::read(std::uint64_t address, std::span<std::uint8_t> bytes) const {
  const Buffer* buffer = find(address, bytes.size());
  if (!buffer) throw std::out_of_range(fmt::format("read of {} bytes: {}", bytes.size(), location_of(address)));
  std::copy_n(buffer->bytes.begin() + static_cast<std::ptrdiff_t>(address - buffer->begin), bytes.size(),
              bytes.begin());
}

void Memory::fill(std::uint64_t address, std::uint8_t value, std::size_t bytes) {
  write(address, std::vector<std::uint8_t>(bytes, value));
}

void Memory::forget(std::uint64_t address) {
  Buffer& buffer = buffers_.at(address);
  std::fill(buffer.writer.begin(), buffer.writer.end(), kNobody);
  buffer.defined = false;
}

void Memory::set_rewritable(std::uint64_t address, bool rewritable) { buffers_.at(address).rewritable = rewritable; }
void Memory::set_read_only(std::uint64_t address, bool read_only) { buffers_.at(address).read_only = read_only; }

std::string Memory::location_of(std::uint64_t address) const {
  auto after = buffers_.upper_bound(address);
  if (after == buffers_.begin()) return fmt::format("address {:#x} is below every buffer", address);
  const Buffer& below = std::prev(after)->second;
  const std::uint64_t end = below.begin + below.bytes.size();
  if (address >= end)
    return fmt::format("address {:#x} is {} bytes past the end of {}", address, address - end, below.name);
  return fmt::format("address {:#x} is byte {} of {}, {} bytes long", address, address - below.begin, below.name,
                     below.bytes.size());
}

std::uint32_t Memory::take_thread_numbers(std::uint64_t count) {
  if (next_thread_ + count > std::numeric_limits<std::uint32_t>::max()) {
    for (auto& [begin, buffer] : buffers_) {  // the numbers start anew: what earlier launches wrote is as the host's
      for (std::uint32_t& writer : buffer.writer) writer = std::min(writer, kHost);
    }
    next_thread_ = kFirstThread;
  }
  const std::uint64_t first = next_thread_;
  next_thread_ += count;
  if (next_thread_ > std::numeric_limits<std::uint32_t>::max())
    throw std::length_error("a launch of more than 2^32 threads");
  return static_cast<std::uint32_t>(first);
}

}  // namespace heddle::amd::simulator
