// Captures whose elements finite differences move.
#pragma once

#include <map>
#include <string>

#include "expr/node.h"
#include "heddle/tensor.h"

namespace heddle::test {

/// The random expressions' captures in f64, so that an element can be moved a little.
class MovableCaptures {
 public:
  explicit MovableCaptures(const Bindings& given) : bindings_(given) {
    for (auto& [name, view] : bindings_.captures) {
      if (!is_floating(view.dtype)) continue;
      tensors_[name] = copy(view, DType::f64);
      view = tensors_[name];
    }
  }
  const Bindings& bindings() const { return bindings_; }
  double& element(const std::string& name, const Dims& index) {
    const Tensor& tensor = tensors_.at(name);
    const Dims strides = contiguous_strides(tensor.shape());
    std::int64_t offset = 0;
    for (int axis = 0; axis < index.size(); ++axis) offset += index[axis] * strides[axis];
    return static_cast<double*>(tensor.data())[offset];
  }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const Dims& shape(const std::string& name) const { return tensors_.at(name).shape(); }

 private:
  Bindings bindings_;
  std::map<std::string, Tensor> tensors_;
};

inline Expr with_f64_captures(const Expr& e) {
  return expr::rewrite(e, [](const expr::Node& node, std::span<const Expr> operands) {
    if (expr::info(node.op).kind != expr::Kind::read || node.type != ExprType::f32)
      return expr::with_operands(node, operands);
    return expr::make(node.op, node.type, operands,
                      expr::CaptureDecl{node.capture().name, DType::f64, node.capture().rank});
  });
}

}  // namespace heddle::test
