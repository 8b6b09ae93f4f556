// An instruction as the simulator executes it: operands resolved, modifiers as bits, the function that does the work.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace heddle::amd::simulator {

inline constexpr int kLanes = 64;  ///< room for the wider of the two waves

/// Numbers of registers that have names. Vector registers: v0 to v255, then a0 to a255.
inline constexpr int kFirstAccumulator = 256;
inline constexpr int kVectorRegisters = 512;
inline constexpr int kScalarRegisters = 128;
inline constexpr int kFlatScratch = 102;  ///< gfx9: s102 and s103 stand for flat_scratch
inline constexpr int kVcc = 106;
inline constexpr int kTemporary = 108;  ///< ttmp0
inline constexpr int kM0 = 124;
inline constexpr int kNull = 125;  ///< reads as zero
inline constexpr int kExec = 126;

/// How the bits of an operand are read: decides the registers it takes, what a constant's text means and what `-` and
/// `|x|` do.
enum class Type : std::uint8_t {
  kNone,
  kF16,
  kF32,
  kF64,
  kI16,
  kI32,
  kI64,
  kPackedF16,
  kPackedI16,
  kPackedF32,
  kMix,   ///< v_fma_mix: f32, or the f16 half that op_sel names
  kMask,  ///< one bit for each lane, in scalar registers
};

struct Operand {
  enum class Kind : std::uint8_t { kNone, kVector, kScalar, kConstant };
  Kind kind = Kind::kNone;
  Type type = Type::kNone;
  std::uint8_t count = 1;  ///< registers
  bool negate = false;
  bool absolute = false;
  bool sign_extend = false;   ///< sdwa: sext(v0)
  std::uint8_t selected = 0;  ///< sdwa: a Select
  std::int16_t index = 0;     ///< the first register
  std::uint64_t value = 0;    ///< of a constant
};

/// SDWA: the part of a register that is read or written.
enum Select : std::uint8_t { kDword, kByte0, kByte1, kByte2, kByte3, kWord0, kWord1 };

/// DPP: which lane of its row, or of the wave, a lane reads.
struct Dpp {
  enum class Kind : std::uint8_t {
    kNone,
    kQuadPerm,
    kRowShl,
    kRowShr,
    kRowRor,
    kRowMirror,
    kRowHalfMirror,
    kRowShare,
    kRowXmask,
    kRowBcast15,
    kRowBcast31,
    kWaveShl1,
    kWaveShr1,
    kWaveRol1,
    kWaveRor1,
    kDpp8
  };
  Kind kind = Kind::kNone;
  std::array<std::uint8_t, 8> amounts{};
  std::uint8_t row_mask = 0xf;
  std::uint8_t bank_mask = 0xf;
  bool bound_control = false;   ///< a lane without a source reads 0 (else it keeps what it holds)
  bool fetch_inactive = false;  ///< lanes that exec leaves out may be read
};

/// The class under which the report counts an instruction.
enum class Class : std::uint8_t {
  kScalar,
  kScalarLoad,
  kBranch,
  kWait,
  kBarrier,
  kNoOperation,
  kVector,
  kTranscendental,
  kDual,
  kMatrix,
  kLds,
  kGlobalLoad,
  kGlobalStore,
  kAtomic,
  kScratch,
  kCache,
  kCount
};

struct Execution;
struct Instruction;
struct VectorCall;
struct ScalarCall;

/// Registers that an instruction reads or writes; scalar ones stand behind the vector ones.
struct RegisterRange {
  std::int16_t first = 0;
  std::int16_t count = 0;
  bool written = false;
};

struct Instruction {
  void (*execute)(Execution&, const Instruction&) = nullptr;
  void (*vector)(VectorCall&) = nullptr;           ///< the work on the lanes of a vector instruction
  void (*undefined)(VectorCall&) = nullptr;        ///< which result bits nothing wrote, if sources hold such (vector.h)
  std::uint64_t (*scalar)(ScalarCall&) = nullptr;  ///< of a scalar one

  std::array<Operand, 2> to{};
  std::array<Operand, 5> from{};
  std::uint8_t to_count = 0;
  std::uint8_t from_count = 0;

  std::uint8_t op_sel = 0;
  std::uint8_t op_sel_hi = 0;
  std::uint8_t neg_lo = 0;
  std::uint8_t neg_hi = 0;
  bool clamp = false;
  std::int8_t output_scale = 0;  ///< omod: multiplied by 2 to this power
  bool sdwa = false;
  std::uint8_t sdwa_to = kDword;
  bool sdwa_preserve = false;  ///< dst_unused:UNUSED_PRESERVE
  bool sdwa_sext = false;      ///< dst_unused:UNUSED_SEXT
  Dpp dpp{};
  bool keeps_high_half = false;  ///< a 16-bit result leaves the other half as it is (gfx11 on); else that half is zero
  bool writes_exec = false;      ///< v_cmpx
  bool plain = false;            ///< no modifier of any kind: sources are read in place
  bool reads_scc = false;        ///< s_addc and its like
  bool returns = false;          ///< an atomic that gives back what was there

  std::int64_t offset = 0;
  std::int64_t offset1 = 0;
  std::int32_t detail = 0;     ///< meant by the instruction's group: bytes of an access, number of a matrix form, ...
  std::int32_t target = -1;    ///< of a branch: index in the program
  std::uint8_t space = 0;      ///< of a memory instruction: a Space (memory_operations.h)
  bool offset_enable = false;  ///< buffer: offen
  bool index_enable = false;   ///< buffer: idxen
  std::int32_t second = -1;    ///< VOPD: index of the second half in Program::second_halves

  Class counted_as = Class::kScalar;
  std::int32_t cycles = 0;  ///< of the issue port, by the chip's table
  std::uint64_t address = 0;
  std::array<RegisterRange, 8> touched{};
  std::uint8_t touched_count = 0;
  std::uint8_t wait_group = 0;  ///< the counters that it increases (waits.h)
};

/// A code object's instructions.
struct Program {
  std::vector<Instruction> instructions;
  std::vector<Instruction> second_halves;
  std::vector<std::string> texts;                   ///< of the instructions, for messages
  std::uint64_t load_address = 0;                   ///< where the code object's byte 0 lies in device memory
  std::unordered_map<std::uint64_t, int> index_of;  ///< by the address in the code object

  std::unordered_map<std::size_t, std::string> unknown;  ///< why an instruction, by its index, cannot be executed

  /// -1 where no instruction begins.
  int index_at(std::uint64_t address) const {
    const auto found = index_of.find(address);
    return found == index_of.end() ? -1 : found->second;
  }
};

/// The chip that a code object is for.
struct Chip {
  std::string name;    ///< gfx1100
  int generation = 0;  ///< 9, 11, 12
  bool is_gfx90a = false;
  int lanes = 0;  ///< of a wave
};

}  // namespace heddle::amd::simulator
