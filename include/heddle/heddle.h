// Everything: fused attention with user-written score and mask functions.
#pragma once

#include "heddle/archive.h"            // IWYU pragma: export
#include "heddle/attention.h"          // IWYU pragma: export
#include "heddle/backward.h"           // IWYU pragma: export
#include "heddle/block_mask.h"         // IWYU pragma: export
#include "heddle/check.h"              // IWYU pragma: export
#include "heddle/context_parallel.h"   // IWYU pragma: export
#include "heddle/devices.h"            // IWYU pragma: export
#include "heddle/error.h"              // IWYU pragma: export
#include "heddle/events.h"             // IWYU pragma: export
#include "heddle/expr.h"               // IWYU pragma: export
#include "heddle/files.h"              // IWYU pragma: export
#include "heddle/kv_cache.h"           // IWYU pragma: export
#include "heddle/mods.h"               // IWYU pragma: export
#include "heddle/move_rows.h"          // IWYU pragma: export
#include "heddle/nccl_communicator.h"  // IWYU pragma: export
#include "heddle/partition.h"          // IWYU pragma: export
#include "heddle/tensor.h"             // IWYU pragma: export
