#include "engine/mask_rows.h"

namespace heddle::engine {

Bindings mask_bindings(const Expr& mask, const Bindings& given, base::OnHost& host) {
  Bindings own = {.captures = {}, .params = given.params};
  if (mask.empty()) return own;
  for (const auto& [name, declared] : symbols_of(mask).captures) {
    own.captures[name] = host.view(given.captures.at(name));
  }
  return own;
}

std::shared_ptr<const BlockMask> MaskRows::operator()(BlockSize block) {
  if (!on_host_) on_host_ = mask_bindings(problem_.mask_mod, options_.bindings, host_);
  if (options_.block_mask != nullptr) {
    options_.block_mask->check_current(*on_host_);
    return options_.block_mask;
  }
  if (problem_.mask_mod.empty()) return nullptr;
  if (last_ != nullptr && last_->block() == block) return last_;
  const DType reals = problem_.precision == expr::Precision::f64 ? DType::f64 : DType::f32;
  last_ = std::make_shared<BlockMask>(BlockMask::build(problem_.mask_mod, {problem_.q_heads, problem_.sequences}, block,
                                                       *on_host_, options_.threads, reals));
  return last_;
}

}  // namespace heddle::engine
