// How planning asks for the rows of a mask.
#pragma once

#include <functional>
#include <memory>

#include "heddle/block_mask.h"

namespace heddle::plan {

/// Gives the mask's rows in blocks of that size: the caller's own rows if they fit, else rows built from mask_mod. Null
/// if everything attends.
using RowsOf = std::function<std::shared_ptr<const BlockMask>(BlockSize)>;

/// A memoised `rows_of`: builds each block size once, for candidates are planned again where bits take too many bytes.
RowsOf remembering(const RowsOf& rows_of);

}  // namespace heddle::plan
