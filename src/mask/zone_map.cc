#include "mask/zone_map.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <type_traits>

#include "base/element.h"
#include "heddle/error.h"

namespace heddle::mask {
namespace {

using expr::Range;

constexpr int kGroupLevel = 6;  // the smallest groups have 64 elements: half a byte of pyramid an element
constexpr std::int64_t kGroup = std::int64_t{1} << kGroupLevel;
constexpr std::int64_t kMaxRows = 256;       // rows of a box that are looked up one by one
constexpr std::int64_t kMaxOuter = 64;       // slices of a box that are looked up one by one
constexpr std::int64_t kMaxElements = 1024;  // elements at the ragged ends of a box that are read one by one

/// The indices [begin, end) along one axis.
struct Span {
  std::int64_t begin = 0, end = 1;
  std::int64_t size() const { return end - begin; }
};

/// An axis of the tensor in its new place; `position` is -1 for the axis of one element that stands in for none.
struct Axis {
  int position = -1;
  std::int64_t extent = 1, stride = 0;
};

/// Covers `span` with aligned power-of-two groups: group(level, index), each inside the span or reaching past the end
/// of the axis, and single(begin, end) for what is left at the ends. Without `singles` the ends are rounded outwards.
template <class Single, class Group>
void cover(Span span, std::int64_t extent, bool singles, Single&& single, Group&& group) {
  if (!singles) {
    span.begin &= ~(kGroup - 1);
    span.end = std::min(extent, (span.end + kGroup - 1) & ~(kGroup - 1));
  }
  const auto fits = [&](int level) {
    const std::int64_t size = std::int64_t{1} << level;
    return (span.begin & (size - 1)) == 0 && (span.begin + size <= span.end || span.end == extent);
  };
  while (span.begin < span.end) {
    if (!fits(kGroupLevel)) {
      const std::int64_t next = std::min(span.end, (span.begin / kGroup + 1) * kGroup);
      single(span.begin, next);
      span.begin = next;
      continue;
    }
    int level = kGroupLevel;
    while ((std::int64_t{1} << level) < extent && fits(level + 1)) ++level;
    group(level, span.begin >> level);
    span.begin += std::int64_t{1} << level;
  }
}

/// Levels of groups until one group holds the whole axis.
int group_levels(std::int64_t extent) {
  int levels = 1;
  while ((kGroup << (levels - 1)) < extent) ++levels;
  return levels;
}

}  // namespace

class ZoneMap::Zones {
 public:
  explicit Zones(const ConstTensorView& view) : shape_(view.shape) {}
  virtual ~Zones() = default;
  Zones(const Zones&) = delete;
  Zones& operator=(const Zones&) = delete;

  virtual Range box(std::span<const Range> indices) const = 0;
  const Dims& shape() const { return shape_; }

 private:
  Dims shape_;
};

namespace {

template <class Storage>
constexpr bool kReal = std::is_floating_point_v<Storage> || std::is_same_v<Storage, f16> ||
                       std::is_same_v<Storage, bf16> || std::is_same_v<Storage, e4m3> || std::is_same_v<Storage, e5m2>;

/// Elements are compared as double, float or 32-bit integers.
template <class Storage>
using ValueOf = std::conditional_t<std::is_same_v<Storage, double>, double,
                                   std::conditional_t<kReal<Storage>, float, std::int32_t>>;

/// Bounds of a group's elements. If all are NaN: lo is +inf and hi -inf, as in a Range.
template <class Value>
struct Cell {
  Value lo = std::numeric_limits<Value>::has_infinity ? std::numeric_limits<Value>::infinity()
                                                      : std::numeric_limits<Value>::max();
  Value hi = std::numeric_limits<Value>::has_infinity ? -std::numeric_limits<Value>::infinity()
                                                      : std::numeric_limits<Value>::min();
  std::conditional_t<std::is_floating_point_v<Value>, bool, std::false_type> nan{};

  void add(Value x) {
    lo = x < lo ? x : lo;
    hi = x > hi ? x : hi;
    if constexpr (std::is_floating_point_v<Value>) nan |= x != x;
  }
  void add(const Cell& other) {
    lo = std::min(lo, other.lo);
    hi = std::max(hi, other.hi);
    if constexpr (std::is_floating_point_v<Value>) nan |= other.nan;
  }
};

template <class Storage>
ValueOf<Storage> value_of(Storage x) {
  if constexpr (std::is_arithmetic_v<Storage>) {
    return static_cast<ValueOf<Storage>>(x);  // of an integer the low 32 bits
  } else if constexpr (std::is_same_v<Storage, base::Boolean>) {
    return x.bits != 0;
  } else {
    return static_cast<ValueOf<Storage>>(base::decode(x));
  }
}

/// Adds `columns` of a row, which begins at `row_offset`, to a cell.
template <class Storage>
void scan(const void* data, std::int64_t row_offset, std::int64_t stride, Span columns, Cell<ValueOf<Storage>>& into) {
  Cell<ValueOf<Storage>> found = into;
  if (stride == 1) {
    for (std::int64_t c = columns.begin; c < columns.end; ++c) {
      found.add(value_of(base::load_raw<Storage>(data, row_offset + c)));
    }
  } else {
    for (std::int64_t c = columns.begin; c < columns.end; ++c) {
      found.add(value_of(base::load_raw<Storage>(data, row_offset + c * stride)));
    }
  }
  into = found;
}

/// Zones over values; only `scan` knows how they are stored, so that all else is compiled for three types, not fifteen.
template <class Value>
class TypedZones final : public ZoneMap::Zones {
 public:
  using Scan = void (*)(const void* data, std::int64_t row_offset, std::int64_t stride, Span columns,
                        Cell<Value>& into);

  TypedZones(const ConstTensorView& view, expr::Precision precision, Scan scans)
      : Zones(view), data_(view.data), read_type_(view.dtype), precision_(precision), scan_(scans) {
    std::vector<int> order;
    for (int axis = 0; axis < view.rank(); ++axis) {
      if (view.strides[axis] != 0) order.push_back(axis);  // others hold the same at all indices
    }
    // Ties go to the later axis, which is the contiguous one of a row-major tensor.
    std::stable_sort(order.begin(), order.end(), [&](int x, int y) {
      return view.shape[x] != view.shape[y] ? view.shape[x] > view.shape[y] : x > y;
    });
    for (std::size_t i = 0; i < order.size(); ++i) {
      const int position = order[i];
      const Axis axis{position, view.shape[position], view.strides[position]};
      if (i == 0) {
        column_ = axis;
      } else if (i == 1) {
        row_ = axis;
      } else {
        outer_.push_back(axis);
      }
    }
    empty_ = view.count() == 0;
  }

  Range box(std::span<const Range> indices) const override {
    if (empty_) return Range::any(expr::read_type(read_type_));
    const Span columns = span_of(column_, indices), rows = span_of(row_, indices);
    std::int64_t slices = 1;
    for (const Axis& axis : outer_) slices *= span_of(axis, indices).size();

    Cell found;
    if (slices * rows.size() * columns.size() <= kGroup) {
      for_slices(indices, [&](std::int64_t, std::int64_t offset) {
        for (std::int64_t r = rows.begin; r < rows.end; ++r) scan(offset + r * row_.stride, columns, found);
      });
    } else {
      require_built();
      if (slices > kMaxOuter) {
        found = whole_;
      } else {
        look_up(rows, columns, slices, indices, found);
      }
    }
    return range_of(found);
  }

 private:
  using Cell = mask::Cell<Value>;

  /// The groups of one size: [slice][row group][column group].
  struct Level {
    std::int64_t row_groups = 0, column_groups = 0;
    std::vector<Cell> cells;
    const Cell& at(std::int64_t slice, std::int64_t row, std::int64_t column) const {
      return cells[static_cast<std::size_t>((slice * row_groups + row) * column_groups + column)];
    }
  };

  static Span span_of(const Axis& axis, std::span<const Range> indices) {
    if (axis.position < 0) return {};
    const Range& index = indices[static_cast<std::size_t>(axis.position)];
    const double last = static_cast<double>(axis.extent - 1);
    return {static_cast<std::int64_t>(std::clamp(index.lo, 0.0, last)),
            static_cast<std::int64_t>(std::clamp(index.hi, 0.0, last)) + 1};
  }

  /// Calls f(slice, offset) for each combination of the outer axes' indices in the box: its number in the pyramid and
  /// where its elements start.
  template <class F>
  void for_slices(std::span<const Range> indices, F&& f, std::size_t depth = 0, std::int64_t slice = 0,
                  std::int64_t offset = 0) const {
    if (depth == outer_.size()) {
      f(slice, offset);
      return;
    }
    const Axis& axis = outer_[depth];
    const Span span = indices.empty() ? Span{0, axis.extent} : span_of(axis, indices);
    for (std::int64_t i = span.begin; i < span.end; ++i) {
      for_slices(indices, f, depth + 1, slice * axis.extent + i, offset + i * axis.stride);
    }
  }

  void scan(std::int64_t row_offset, Span columns, Cell& into) const {
    scan_(data_, row_offset, column_.stride, columns, into);
  }

  // Levels stand in a table: row level 0 (single rows) or a group level, times a column group level.
  Level& level(int row_level, int column_level) const {
    return levels_[static_cast<std::size_t>(row_level) * static_cast<std::size_t>(column_levels_) +
                   static_cast<std::size_t>(column_level)];
  }

  /// std::call_once does not serve: if memory is out, an exception that leaves it ends the process (glibc then opens a
  /// library).
  void require_built() const {
    if (built_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(building_);
    if (built_.load(std::memory_order_relaxed)) return;
    build();
    built_.store(true, std::memory_order_release);
  }

  void build() const {
    column_levels_ = group_levels(column_.extent);
    const int row_levels = row_.extent > 1 ? 1 + group_levels(row_.extent) : 1;
    levels_.resize(static_cast<std::size_t>(row_levels) * static_cast<std::size_t>(column_levels_));
    std::int64_t slices = 1;
    for (const Axis& axis : outer_) slices *= axis.extent;

    for (int k = 0; k < row_levels; ++k) {
      for (int l = 0; l < column_levels_; ++l) {
        Level& here = level(k, l);
        const std::int64_t row_group = k == 0 ? 1 : kGroup << (k - 1), column_group = kGroup << l;
        here.row_groups = (row_.extent + row_group - 1) / row_group;
        here.column_groups = (column_.extent + column_group - 1) / column_group;
        here.cells.resize(static_cast<std::size_t>(slices * here.row_groups * here.column_groups));
        if (k == 0 && l == 0) {
          scan_all(here);
        } else if (l > 0) {
          merge(level(k, l - 1), here, slices, 1, 2);
        } else {
          merge(level(k - 1, l), here, slices, k == 1 ? kGroup : 2, 1);
        }
      }
    }
    for (const Cell& cell : levels_.back().cells) whole_.add(cell);
  }

  void scan_all(Level& base_level) const {
    for_slices({}, [&](std::int64_t slice, std::int64_t offset) {
      Cell* cell = base_level.cells.data() + slice * base_level.row_groups * base_level.column_groups;
      for (std::int64_t r = 0; r < row_.extent; ++r) {
        for (std::int64_t c = 0; c < column_.extent; c += kGroup) {
          scan(offset + r * row_.stride, {c, std::min(column_.extent, c + kGroup)}, *cell++);
        }
      }
    });
  }

  static void merge(const Level& fine, Level& coarse, std::int64_t slices, std::int64_t rows, std::int64_t columns) {
    for (std::int64_t row = 0; row < slices * fine.row_groups; ++row) {
      const std::int64_t slice = row / fine.row_groups, r = row % fine.row_groups;
      const Cell* from = fine.cells.data() + row * fine.column_groups;
      Cell* to = coarse.cells.data() + (slice * coarse.row_groups + r / rows) * coarse.column_groups;
      for (std::int64_t c = 0; c < fine.column_groups; ++c) to[c / columns].add(from[c]);
    }
  }

  void look_up(Span rows, Span columns, std::int64_t slices, std::span<const Range> indices, Cell& found) const {
    const std::int64_t single_rows = slices * std::min(rows.size(), 2 * kGroup);
    const bool rows_singly = single_rows <= kMaxRows;
    const bool elements_singly = rows_singly && single_rows * std::min(columns.size(), 2 * kGroup) <= kMaxElements;
    for_slices(indices, [&](std::int64_t slice, std::int64_t offset) {
      // A group of rows takes groups of columns only: its ragged ends would be as many elements as it has rows.
      const auto groups_in = [&](int row_level, std::int64_t row) {
        cover(
            columns, column_.extent, false, [](std::int64_t, std::int64_t) {},
            [&](int l, std::int64_t group) { found.add(level(row_level, l - kGroupLevel).at(slice, row, group)); });
      };
      const auto row_singly = [&](std::int64_t row) {
        if (!elements_singly && single_rows > 1) return groups_in(0, row);
        cover(
            columns, column_.extent, true,
            [&](std::int64_t begin, std::int64_t end) {
              scan(offset + row * row_.stride, {begin, end}, found);
            },
            [&](int l, std::int64_t group) { found.add(level(0, l - kGroupLevel).at(slice, row, group)); });
      };
      if (row_.extent == 1) return row_singly(0);
      cover(
          rows, row_.extent, rows_singly,
          [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row) row_singly(row);
          },
          [&](int k, std::int64_t group) { groups_in(1 + k - kGroupLevel, group); });
    });
  }

  Range range_of(const Cell& cell) const {
    Range range{static_cast<double>(cell.lo), static_cast<double>(cell.hi), static_cast<bool>(cell.nan)};
    if constexpr (std::is_same_v<Value, double>) {
      if (precision_ == expr::Precision::f64) return range;
      range.lo = static_cast<double>(static_cast<float>(range.lo));
      range.hi = static_cast<double>(static_cast<float>(range.hi));
    }
    return range;
  }

  const void* data_;
  DType read_type_;
  expr::Precision precision_;
  Scan scan_;
  bool empty_ = false;
  Axis column_, row_;
  std::vector<Axis> outer_;

  mutable std::mutex building_;
  mutable std::atomic<bool> built_{false};
  mutable int column_levels_ = 0;
  mutable std::vector<Level> levels_;
  mutable Cell whole_;
};

std::unique_ptr<const ZoneMap::Zones> make_zones(const ConstTensorView& view, expr::Precision precision) {
  return base::with_storage_type(view.dtype,
                                 [&]<class T>(std::type_identity<T>) -> std::unique_ptr<const ZoneMap::Zones> {
                                   return std::make_unique<TypedZones<ValueOf<T>>>(view, precision, scan<T>);
                                 });
}

}  // namespace

ZoneMap::ZoneMap(const Expr& root, const Bindings& bindings, expr::Precision precision) {
  for (const auto& [name, declared] : symbols_of(root).captures) {
    const ConstTensorView& view = bindings.captures.at(name);
    zones_.emplace_back(name, make_zones(view, precision));
  }
}

ZoneMap::~ZoneMap() = default;

const ZoneMap::Zones& ZoneMap::zones_of(const std::string& name) const {
  for (const auto& [known, zones] : zones_) {
    if (known == name) return *zones;
  }
  throw Error(ErrorCode::internal, "the zone map has no capture '" + name + "'");
}

expr::Range ZoneMap::bounds(const expr::CaptureDecl& capture, std::span<const expr::Range> indices) const {
  return zones_of(capture.name).box(indices);
}

const Dims& ZoneMap::shape(const expr::CaptureDecl& capture) const { return zones_of(capture.name).shape(); }

}  // namespace heddle::mask
