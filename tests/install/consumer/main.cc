// Uses an installed heddle as any project would: causal attention over zeros averages v.
#include <heddle/heddle.h>

int main() {
  const heddle::Tensor zeros = heddle::Tensor::zeros(heddle::DType::f32, {1, 1, 4, 8});
  heddle::AttentionOptions options;
  options.mask_mod = heddle::mods::causal();
  const heddle::Tensor o = heddle::attention(zeros, zeros, zeros, options).o;
  return heddle::get_element(o, {0, 0, 3, 7}) == 0 ? 0 : 1;
}
