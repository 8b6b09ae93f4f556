// Proves that every read stays inside its tensor, with as little of the captures' content as that takes: bounds may
// cost a look at every element.
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "expr/read_checker.h"
#include "heddle/error.h"

namespace heddle::expr {
namespace {

/// The bounds of some captures; of the others only the shape.
class SomeBounds final : public CaptureBounds {
 public:
  SomeBounds(const CaptureBounds& all, std::set<std::string> known) : all_(all), known_(std::move(known)) {}
  Range bounds(const CaptureDecl& capture, std::span<const Range> indices) const override {
    return known_.contains(capture.name) ? all_.bounds(capture, indices) : Range::any(read_type(capture.dtype));
  }
  const Dims& shape(const CaptureDecl& capture) const override { return all_.shape(capture); }

 private:
  const CaptureBounds& all_;
  std::set<std::string> known_;
};

/// Facts about an expression that decide whether its reads are inside.
struct Evidence {
  std::unordered_set<const Node*> reading;  // the nodes below which there is a read
  std::vector<Expr> indices, guards;        // of reads
  bool terms_guard = false;                 // some term of an `and` or `or` holds a read
};

Evidence evidence_of(const Expr& root) {
  Evidence evidence;
  for (const Node* node : post_order(root)) {
    const auto reads = [&](std::size_t i) { return evidence.reading.contains(node->operands[i].get()); };
    const auto guard = [&](std::size_t i) { evidence.guards.push_back(operand(*node, i)); };
    bool reading = node->op == Op::read;
    for (std::size_t i = 0; i < node->operands.size(); ++i) {
      if (node->op == Op::read) evidence.indices.push_back(operand(*node, i));
      reading = reading || reads(i);
    }
    if (reading) evidence.reading.insert(node);
    if (node->op == Op::where && (reads(1) || reads(2))) guard(0);
    if (node->op != Op::logical_and && node->op != Op::logical_or) continue;
    if (reads(0)) guard(1);
    if (reads(1)) guard(0);
    evidence.terms_guard = evidence.terms_guard || reading;
  }
  return evidence;
}

void add_captures(std::span<const Expr> roots, std::set<std::string>& names) {
  for (const Node* node : post_order(roots)) {
    if (info(node->op).kind == Kind::read) names.insert(node->capture().name);
  }
}

/// Tries three times: without the content of captures, with the content of those in indices, and of those in guards
/// too. Each time it first takes the terms of an `and` as guarding nothing, so that contexts which a `where` needs are
/// not used up.
std::optional<std::string> refusal_of(const Expr& root, const LeafRanges& leaves, const CaptureBounds& bounds,
                                      Precision precision) {
  const Evidence evidence = evidence_of(root);
  std::optional<std::string> refusal;
  std::set<std::string> known;
  const auto proves = [&] {
    const SomeBounds some(bounds, known);
    for (int terms_guard = 0; terms_guard <= (evidence.terms_guard ? 1 : 0); ++terms_guard) {
      refusal = read_outside(root, leaves, some, precision, evidence.reading, terms_guard == 1);
      if (!refusal) return true;
    }
    return false;
  };
  if (evidence.reading.empty() || proves()) return {};
  for (const std::vector<Expr>* more : {&evidence.indices, &evidence.guards}) {
    const std::size_t before = known.size();
    add_captures(*more, known);
    if (known.size() > before && proves()) return {};
  }
  return refusal;
}

}  // namespace

void check_reads_inside(const Expr& root, const LeafRanges& leaves, const CaptureBounds& bounds, Precision precision) {
  const std::optional<std::string> refusal = refusal_of(root, leaves, bounds, precision);
  if (refusal) throw Error(ErrorCode::invalid_argument, *refusal);
}

bool reads_stay_inside(const Expr& root, const LeafRanges& leaves, const Bindings& bindings, Precision precision) {
  return !refusal_of(root, leaves, ShapesOnly(bindings), precision);
}

}  // namespace heddle::expr
