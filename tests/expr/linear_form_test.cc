// Integer expressions as sums: the order of their terms, which texts of kernels follow.
#include "expr/linear_form.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "expr/order.h"

namespace heddle::expr {
namespace {

LinearForm form_of(const Expr& e) {
  LinearForms forms;
  for (const Node* node : post_order(e)) {
    if (node->type == ExprType::i32) forms.collect(*node);
  }
  return forms[e.node()];
}

// The addresses of nodes differ from process to process, and kernels on disk are found by their text.
TEST(LinearForm, TermsAreInAnOrderOfContent) {
  std::vector<Expr> atoms;
  for (int i = 0; i < 12; ++i) atoms.push_back(param(fmt::format("p{}", i * 7 % 12), ExprType::i32));
  atoms.push_back(leaf::q_idx() % 5);
  atoms.push_back(leaf::kv_idx());
  Expr sum = 3;
  for (const Expr& atom : atoms) sum = sum + atom * 2;
  const LinearForm form = form_of(sum);
  EXPECT_EQ(form.terms.size(), atoms.size());
  EXPECT_TRUE(std::ranges::is_sorted(
      form.terms, [](const LinearTerm& x, const LinearTerm& y) { return stands_before(*x.atom, *y.atom); }));
  EXPECT_EQ(form.constant, 3);

  Expr other = 3;
  for (std::size_t i = atoms.size(); i-- > 0;) other = atoms[i] * 2 + other;
  EXPECT_EQ(form_of(other), form);
  EXPECT_EQ(canonical(form_of(Expr(0) - other))->form, canonical(form)->form);
}

}  // namespace
}  // namespace heddle::expr
