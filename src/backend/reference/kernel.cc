#include <nlohmann/json.hpp>

#include "backend/backends.h"
#include "backend/reference/attend.h"
#include "base/element.h"

namespace heddle::backend {
namespace {

class ReferenceKernel final : public Kernel {
 public:
  explicit ReferenceKernel(const problem::AttentionProblem& problem) : problem_(problem) {}

  void launch(const RunArguments& arguments) const override {
    const TensorView& o = arguments.tensors.o;
    reference::attend(problem_, arguments, 0,
                      [&](const reference::RowPlace& at, const reference::RowInputs*, const reference::RowResult& row) {
                        std::int64_t offset = at.batch * o.strides[0] + at.head * o.strides[1] + at.row * o.strides[2];
                        for (double x : row.o) base::store_element(o.data, o.dtype, offset++, x);
                        if (arguments.tensors.lse) store_lse(*arguments.tensors.lse, at, row.lse);
                      });
  }

  nlohmann::ordered_json facts() const override {
    return {{"summary", "float64, row by row; score and weight mods interpreted unsimplified in float64"}};
  }

 private:
  static void store_lse(const TensorView& lse, const reference::RowPlace& at, double x) {
    const std::int64_t offset = at.batch * lse.strides[0] + at.head * lse.strides[1] + at.row * lse.strides[2];
    base::store_element(lse.data, lse.dtype, offset, x);
  }

  problem::AttentionProblem problem_;
};

std::unique_ptr<Kernel> prepare(const PrepareArguments& arguments) {
  return std::make_unique<ReferenceKernel>(arguments.problem);
}

}  // namespace

const Backend& reference_backend() {
  static constexpr Backend backend = {BackendChoice::reference, prepare};
  return backend;
}

}  // namespace heddle::backend
