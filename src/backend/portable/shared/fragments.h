// The fragments that portable kernels are made of, an entry each: all that planning and kernels must know of an
// architecture's. Each is a header of portable/fragments in kernels, kernels/nvidia or kernels/amd.
#pragma once

namespace heddle::shared {

enum class FragmentKind : int { host, mma, fma, gfx11, gfx12, gfx9, warpgroup, outer, tf32, dmma };

struct Fragments {
  const char* name = nullptr;  // of the header; with a capital, of the class
  int wave = 0;                // threads
  int rows = 0;                // of scores
  int columns = 0;             // of scores and of o
  bool transposed = false;     // values stand by columns in shared memory: the architecture has no transposing load
  bool ring = false;           // its Stream has a ring of blocks (kernels/portable/fragments/README.md)
  bool states_waves = false;   // a kernel must state how many of its waves share a SIMD (portable_text.h)
  /// The families take the kernel tables of these fragments: both need the same registers.
  FragmentKind tables = FragmentKind::fma;
  /// If no kernel of these fits, or all need scratch memory, plain multiply-adds compute.
  bool plain_follow = false;
  /// backward_mma: a pass of keys can add dq to sums in memory.
  bool adds_queries = false;
  /// Likewise: each wave multiplies dS of its own keys alone and turns it, this many queries at a time. 0: dS of all
  /// waves passes through shared memory, and they multiply it together.
  int turned_queries = 0;
  /// These serve many rows alone. Few rows take plain multiply-adds.
  bool of_many_rows = false;
  /// Keys and values of 8 bits become f16 on their way into shared memory; else as they are read there.
  bool converts_first = false;
  /// Keys whose weights pass through shared memory at once, to the other threads that have the rows.
  int weight_keys = 0;
};

/// Has no name for a number that is no kind. Members that an entry leaves out are false.
constexpr Fragments fragments_of(FragmentKind kind) {
  using enum FragmentKind;
  switch (kind) {
    case host:  // the tests' own: a wave is one thread
      return {.name = "host", .wave = 1, .rows = 16, .columns = 16, .ring = true, .tables = mma, .adds_queries = true};
    case mma:
      return {.name = "mma", .wave = 32, .rows = 16, .columns = 16, .ring = true, .tables = mma, .adds_queries = true};
    case fma:
      return {
          .name = "fma", .wave = 32, .rows = 16, .columns = 16, .ring = true, .tables = fma, .converts_first = true};
    case gfx11:
      return {.name = "gfx11",
              .wave = 32,
              .rows = 16,
              .columns = 16,
              .transposed = true,
              .tables = gfx11,
              .plain_follow = true,
              .converts_first = true};
    case gfx12:
      return {.name = "gfx12",
              .wave = 32,
              .rows = 16,
              .columns = 16,
              .transposed = true,
              .tables = gfx11,
              .plain_follow = true,
              .converts_first = true};
    case gfx9:
      return {.name = "gfx9",
              .wave = 64,
              .rows = 32,
              .columns = 32,
              .transposed = true,
              .states_waves = true,
              .tables = gfx9,
              .plain_follow = true,
              .converts_first = true};
    case warpgroup:  // of decode_mma alone: four waves multiply 64 rows together (ForwardMmaConfig::by_warpgroups())
      return {.name = "warpgroup", .wave = 32, .rows = 16, .columns = 16, .ring = true, .tables = mma};
    case outer:  // f32
      return {.name = "outer",
              .wave = 32,
              .rows = 16,
              .columns = 32,
              .tables = outer,
              .plain_follow = true,
              .adds_queries = true,
              .turned_queries = 32,
              .of_many_rows = true,
              .weight_keys = 16};
    case tf32:  // f32, where allow_tf32 is asked for
      return {.name = "tf32",
              .wave = 32,
              .rows = 16,
              .columns = 32,
              .tables = tf32,
              .plain_follow = true,
              .adds_queries = true,
              .turned_queries = 32,
              .of_many_rows = true};
    case dmma:  // f64, on NVIDIA's chips whose tensor cores have it (nvidia_target())
      return {
          .name = "dmma", .wave = 32, .rows = 16, .columns = 16, .ring = true, .tables = dmma, .plain_follow = true};
  }
  return {};
}
constexpr const char* name(FragmentKind kind) { return fragments_of(kind).name; }

}  // namespace heddle::shared
