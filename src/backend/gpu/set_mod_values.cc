#include "backend/gpu/set_mod_values.h"

#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>

namespace heddle::gpu {
namespace {

struct Words {
  unsigned lower, upper;
};
Words words_of(const ParamValue& value, ExprType type, expr::Precision reals) {
  return std::visit(
      [&](auto x) -> Words {
        if (type != ExprType::f32) return {static_cast<unsigned>(static_cast<std::int32_t>(x)), 0};
        if (reals == expr::Precision::f32) return {std::bit_cast<unsigned>(static_cast<float>(x)), 0};
        const auto bits = std::bit_cast<std::uint64_t>(static_cast<double>(x));
        return {static_cast<unsigned>(bits), static_cast<unsigned>(bits >> 32)};
      },
      value);
}

template <class Map>
const typename Map::mapped_type& bound(const Map& own, const Map& callers, const std::string& name) {
  const auto found = own.find(name);
  return found != own.end() ? found->second : callers.at(name);
}

}  // namespace

void set_mod_values(const device_text::ModLayout& layout, const Bindings& bindings, const Bindings& own,
                    shared::ModValues& values) {
  for (std::size_t i = 0; i < layout.params.size(); ++i) {
    const auto& [name, type] = layout.params[i];
    const Words words = words_of(bound(own.params, bindings.params, name), type, layout.reals);
    values.params[i] = words.lower;
    values.upper_params[i] = words.upper;
  }
  for (std::size_t i = 0; i < layout.captures.size(); ++i) {
    const ConstTensorView& view = bound(own.captures, bindings.captures, layout.captures[i].name);
    shared::ModCapture& capture = values.captures[i];
    capture.data = view.data;
    for (int axis = 0; axis < view.rank(); ++axis) {
      capture.stride[axis] = view.strides[axis];
      capture.extent[axis] = static_cast<int>(view.shape[axis]);
    }
  }
}

}  // namespace heddle::gpu
