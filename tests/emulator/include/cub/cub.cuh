// The part of CUB that Maxim uses. Summation orders are fixed, the temporary storage is overwritten
// with 0xFF, so that two streams that share one show.
#pragma once

#include "cub/device/device_radix_sort.cuh"  // IWYU pragma: export
#include "cub/device/device_scan.cuh"        // IWYU pragma: export
