// Words of the language that device code is written in, for the texts that are made of expressions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "backend/device_text/mod_layout.h"
#include "expr/node.h"

namespace heddle::device_text {

/// A literal of exactly this number.
std::string literal(float x);
std::string literal(double x);
std::string literal(std::int32_t x);
/// The type of kernels/common/mods/captures.cuh for elements of this storage, read as these reals.
std::string_view storage_text(DType dtype, expr::Precision reals);
/// "float" or "double", "int", "bool"
std::string_view type_text(ExprType type, expr::Precision reals);
std::string constant_text(const expr::Node& node, expr::Precision reals);
/// A leaf's value if all sequences are alike.
std::string leaf_text(expr::Leaf leaf);
/// A param's value: "ops::i32_param(mod.params[0])".
std::string param_text(const ModLayout& layout, const expr::Node& node);
/// Where a capture stands in the layout.
std::size_t capture_slot(const ModLayout& layout, const expr::CaptureDecl& capture);
/// A declaration in lines of at most 120 columns, for people who read a kernel's source.
std::string wrapped(std::string line);

}  // namespace heddle::device_text
