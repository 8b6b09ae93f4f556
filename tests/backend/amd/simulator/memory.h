// Device memory: buffers at addresses of their own, of which each byte knows who wrote it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace heddle::amd::simulator {

/// Addresses are the simulator's own: no host memory stands there, and between two buffers lie bytes of neither.
class Memory {
 public:
  struct Buffer {
    std::uint64_t begin = 0;
    std::vector<std::uint8_t> bytes;
    std::vector<std::uint32_t> writer;  ///< of each byte: kNobody, kHost, or a thread's number
    std::string name;
    bool read_only = false;
    bool rewritable = false;  ///< several threads of a launch may store to the same byte
    bool defined = false;     ///< every byte was written
    bool contains(std::uint64_t address, std::uint64_t size) const {
      return address >= begin && address - begin <= bytes.size() && size <= bytes.size() - (address - begin);
    }
  };
  static constexpr std::uint32_t kNobody = 0;
  static constexpr std::uint32_t kHost = 1;
  static constexpr std::uint32_t kFirstThread = 64;

  /// \param name what findings call the buffer
  std::uint64_t allocate(std::size_t bytes, std::string name);
  /// Allocates at an address of the caller's choice: a kernel's parameters may then hold addresses of the host, whose
  /// bytes are brought with write() and fetched with read().
  /// \throws std::invalid_argument if another buffer is there
  void allocate_at(std::uint64_t address, std::size_t bytes, std::string name);
  /// \returns false if no buffer begins at `address`
  bool free(std::uint64_t address);
  /// \throws std::out_of_range unless the bytes lie in one buffer
  void write(std::uint64_t address, std::span<const std::uint8_t> bytes);
  void read(std::uint64_t address, std::span<std::uint8_t> bytes) const;
  void fill(std::uint64_t address, std::uint8_t value, std::size_t bytes);
  /// The bytes of the buffer at `address` hold nothing again: a read of them is undefined.
  void forget(std::uint64_t address);
  void set_rewritable(std::uint64_t address, bool rewritable);
  void set_read_only(std::uint64_t address, bool read_only);

  /// The buffer that holds [address, address + size), or nullptr.
  Buffer* find(std::uint64_t address, std::uint64_t size);
  const Buffer* find(std::uint64_t address, std::uint64_t size) const;
  /// For messages: where an address that no buffer holds lies.
  std::string location_of(std::uint64_t address) const;

  /// Numbers for the threads of a launch, distinct from those of all launches before.
  std::uint32_t take_thread_numbers(std::uint64_t count);

 private:
  std::map<std::uint64_t, Buffer> buffers_;  // by their begin
  std::uint64_t next_ = 0x4100'0000'0000;
  std::uint64_t next_thread_ = kFirstThread;
};

}  // namespace heddle::amd::simulator
