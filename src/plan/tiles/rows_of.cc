#include "plan/tiles/rows_of.h"

#include <cstdint>
#include <map>
#include <utility>

namespace heddle::plan {

RowsOf remembering(const RowsOf& rows_of) {
  using Known = std::map<std::pair<std::int64_t, std::int64_t>, std::shared_ptr<const BlockMask>>;
  return [rows_of, known = std::make_shared<Known>()](BlockSize block) {
    std::shared_ptr<const BlockMask>& rows = (*known)[{block.q, block.kv}];
    if (rows == nullptr) rows = rows_of(block);
    return rows;
  };
}

}  // namespace heddle::plan
