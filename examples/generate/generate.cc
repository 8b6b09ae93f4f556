// Generates text, character by character, with the model that train_model saved, through Heddle's public interface
// alone: a paged cache, append_kv() and attention_into().
//
//   generate_text MODEL.safetensors CHARACTERS PROMPT [PROMPT...] [--device cuda]
//
//   build/release/bin/train_model examples/data/text.txt 1000 losses.txt --save model.safetensors
//   build/release/bin/generate_text model.safetensors 80 "the " "a new sentence "
//
// All prompts, of any lengths, go through the model at once and fill the cache; then each step gives every sequence its
// most probable next character. On a GPU the cache stays there, and so do the lengths and the page table, which each
// run reads; the other layers are plain loops on the CPU.
//
// Every character is held against a forward of the whole text in double precision without a cache (exact.h). Exits with
// 1 if one differs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../train/model_file.h"
#include "decoder.h"
#include "exact.h"

namespace {

Characters numbers_of(std::string_view text, const std::string& characters) {
  Characters numbers;
  for (const char byte : text) {
    const std::size_t number = characters.find(byte);
    if (number == std::string::npos) {
      throw std::runtime_error(
          fmt::format("the prompt \"{}\" has '{}', which is not among the model's characters", text, byte));
    }
    numbers.push_back(static_cast<std::uint8_t>(number));
  }
  if (numbers.empty()) throw std::runtime_error("a prompt is empty; one character and more are accepted");
  return numbers;
}

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Each prompt with so many more characters.
std::vector<Characters> generate(Decoder& decoder, const PagedCache& cache, std::vector<Characters> texts,
                                 std::size_t count) {
  std::size_t given = 0;
  for (const Characters& text : texts) given += text.size();
  const Clock prefill;
  Characters next = decoder.next(texts);
  fmt::print("prefill: {} characters, {:.0f} a second; pages {}\n", given,
             static_cast<double>(given) / prefill.seconds(), cache.picture());
  const Clock decode;
  for (std::size_t step = 0;; ++step) {
    for (std::size_t n = 0; n < texts.size(); ++n) texts[n].push_back(next[n]);
    if (step + 1 == count) break;
    std::vector<Characters> last;
    for (const std::uint8_t character : next) last.push_back({character});
    next = decoder.next(last);
  }
  if (count > 1) {
    fmt::print("decode: {} steps of {} sequences, {:.0f} characters a second; pages {}\n", count - 1, texts.size(),
               static_cast<double>((count - 1) * texts.size()) / decode.seconds(), cache.picture());
  }
  return texts;
}

/// How many of the last `count` characters are those of double precision, and the least distance there between the
/// best and the second-best logit.
struct Comparison {
  std::size_t equal = 0;
  double least_margin = 1e30;
};
Comparison compare(const Model& model, const Characters& text, std::size_t count) {
  Comparison comparison;
  for (std::size_t end = text.size() - count; end < text.size(); ++end) {
    std::vector<double> logits = exact_logits(model, std::span(text).first(end));
    const auto best = std::ranges::max_element(logits);
    comparison.equal += best - logits.begin() == text[end] ? 1 : 0;
    const double most = *best;
    *best = -1e30;
    comparison.least_margin = std::min(comparison.least_margin, most - *std::ranges::max_element(logits));
  }
  return comparison;
}

/// True if every character is that of double precision.
bool run(const SavedModel& saved, std::size_t count, const std::vector<std::string>& prompts,
         const heddle::Device& device) {
  std::vector<Characters> texts;
  std::int64_t pages = 0;
  for (const std::string& prompt : prompts) {
    texts.push_back(numbers_of(prompt, saved.characters));
    pages += (static_cast<std::int64_t>(prompt.size() + count) + kPageRows - 1) / kPageRows;
  }
  PagedCache cache(device, saved.model.blocks().size(), prompts.size(), pages);
  Decoder decoder(saved.model, cache);
  texts = generate(decoder, cache, texts, count);
  bool all_equal = true;
  for (const Characters& text : texts) {
    std::string readable;
    for (const std::uint8_t character : text) readable += saved.characters[character];
    const Comparison comparison = compare(saved.model, text, count);
    fmt::print("\n{}\n  {} of {} characters are those of double precision without a cache; margin at least {:.2g}\n",
               readable, comparison.equal, count, comparison.least_margin);
    all_equal &= comparison.equal == count;
  }
  return all_equal;
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::string> given(arguments + 1, arguments + count);
  heddle::Device device;
  if (given.size() > 2 && given[given.size() - 2] == "--device") {
    const std::string& name = given.back();
    if (name != "cpu" && name != "cuda" && name != "rocm") {
      fmt::print(stderr, "generate_text: --device is {}; cpu, cuda and rocm are accepted\n", name);
      return 2;
    }
    device.kind = name == "cuda"   ? heddle::DeviceKind::cuda
                  : name == "rocm" ? heddle::DeviceKind::rocm
                                   : heddle::DeviceKind::cpu;
    given.resize(given.size() - 2);
  }
  if (given.size() < 3) {
    fmt::print(stderr, "usage: generate_text MODEL.safetensors CHARACTERS PROMPT [PROMPT...] [--device cuda]\n");
    return 2;
  }
  try {
    const int characters = std::atoi(given[1].c_str());
    if (characters < 1) throw std::runtime_error(fmt::format("CHARACTERS must be at least 1, but is {}", given[1]));
    const bool equal = run(load_model(given[0]), static_cast<std::size_t>(characters),
                           std::vector<std::string>(given.begin() + 2, given.end()), device);
    return equal ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "generate_text: {}\n", error.what());
    return 1;
  }
}
