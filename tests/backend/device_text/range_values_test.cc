// The generated interval function of a mask, compiled for the host, beside the host's own analysis: as sharp, and never
// too narrow.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>

#include "backend/device_text/host_program.h"
#include "backend/gpu/mask_rows_text.h"
#include "expr/simplify.h"
#include "heddle/mods.h"
#include "mask/descent.h"
#include "mask/random_mask.h"
#include "mask/zone_map.h"
#include "shared/intervals.h"
#include "shared/mask_rows.h"

namespace heddle::device_text::test {
namespace {

using expr::Leaf;
using shared::Interval;
using shared::Truth;
using shared::ZoneCell;

using Call = Truth (*)(const shared::ModValues&, const ZoneCell* const*, int, int, Interval, Interval);

/// An element as cells hold it.
int cell_word(const ConstTensorView& view, std::int64_t offset) {
  const auto* data = static_cast<const char*>(view.data) + offset * size_of(view.dtype);
  if (view.dtype == DType::boolean) return *data != 0 ? 1 : 0;
  if (view.dtype == DType::u8) return static_cast<unsigned char>(*data);
  int word = 0;
  std::memcpy(&word, data, sizeof word);
  return word;
}

/// The trees of a mask's captures, as the kernels make them, the plain way.
class Zones {
 public:
  Zones(const gpu::RowMask& mask, const Bindings& bindings) {
    for (std::size_t i = 0; i < mask.axes.size(); ++i) {
      const ConstTensorView& view = bindings.captures.at(mask.layout.captures[i].name);
      trees_[i] = mask.axes[i] < 0 ? nullptr : make(view, mask.axes[i]);
    }
  }
  const ZoneCell* const* trees() const { return trees_; }

 private:
  const ZoneCell* make(const ConstTensorView& view, int axis) {
    const std::int64_t extent = view.shape[axis], groups = (extent + shared::kZoneGroup - 1) / shared::kZoneGroup;
    const bool real = view.dtype == DType::f32;
    const auto less = [&](int x, int y) { return real ? std::bit_cast<float>(x) < std::bit_cast<float>(y) : x < y; };
    std::vector<ZoneCell>& cells = owned_.emplace_back();
    // A capture has at most two axes here.
    const int other = view.rank() == 2 ? 1 - axis : -1;
    for (std::int64_t slice = 0; slice < (other < 0 ? 1 : view.shape[other]); ++slice) {
      std::vector<ZoneCell> tree(static_cast<std::size_t>(2 * groups));
      for (std::int64_t g = groups - 1; g >= 0; --g) {
        for (std::int64_t at = g * shared::kZoneGroup; at < std::min(extent, (g + 1) * shared::kZoneGroup); ++at) {
          const int word = cell_word(view, at * view.strides[axis] + (other < 0 ? 0 : slice * view.strides[other]));
          ZoneCell& cell = tree[static_cast<std::size_t>(groups + g)];
          if (at == g * shared::kZoneGroup) cell = {word, word};
          if (less(word, cell.lo)) cell.lo = word;
          if (less(cell.hi, word)) cell.hi = word;
        }
      }
      for (auto i = static_cast<std::size_t>(groups) - 1; i > 0; --i) {
        const ZoneCell &x = tree[2 * i], &y = tree[2 * i + 1];
        tree[i] = {less(y.lo, x.lo) ? y.lo : x.lo, less(x.hi, y.hi) ? y.hi : x.hi};
      }
      cells.insert(cells.end(), tree.begin(), tree.end());
    }
    return cells.data();
  }

  std::deque<std::vector<ZoneCell>> owned_;
  const ZoneCell* trees_[shared::kModCaptures] = {};
};

/// Masks compiled together.
class Ranges {
 public:
  std::size_t add(const Expr& mask, const plan::KvStart& start = {}) {
    masks_.push_back(gpu::row_mask(expr::simplify(mask, expr::Precision::f32), start));
    const std::string name = fmt::format("mask{}", masks_.size() - 1);
    text_ += range_text(name, masks_.back().mask, masks_.back().layout, masks_.back().axes);
    table_ += fmt::format("heddle::{}_range,\n", name);
    return masks_.size() - 1;
  }
  void compile() {
    library_ = load_on_host("#include \"mods/instructions.cuh\"\n" + text_ +
                            "using Call = heddle::shared::Truth (*)(const heddle::shared::ModValues&, const "
                            "heddle::shared::ZoneCell* const*, int, int, heddle::shared::Interval, "
                            "heddle::shared::Interval);\nextern \"C\" const Call calls[];\nconst Call calls[] = {" +
                            table_ + "};\n");
    calls_ = static_cast<const Call*>(dlsym(library_.get(), "calls"));
  }
  const gpu::RowMask& mask(std::size_t i) const { return masks_[i]; }
  Call call(std::size_t i) const { return calls_[i]; }

 private:
  std::vector<gpu::RowMask> masks_;
  std::string text_, table_;
  std::shared_ptr<void> library_;
  const Call* calls_ = nullptr;
};

struct Box {
  std::int64_t q_begin, q_end, kv_begin, kv_end;
};

/// Both classifications of a box of one sequence: by a mask's generated function, and by the host's analysis.
class Sides {
 public:
  Sides(const Ranges& ranges, std::size_t number, const Expr& mask, const Bindings& bindings)
      : mask_(ranges.mask(number)),
        call_(ranges.call(number)),
        zones_(mask_, bindings),
        bound_(expr::simplify(expr::bind_params(mask, bindings), expr::Precision::f32)),
        zone_map_(bound_, bindings, expr::Precision::f32),
        host_(bound_, expr::Precision::f32, zone_map_) {
    Bindings all = bindings;
    all.params["q_token"] = all.params["kv_token"] = all.params[plan::kKvStartName] = 0;
    values_ = bound_values(mask_.layout, all);
    for (std::size_t i = 0; i < mask_.layout.params.size(); ++i) {
      if (mask_.layout.params[i].first == plan::kKvStartName) kv_start_word_ = static_cast<int>(i);
    }
  }

  Truth generated(const Sequence& sequence, int b, int h, const Box& box) const {
    shared::ModValues values = values_;
    values.q_len = static_cast<int>(sequence.q_len);
    values.kv_len = static_cast<int>(sequence.kv_len);
    values.q_start = static_cast<int>(sequence.q_start);
    const auto word = [](std::int64_t x) { return static_cast<unsigned>(static_cast<int>(x)); };
    if (mask_.q_token_word >= 0) values.params[mask_.q_token_word] = word(sequence.q_begin - sequence.q_start);
    if (mask_.kv_token_word >= 0) values.params[mask_.kv_token_word] = word(sequence.kv_begin);
    if (kv_start_word_ >= 0) values.params[kv_start_word_] = word(sequence.kv_start);
    return call_(values, zones_.trees(), b, h, {sequence.q_start + box.q_begin, sequence.q_start + box.q_end - 1},
                 {box.kv_begin, box.kv_end - 1});
  }
  Truth host(const Sequence& sequence, int b, int h, const Box& box) const {
    expr::LeafRanges leaves = mask::MaskRanges::leaves(sequence, b, h);
    const auto range = [](std::int64_t lo, std::int64_t hi) {
      return expr::Range{static_cast<double>(lo), static_cast<double>(hi)};
    };
    leaves[Leaf::q_idx] = range(sequence.q_start + box.q_begin, sequence.q_start + box.q_end - 1);
    leaves[Leaf::kv_idx] = range(sequence.kv_start + box.kv_begin, sequence.kv_start + box.kv_end - 1);
    const expr::Range found = host_.analysis()(leaves);
    return {found.lo == 0, found.hi == 1};
  }

 private:
  const gpu::RowMask& mask_;
  Call call_;
  Zones zones_;
  Expr bound_;
  mask::ZoneMap zone_map_;
  mask::MaskRanges host_;
  shared::ModValues values_{};
  int kv_start_word_ = -1;
};

bool holds(Truth wide, Truth narrow) {
  return (wide.can_be_false || !narrow.can_be_false) && (wide.can_be_true || !narrow.can_be_true);
}

Box random_box(heddle::test::RandomMasks& random, const Sequence& sequence) {
  const auto span = [&](std::int64_t length) {
    const std::int64_t begin = random.below(static_cast<int>(length));
    return std::pair(begin, begin + 1 + random.below(static_cast<int>(length - begin)));
  };
  const auto [q_begin, q_end] = span(sequence.q_len);
  const auto [kv_begin, kv_end] = span(sequence.kv_len);
  return {q_begin, q_end, kv_begin, kv_end};
}

TEST(GeneratedRanges, HoldWhatSingleElementsAre) {
  constexpr int kMasks = 60;
  heddle::test::RandomMasks random(5);
  Ranges ranges;
  std::vector<Expr> masks;
  const plan::KvStart start = {.form = plan::KvStart::Form::param, .bound = 1 << 23};
  for (int i = 0; i < kMasks; ++i) ranges.add(masks.emplace_back(random.draw()), start);
  ranges.compile();
  int decided = 0, decided_by_host = 0;
  for (std::size_t i = 0; i < masks.size(); ++i) {
    SCOPED_TRACE(print(masks[i]));
    const Sides sides(ranges, i, masks[i], random.bindings());
    for (int round = 0; round < 200; ++round) {
      const MaskShape shape = random.shape();
      const int b = random.below(static_cast<int>(shape.sequences.size())), h = random.below(3);
      const Sequence& sequence = shape.sequences[static_cast<std::size_t>(b)];
      if (sequence.q_len == 0 || sequence.kv_len == 0) continue;
      const Box box = random_box(random, sequence);
      const Truth found = sides.generated(sequence, b, h, box), by_host = sides.host(sequence, b, h, box);
      decided += found.is_open() ? 0 : 1;
      decided_by_host += by_host.is_open() ? 0 : 1;
      for (int sample = 0; sample < 8; ++sample) {
        const std::int64_t q = box.q_begin + random.below(static_cast<int>(box.q_end - box.q_begin));
        const std::int64_t kv = box.kv_begin + random.below(static_cast<int>(box.kv_end - box.kv_begin));
        const Truth one = sides.host(sequence, b, h, {q, q + 1, kv, kv + 1});
        ASSERT_TRUE(one.is_open() || holds(found, one)) << q << ", " << kv;
        const Truth generated_one = sides.generated(sequence, b, h, {q, q + 1, kv, kv + 1});
        ASSERT_EQ(generated_one, one) << q << ", " << kv;
      }
    }
  }
  // The rest are reads of many rows, and of ends of groups.
  EXPECT_GT(decided, decided_by_host * 0.85) << decided_by_host;
  EXPECT_LE(decided, decided_by_host);
}

TEST(GeneratedRanges, AreTheHostsWithoutCaptures) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx(), x = to_f32(q), y = to_f32(kv);
  const Expr window = param("window", ExprType::i32);
  const std::vector<Expr> masks = {mods::causal(),
                                   mods::causal_lower_right(),
                                   mods::sliding_window(20, 3),
                                   mods::dilated_window(60, 7),
                                   mods::prefix_lm(33),
                                   mods::global_and_window(10, 24),
                                   mods::neighbourhood_2d(16, 2, 3),
                                   mods::block_diffusion(24),
                                   2 * q >= 2 * kv,
                                   !(q < kv),
                                   q - kv >= 0,
                                   3 * q - kv > 2 * q,
                                   q * 9000000 >= kv * 9000001,
                                   abs(q - kv) <= window,
                                   floor_div(q, window) == floor_div(kv, window),
                                   q * q > kv * kv,
                                   (q - 300) % (window - 10) == kv % 5,
                                   where(q > kv, q - kv, kv - q) < 9,
                                   x * 0.5 > y - 3,
                                   (x - 40) * (y - 30) > 0,
                                   x / (y + 1) < 2,
                                   floor(x / 8) == floor(y / 8),
                                   min(x, y) < max(x - 5, 7),
                                   sqrt(x) > y,
                                   abs(x - y) < 4,
                                   to_i32(x * 0.3) == kv,
                                   (x - x) == 0,
                                   to_f32(q < kv) < 0.5,
                                   q == kv,
                                   q != kv,
                                   (q < kv) ^ (q > 7),
                                   -q<-kv, (q >> 4) == (kv >> 4), ((q ^ kv) & 24) == 0, (q | 7)>(kv & window),
                                   (q << (kv & 3)) > (kv << 2),
                                   (q >> (kv - 60)) > 1,
                                   (~q & 48) == (kv & 48),
                                   sign(q - kv) >= 0,
                                   ceil(x / 8) == ceil(y / 8),
                                   round(x * 0.25) >= y,
                                   trunc((x - y) / 9) == 0,
                                   sign(x - y) > 0,
                                   isnan(sqrt(x - 70)) | (q > kv),
                                   isinf(x / (y - 40)) ^ (q > 7),
                                   (5 - x) <= -y};
  Ranges ranges;
  for (const Expr& mask : masks) ranges.add(mask);
  ranges.compile();
  heddle::test::RandomMasks random(6);
  for (std::size_t i = 0; i < masks.size(); ++i) {
    SCOPED_TRACE(print(masks[i]));
    const Sides sides(ranges, i, masks[i], random.bindings());
    for (int round = 0; round < 500; ++round) {
      const Sequence sequence{.q_len = 150, .kv_len = 130, .q_start = random.below(3) * 57};
      const Box box = random_box(random, sequence);
      ASSERT_EQ(sides.generated(sequence, 0, 0, box), sides.host(sequence, 0, 0, box))
          << box.q_begin << ".." << box.q_end << ", " << box.kv_begin << ".." << box.kv_end;
    }
  }
}

// Reads that leave their tensor are clamped: by the host's analysis and by the generated one alike.
TEST(GeneratedRanges, ClampWhatIsReadOutside) {
  heddle::test::RandomMasks random(7);
  const Bindings& bindings = random.bindings();
  Ranges ranges;
  std::vector<Expr> masks;
  for (const char* text : {"doc[q_idx + 30] == doc[kv_idx - 40]", "doc[-q_idx] <= doc[kv_idx * 7]",
                           "doc[kv_idx + 500] >= 5", "colour[q_idx - 9] < 100", "at(doc, q_idx - 5, -1) < doc[-5]"}) {
    ranges.add(masks.emplace_back(parse(text, Symbols(bindings))));
  }
  ranges.compile();
  int decided = 0;
  for (std::size_t i = 0; i < masks.size(); ++i) {
    SCOPED_TRACE(print(masks[i]));
    const Sides sides(ranges, i, masks[i], bindings);
    const expr::Interpreter interpreter(masks[i], bindings, expr::Precision::f32);
    for (int round = 0; round < 300; ++round) {
      const Sequence sequence{.q_len = 600, .kv_len = 640, .q_start = random.below(3) * 57 - 57};
      const Box box = random_box(random, sequence);
      const Truth found = sides.generated(sequence, 0, 0, box);
      decided += found.is_open() ? 0 : 1;
      for (int sample = 0; sample < 20; ++sample) {
        const std::int64_t q = box.q_begin + random.below(static_cast<int>(box.q_end - box.q_begin));
        const std::int64_t kv = box.kv_begin + random.below(static_cast<int>(box.kv_end - box.kv_begin));
        expr::Element element;
        element[Leaf::q_idx] = static_cast<std::int32_t>(sequence.q_start + q);
        element[Leaf::kv_idx] = static_cast<std::int32_t>(kv);
        ASSERT_TRUE(holds(found, shared::point(interpreter.boolean(element)))) << q << ", " << kv;
        ASSERT_TRUE(holds(sides.host(sequence, 0, 0, box), shared::point(interpreter.boolean(element))));
      }
    }
  }
  EXPECT_GT(decided, 100);
}

}  // namespace
}  // namespace heddle::device_text::test
