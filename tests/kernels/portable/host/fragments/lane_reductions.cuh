// The kernels' own reductions: here the threads of a warp are lanes (lanes.h). The stand-in that lies behind this folder
// on the path has a row in one thread.
#pragma once

#include "common/fragments/lane_reductions.cuh"
