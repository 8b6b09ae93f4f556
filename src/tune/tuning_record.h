// Measurements kept on disk: one file a class of problems, beside the compiled kernels.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace heddle::tune {

struct Time {
  std::string kernel;  // kernel_name()
  double seconds = 0;  // of one run
  bool operator==(const Time&) const = default;
};

struct Record {
  std::vector<Time> times;  // the fastest first
  std::string planned;      // the kernel that stood first before anything was measured
  bool operator==(const Record&) const = default;
};

/// Nothing where no such record is kept. A record that is damaged, or of another class, counts as none, and `trouble`
/// gets a sentence.
std::optional<Record> load(const std::string& problem_class, std::string& trouble);
/// If the record cannot be written, `trouble` gets a sentence.
void store(const std::string& problem_class, const Record& record, std::string& trouble);

}  // namespace heddle::tune
