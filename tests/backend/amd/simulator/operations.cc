#include "backend/amd/simulator/operations.h"

#include <unordered_map>

namespace heddle::amd::simulator {

const OperationRow* find_operation_row(std::string_view name) {
  static const auto rows = [] {
    std::unordered_map<std::string_view, const OperationRow*> all;
    for (const auto& table : {control_rows(), lane_rows(), scalar_load_rows()}) {
      for (const OperationRow& row : table) all.emplace(row.name, &row);
    }
    return all;
  }();
  const auto row = rows.find(name);
  return row == rows.end() ? nullptr : row->second;
}

}  // namespace heddle::amd::simulator
