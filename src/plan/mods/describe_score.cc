// The form of a score_mod as a sentence.
#include <fmt/format.h>

#include "plan/mods/kernel_mods.h"

namespace heddle::plan {

namespace {

/// "; key_term pad[b, kv_idx] computed once a key": what changes the scores before the form's own term joins them.
std::string describe_key_numbers(const KernelMods& mods) {
  std::string text;
  if (!mods.key_factor.empty()) {
    text +=
        fmt::format("; times {}, which reads no query: computed once for each key of a block", print(mods.key_factor));
  }
  if (!mods.key_term.empty()) {
    text += fmt::format("; plus {}, which reads no query: computed once for each key of a block", print(mods.key_term));
  }
  if (mods.table_entries > 0) {
    text += fmt::format("; plus a table's entry at {} + {}, of {}: computed once a tile", print(mods.query_index),
                        print(mods.key_index), mods.table_entries);
  }
  return text;
}

std::string describe_form(const KernelMods& mods) {
  using shared::ScoreForm;
  const std::string score = mods.cap == 0 ? fmt::format("{} * score", mods.factor)
                                          : fmt::format("{} * tanh({} * score)", mods.cap, mods.factor);
  switch (mods.form) {
    case ScoreForm::plain:
      if (mods.cap != 0) return fmt::format("capped: t = {}; a polynomial while all scores of a warp are small", score);
      return mods.factor == 1 && !mods.has_key_numbers()
                 ? ""
                 : fmt::format("plain: t = {}; the factor joins the scale", score);
    case ScoreForm::shifted:
      return fmt::format("shifted: t = {} + {}; the term reads no key: computed once a row and block of keys", score,
                         print(mods.offset));
    case ScoreForm::tilted:
      return fmt::format(
          "tilted: t = {} + {}; the term is linear in kv_idx: computed for the first key of a block, and {} more from "
          "key to key",
          score, print(mods.offset), print(mods.slope));
    case ScoreForm::distant:
      return fmt::format(
          "distant: t = {} + {}; the term depends on kv_idx - q_idx alone: computed once for each distance in a block "
          "of "
          "keys, or once a block from {} on and up to {}",
          score, print(mods.offset), mods.flat_from, mods.flat_to);
    case ScoreForm::added:
      return fmt::format("added: t = {} + {}; the term depends on the query and the key: computed for each pair", score,
                         print(mods.offset));
    case ScoreForm::mapped:
      break;
  }
  return fmt::format("mapped: t = {}; not a positive multiple of the score and a term: computed for each pair",
                     print(mods.score));
}

}  // namespace

std::string describe_score(const KernelMods& mods) {
  std::string text = describe_form(mods) + describe_key_numbers(mods);
  if (mods.shifted) {
    text += fmt::format("; capture '{}' is read element by element: kv_start shifts the columns that its tiles have",
                        mods.shifted->capture);
  }
  return text;
}

}  // namespace heddle::plan
